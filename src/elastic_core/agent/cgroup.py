"""Count the processes that the kernel's memory controller killed in our control group."""

from pathlib import Path

_OWN = Path("/proc/self")


class OomCounter:
    """How often the out-of-memory killer has struck in this process's cgroup since the counter was built.

    Workers inherit the agent's cgroup, so their deaths count here whichever limit was hit: ours, one above, or the
    host's. Where no counter can be read (no memory controller, no permission) the count is zero.
    """

    def __init__(self, own: Path = _OWN) -> None:
        """Read the count so far; `own` is this process's folder in /proc."""
        self._file = _counter_file(own)
        self._before = self._read()

    def kills_since_start(self) -> int:
        """Return the number of kills since this object was built."""
        return max(0, self._read() - self._before)

    def _read(self) -> int:
        return _read_count(self._file) or 0 if self._file is not None else 0


def _counter_file(own: Path) -> Path | None:
    """Return the nearest file at or above our cgroup that counts; version 1 and version 2 may both be mounted."""
    try:
        groups = (own / "cgroup").read_text()
        mounts = (own / "mountinfo").read_text()
    except OSError:
        return None
    for controllers, group in _memberships(groups):
        name = "memory.oom_control" if controllers else "memory.events"
        for mount_root, mount_point in _cgroup_mounts(mounts, version=1 if controllers else 2):
            folder = _below(group, mount_root)
            if folder is None:
                continue
            at = mount_point / folder
            for candidate in (at, *at.parents):
                if _read_count(candidate / name) is not None:
                    return candidate / name
                if candidate == mount_point:
                    break
    return None


def _memberships(groups: str) -> list[tuple[str, str]]:
    """Return (controllers, path) of the hierarchies that may count, version 1 before version 2."""
    # Where version 1 has the memory controller, version 2 has none: its files would be looked for in vain.
    found = []
    for line in groups.splitlines():
        _, controllers, path = line.split(":", 2)
        if "memory" in controllers.split(",") or not controllers:
            found.append((controllers, path))
    return sorted(found, reverse=True)


def _cgroup_mounts(mounts: str, *, version: int) -> list[tuple[str, Path]]:
    """Return (root, mount point) of the mounts of a version's memory hierarchy. Source: proc_pid_mountinfo(5)."""
    found = []
    for line in mounts.splitlines():
        before, _, after = line.partition(" - ")
        fields, kind = before.split(), after.split()
        wanted = kind[:1] == ["cgroup2"] if version == 2 else kind[:1] == ["cgroup"] and "memory" in kind[-1].split(",")
        if wanted:
            found.append((fields[3], Path(fields[4].replace("\\040", " "))))
    return found


def _below(group: str, mount_root: str) -> str | None:
    """Return where a cgroup lies below a mount, None if it can't be seen there.

    A container without a cgroup namespace of its own has its cgroup's full path in /proc, but sees it as the mount.
    """
    if mount_root == "/":
        return group.strip("/")
    if group == mount_root or group.startswith(mount_root + "/"):
        return group[len(mount_root) :].strip("/")
    return None


def _read_count(path: Path) -> int | None:
    try:
        lines = path.read_text().splitlines()
    except OSError:
        return None
    for line in lines:
        name, _, value = line.partition(" ")
        if name == "oom_kill" and value.isdigit():
            return int(value)
    return None
