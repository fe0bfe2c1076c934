"""Kills by the memory controller of our own cgroup, as the kernel counts them."""

from pathlib import Path

_PROC_CGROUP = Path("/proc/self/cgroup")
_CGROUP_ROOT = Path("/sys/fs/cgroup")


class OomCounter:
    """Counts the kills since it was built; 0 where the kernel doesn't tell."""

    def __init__(self, *, proc_cgroup: Path = _PROC_CGROUP, cgroup_root: Path = _CGROUP_ROOT) -> None:
        """Remember how many there were before."""
        self._file = _events_file(proc_cgroup, cgroup_root)
        self._before = self._total()

    def kills(self) -> int:
        """Return how many processes of this cgroup, and those below it, were killed for memory since."""
        return max(0, self._total() - self._before)

    def _total(self) -> int:
        try:
            text = self._file.read_text() if self._file is not None else ""
        except OSError:
            return 0
        for line in text.splitlines():
            name, _, count = line.partition(" ")
            if name == "oom_kill" and count.isdigit():
                return int(count)
        return 0


def _events_file(proc_cgroup: Path, root: Path) -> Path | None:
    try:
        lines = proc_cgroup.read_text().splitlines()
    except OSError:
        return None
    # Version 1 first: where both are mounted, its memory controller is the one that counts.
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if "memory" in controllers.split(","):
            return _first_existing(root / "memory", path, "memory.oom_control")
    for line in lines:
        number, controllers, path = line.split(":", 2)
        if number == "0" and not controllers:
            return _first_existing(root, path, "memory.events")
    return None


def _first_existing(mount: Path, path: str, name: str) -> Path | None:
    # In a container without a cgroup namespace the path is the host's, and the mount shows ours at its root.
    for candidate in (mount / path.lstrip("/") / name, mount / name):
        if candidate.exists():
            return candidate
    return None
