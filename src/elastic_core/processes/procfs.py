"""Reads facts about other processes from `/proc`; a process that ends during the read counts as missing.

It imports only `os` and the interpreter's `_thread`, because the small guard process uses it too.
"""

from __future__ import annotations

import _thread
import os

TYPE_CHECKING = False  # importing typing or collections.abc would cost the guard a tenth of its memory
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import TypeVar

    _T = TypeVar("_T")

GUARD_MARK = b"\0elastic-guard\0"
"""The end of a guard's command line, its last argument: visible to people, and spared by other guards and sweeps."""
_CHUNK_BYTES = 1 << 16
# The least seconds for a read of a process's memory; half of that for each process that is blocked already.
_PATIENCE_S, _LEAST_PATIENCE_S = 0.25, 0.01
_reading: dict[int, tuple[int, str]] = {}  # by thread
_blocked: list[int] = []  # processes whose reads were given up and have not returned
_claim = _thread.allocate_lock()  # between the end of a read and giving it up
_KERNEL_THREAD = 0x00200000  # PF_KTHREAD, linux/sched.h


class ProcessStat:
    """One process at one moment: its parent, its state, and its start."""

    __slots__ = ("group", "kernel", "parent", "pid", "session", "start_ticks", "state", "thread_count")

    def __init__(self, pid: int, fields: list[bytes]) -> None:
        # The fields of `/proc/PID/stat` that follow the name. Source: proc_pid_stat(5).
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
        """Whether any of its threads can still run. A dead main thread looks like a zombie while other threads run."""
        return self.state not in "ZXx" or self.thread_count > 1


def read_file(path: str) -> bytes | None:
    """Return a file's whole content. `None` if it is gone or unreadable."""
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
    """Return a process's stat. `None` if there is no such process."""
    content = read_file(f"/proc/{pid}/stat")
    if not content:
        return None
    # The name may contain blanks and parentheses; the last parenthesis ends it.
    fields = content[content.rfind(b")") + 2 :].split()
    return ProcessStat(pid, fields) if len(fields) > 19 else None


def name_of(pid: int) -> str:
    """Return the printable characters of a process's name (at most 15 bytes). `?` if it has ended."""
    name = (read_file(f"/proc/{pid}/comm") or b"?").decode(errors="replace").strip()
    return "".join(letter if letter.isprintable() else "?" for letter in name)


def list_pids() -> list[int]:
    """Return the pid of every visible process, ascending."""
    return numbers_in("/proc")


def thread_ids(pid: int) -> list[int]:
    """Return a process's threads. Empty if it has ended."""
    return numbers_in(f"/proc/{pid}/task")


def numbers_in(folder: str) -> list[int]:
    """Return the entries of a folder that are numbers. Empty if it cannot be read."""
    try:
        names = os.listdir(folder)  # noqa: PTH208 -- importing pathlib would cost the guard 2 MiB
    except OSError:
        return []
    return [int(name) for name in names if name.isdigit()]


def all_stats() -> Iterator[ProcessStat]:
    """Yield every process's stat."""
    for pid in list_pids():
        stat = read_stat(pid)
        if stat is not None:
            yield stat


def is_usable() -> bool:
    """Return whether `/proc` exists and belongs to our process namespace. In another one, pids mean other processes."""
    try:
        return os.readlink("/proc/self") == str(os.getpid())  # noqa: PTH115 -- as in `numbers_in`
    except OSError:
        return False


def limit_mark(incarnation: str) -> int:
    """Return the value of `RLIMIT_LOCKS` that marks an agent's workers and all their descendants.

    The kernel passes resource limits on at every fork and exec, so this mark survives a cleared environment. The kernel
    has not enforced this limit since 2.4.25, and the value is too large to be reached.
    """
    return (1 << 62) + int.from_bytes(incarnation.encode(), "big") % ((1 << 61) - 1)


def has_limit(pid: int, mark: int) -> bool:
    """Return whether a process has a `limit_mark`. Unlike reading its environment, this does not need its memory."""
    return b" %d " % mark in (read_file(f"/proc/{pid}/limits") or b"")


def unblocked(look: Callable[[], _T]) -> _T:
    """Return the result of `look`, which reads the environments and command lines of processes, in bounded time.

    Such a read waits for the lock on the process's memory and reacts only to KILL. A thread that hangs in `mmap` on a
    file system that does not respond holds that lock. So `look` runs in a thread. If a read does not return, the thread
    is abandoned until it does, and another thread looks again. Until then, that process has an empty environment and
    command line.
    """
    while True:
        ended = _thread.allocate_lock()
        ended.acquire()
        results: list[_T] = []
        errors: list[Exception] = []
        try:
            thread = _thread.start_new_thread(_run, (look, results, errors, ended))
        except RuntimeError:  # no thread available now
            return look()
        reading: tuple[int, str] | None = None
        while not ended.acquire(timeout=max(_PATIENCE_S * 0.5 ** len(_blocked), _LEAST_PATIENCE_S)):
            before, reading = reading, _reading.get(thread)
            if reading is not None and reading is before and _give_up(thread, reading):
                break
        else:
            if errors:
                raise errors[0]
            return results[0]


def _run(look: Callable[[], _T], results: list[_T], errors: list[Exception], ended: _thread.LockType) -> None:
    try:
        results.append(look())
    except Exception as error:  # noqa: BLE001  # raised in the calling thread
        errors.append(error)
    ended.release()


def _give_up(thread: int, reading: tuple[int, str]) -> bool:
    # Abandons a thread. False if its read has returned.
    with _claim:
        if _reading.get(thread) is not reading:
            return False
        del _reading[thread]
        _blocked.append(reading[0])
        return True


def _read_memory(pid: int, name: str) -> bytes | None:
    # The kernel takes such a file's content from the process's memory.
    if pid in _blocked:
        return None
    thread = _thread.get_ident()
    reading = _reading[thread] = (pid, name)
    content = read_file(f"/proc/{pid}/{name}")
    with _claim:
        if _reading.get(thread) is reading:
            del _reading[thread]
            return content
        _blocked.remove(pid)
    raise SystemExit  # ends this thread silently


def is_guard(pid: int) -> bool:
    """Return whether a process is an agent's guard, which ends by itself after the processes that it guards."""
    return (_read_memory(pid, "cmdline") or b"").endswith(GUARD_MARK)


def has_environment_entry(pid: int, entry: bytes) -> bool:
    """Return whether a process was started with `entry` (`NAME=value`) in its environment."""
    content = _read_memory(pid, "environ")
    if content:
        return _has_entry(content, entry)
    # Nothing to read: a kernel thread, an empty environment, another user's process. Or a main thread that ended before
    # other threads, which still have the environment.
    stat = read_stat(pid)
    if stat is None or stat.state != "Z" or stat.thread_count < 2:
        return False
    return any(_has_entry(_read_memory(pid, f"task/{tid}/environ") or b"", entry) for tid in thread_ids(pid))


def _has_entry(content: bytes, entry: bytes) -> bool:
    # Cheap if the entry is missing, as usual: no copy, no split.
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
    """Return a function that returns a process's children and zombies: live if the kernel lists them, else cached."""
    if has_children_files():
        return _listed_children
    by_parent: dict[int, list[int]] = {}
    for stat in all_stats():
        by_parent.setdefault(stat.parent, []).append(stat.pid)
    return lambda pid: by_parent.get(pid, [])


def _listed_children(pid: int) -> list[int]:
    return [child for tid in thread_ids(pid) for child in thread_children(pid, tid)]


def thread_children(pid: int, tid: int) -> list[int]:
    """Return the children that one thread has forked. The main thread's include those that the process adopted."""
    return [int(child) for child in (read_file(f"/proc/{pid}/task/{tid}/children") or b"").split()]
