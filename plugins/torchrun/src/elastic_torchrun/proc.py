"""The state of other processes, read from `/proc`. A process that ends meanwhile counts as missing."""

from pathlib import Path

from elastic_core.api import Record


class ProcessStat(Record, frozen=True, kw_only=True):
    """One process at one moment: the kernel's letter for its state, and its parent."""

    state: str
    parent: int
    thread_count: int

    @property
    def alive(self) -> bool:
        """Whether any thread of it can still run: a process with an ended main thread looks like a zombie."""
        return self.state not in "ZXx" or self.thread_count > 1


def read_stat(pid: int) -> ProcessStat | None:
    """Return the state of a process, or `None` if there is none. Source: proc_pid_stat(5)."""
    content = _read(f"/proc/{pid}/stat")
    if not content:
        return None
    fields = content.rpartition(b")")[2].split()
    return ProcessStat(state=fields[0].decode(), parent=int(fields[1]), thread_count=int(fields[17]))


def state_and_wait(pid: int) -> tuple[str, str]:
    """Return a process's state (D if any thread sleeps uninterruptibly), and the kernel function in which it sleeps."""
    stat = read_stat(pid)
    if stat is None:
        return "", ""
    for tid in _threads(pid) if stat.state in "RSD" else ():
        if _read(f"/proc/{pid}/task/{tid}/stat").rpartition(b")")[2].split()[:1] == [b"D"]:
            wait = _read(f"/proc/{pid}/task/{tid}/wchan").decode("ascii", "replace").strip()
            return "D", "" if wait == "0" else wait
    return stat.state, ""


def _threads(pid: int) -> list[str]:
    try:
        return sorted((task.name for task in Path(f"/proc/{pid}/task").iterdir()), key=int)
    except OSError:
        return []


def _read(path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError:  # it has ended, or is another's
        return b""
