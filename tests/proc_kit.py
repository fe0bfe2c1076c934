"""Processes of others as /proc shows them: any may end between two looks, which is then no error."""

from contextlib import suppress
from pathlib import Path


def children(pid: int) -> list[int]:
    """Return the children of all threads of a process."""
    return _table().get(pid, [])


def descendants(pid: int) -> list[int]:
    """Return all processes below one."""
    below = _table()
    found = list(below.get(pid, []))
    for child in found:
        found += below.get(child, [])
    return found


def command_line(pid: int) -> bytes:
    """Return the arguments of a process, each ended by a zero byte; nothing if it has ended."""
    with suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    return b""


def state_of(pid: int) -> str | None:
    """Return the letter for what a process does (`Z`: it has ended and waits for its parent); None if it is gone."""
    with suppress(OSError):
        return _stat(pid)[0]
    return None


def thread_states(pid: int) -> list[str]:
    """Return that letter for each thread: those of a process stop one after the other."""
    found = []
    for path in Path(f"/proc/{pid}/task").glob("*/stat"):
        with suppress(OSError):
            found.append(path.read_text().rpartition(")")[2].split()[0])
    return found


def is_alive(pid: int) -> bool:
    """Return whether a process runs (a zombie does not)."""
    return state_of(pid) not in (None, "Z", "X")


def _table() -> dict[int, list[int]]:
    """Return the children of each process."""
    below: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(OSError):
                below.setdefault(int(_stat(int(entry.name))[1]), []).append(int(entry.name))
    return below


def _stat(pid: int) -> list[str]:
    """Return the fields after the name of the program, which may have brackets and blanks in it."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
