"""What the kernel says of other processes, read from `/proc`; one that vanishes while we look is simply not there.

Imports nothing but `os`: the guard, which must stay tiny, uses it too.
"""

from __future__ import annotations

import os

TYPE_CHECKING = False  # importing typing or collections.abc would cost the guard a tenth of its memory
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

KEEP_ENTRY = b"ELASTIC_KEEP=1"
"""What spares a process that a worker leaves on purpose, in the environment that it was started with."""
GUARD_MARK = b"\0elastic-guard\0"
"""How a guard's command line ends: its last argument, for people to see and for other guards and sweeps to spare it."""
_CHUNK_BYTES = 1 << 16
_KERNEL_THREAD = 0x00200000  # PF_KTHREAD, linux/sched.h


class ProcessStat:
    """One process at one moment: who started it, whether it still runs, and since when."""

    __slots__ = ("group", "kernel", "parent", "pid", "session", "start_ticks", "state", "thread_count")

    def __init__(self, pid: int, fields: list[bytes]) -> None:
        """Take the fields of `/proc/PID/stat` that follow the name. Source: proc_pid_stat(5)."""
        self.pid = pid
        self.state = fields[0].decode()
        self.parent = int(fields[1])
        self.group = int(fields[2])
        self.session = int(fields[3])
        self.kernel = bool(int(fields[6]) & _KERNEL_THREAD)
        self.thread_count = int(fields[17])
        self.start_ticks = int(fields[19])

    @property
    def alive(self) -> bool:
        """Whether any thread of it can still run: a dead main thread looks like a zombie while the others live on."""
        return self.state not in "ZXx" or self.thread_count > 1


def read_file(path: str) -> bytes | None:
    """Return a file's whole content, or None where it is gone or not for us to read."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    chunks = []
    try:
        while chunk := os.read(fd, _CHUNK_BYTES):
            chunks.append(chunk)
    except OSError:  # ESRCH: it ended between open and read
        return None
    finally:
        os.close(fd)
    return b"".join(chunks)


def read_stat(pid: int) -> ProcessStat | None:
    """Return a process's stat, or None if there is no such process."""
    content = read_file(f"/proc/{pid}/stat")
    if not content:
        return None
    # The name may hold blanks and parentheses; the last parenthesis ends it.
    fields = content[content.rfind(b")") + 2 :].split()
    return ProcessStat(pid, fields) if len(fields) > 19 else None


def name_of(pid: int) -> str:
    """Return a process's name (15 bytes at most), its printable characters only; `?`: it is gone."""
    name = (read_file(f"/proc/{pid}/comm") or b"?").decode(errors="replace").strip()
    return "".join(letter if letter.isprintable() else "?" for letter in name)


def list_pids() -> list[int]:
    """Return the number of every process that we can see, ascending."""
    return numbers_in("/proc")


def thread_ids(pid: int) -> list[int]:
    """Return a process's threads, none if it is gone."""
    return numbers_in(f"/proc/{pid}/task")


def numbers_in(folder: str) -> list[int]:
    """Return the entries of a folder that are numbers, none if it can't be read."""
    try:
        names = os.listdir(folder)  # noqa: PTH208 -- importing pathlib would cost the guard 2 MiB
    except OSError:
        return []
    return [int(name) for name in names if name.isdigit()]


def all_stats() -> Iterator[ProcessStat]:
    """Give every process's stat."""
    for pid in list_pids():
        stat = read_stat(pid)
        if stat is not None:
            yield stat


def is_usable() -> bool:
    """Return whether `/proc` is there, and that of our own process namespace: in another's, numbers mean others."""
    try:
        return os.readlink("/proc/self") == str(os.getpid())  # noqa: PTH115 -- as in `numbers_in`
    except OSError:
        return False


def limit_mark(incarnation: str) -> int:
    """Return the value of `RLIMIT_LOCKS` that marks an agent's workers and all that descends from them.

    The kernel hands resource limits on at every fork and exec, so this mark outlives a cleared environment. It has not
    enforced this limit since 2.4.25, and the value is beyond what could ever be reached.
    """
    return (1 << 62) + int.from_bytes(incarnation.encode(), "big") % ((1 << 61) - 1)


def has_limit(pid: int, mark: int) -> bool:
    """Return whether a process bears a `limit_mark`. Unlike its environment, that needs nothing of its memory."""
    return b" %d " % mark in (read_file(f"/proc/{pid}/limits") or b"")


def is_guard(pid: int) -> bool:
    """Return whether a process is some agent's guard: it ends by itself, when what it guards has ended."""
    return (read_file(f"/proc/{pid}/cmdline") or b"").endswith(GUARD_MARK)


def has_environment_entry(pid: int, entry: bytes) -> bool:
    """Return whether a process was started with `entry` (`NAME=value`) as one whole entry of its environment."""
    content = read_file(f"/proc/{pid}/environ")
    if content:
        return _has_entry(content, entry)
    # Nothing to read: a kernel thread, an empty environment, another user's process. Or a main thread that ended before
    # the others, which still have what was its.
    stat = read_stat(pid)
    if stat is None or stat.state != "Z" or stat.thread_count < 2:
        return False
    return any(_has_entry(read_file(f"/proc/{pid}/task/{tid}/environ") or b"", entry) for tid in thread_ids(pid))


def _has_entry(content: bytes, entry: bytes) -> bool:
    # Cheap where the entry is absent, which is nearly always: no copy, no split.
    at = content.find(entry)
    while at >= 0:
        end = at + len(entry)
        if (at == 0 or content[at - 1] == 0) and (end == len(content) or content[end] == 0):
            return True
        at = content.find(entry, end)
    return False


def has_children_files() -> bool:
    """Return whether this kernel lists each thread's children (CONFIG_PROC_CHILDREN)."""
    return os.access("/proc/thread-self/children", os.R_OK)


def children_map() -> Callable[[int], list[int]]:
    """Return a function that gives a process's children, zombies too: live where the kernel lists them, else a map."""
    if has_children_files():
        return _listed_children
    by_parent: dict[int, list[int]] = {}
    for stat in all_stats():
        by_parent.setdefault(stat.parent, []).append(stat.pid)
    return lambda pid: by_parent.get(pid, [])


def _listed_children(pid: int) -> list[int]:
    return [child for tid in thread_ids(pid) for child in thread_children(pid, tid)]


def thread_children(pid: int, tid: int) -> list[int]:
    """Return the children that one thread has forked; the main thread's are also those that the process adopted."""
    return [int(child) for child in (read_file(f"/proc/{pid}/task/{tid}/children") or b"").split()]
