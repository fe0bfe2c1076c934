"""How alive another process looks from outside: its state, the signals it catches, what it reads, writes and uses."""

import os
from collections.abc import Iterable

from elastic_core.processes.procfs import all_stats, read_file, thread_ids
from elastic_core.types import Record

_TICKS_A_SECOND = os.sysconf("SC_CLK_TCK")


class Vitals(Record, frozen=True, kw_only=True):
    """One process at one moment.

    `state` is the kernel's letter: R runs, S sleeps, D sleeps uninterruptibly (any of its threads), T is stopped, t is
    held by a debugger. `cpu_s`: processor time so far. `wait`: where in the kernel a thread in D is, if that is told.
    """

    state: str
    cpu_s: float
    wait: str = ""


class Traffic(Record, frozen=True, kw_only=True):
    """Bytes that processes have read so far, by calls or through mapped files, and written by calls."""

    read: int = 0
    written: int = 0


def catches(pid: int, signum: int) -> bool:
    """Return whether a process has a handler for a signal."""
    return _is_in(f"/proc/{pid}/status", b"SigCgt:", signum)


def takes(pid: int, signum: int) -> bool:
    """Return whether a process has a handler for a signal, or keeps it from all its threads: to wait for it in one."""
    if catches(pid, signum):
        return True
    # The kernel takes a signal out of the mask of a thread for as long as that waits for it.
    blocked = {tid: _is_in(f"/proc/{pid}/task/{tid}/status", b"SigBlk:", signum) for tid in thread_ids(pid)}
    return any(blocked.values()) and all(held or "sigtimedwait" in _wait_of(pid, tid) for tid, held in blocked.items())


def is_pending(pid: int, signum: int) -> bool:
    """Return whether a signal that was sent to a process as a whole still waits for it."""
    return _is_in(f"/proc/{pid}/status", b"ShdPnd:", signum)


def _is_in(path: str, name: bytes, signum: int) -> bool:
    for line in (read_file(path) or b"").splitlines():
        if line.startswith(name):
            return bool(int(line.split()[1], 16) >> (signum - 1) & 1)
    return False


def look_at(pid: int) -> Vitals | None:
    """Return how a process is, None if it is gone."""
    content = read_file(f"/proc/{pid}/stat")
    if not content:
        return None
    fields = content[content.rfind(b")") + 2 :].split()
    state, wait = fields[0].decode(), ""
    if state in "RS":
        state, wait = _deepest(pid, state)
    elif state == "D":
        wait = _wait_of(pid, pid)
    return Vitals(state=state, cpu_s=(int(fields[11]) + int(fields[12])) / _TICKS_A_SECOND, wait=wait)


def uninterruptible(pid: int) -> bool:
    """Return whether a process, or any thread of it, sleeps where no signal reaches it at this moment.

    That is common for milliseconds; for a minute, it is a disk or a device that does not answer.
    """
    seen = look_at(pid)
    return seen is not None and seen.state == "D"


def _deepest(pid: int, state: str) -> tuple[str, str]:
    """Return D where one of the threads is in it."""
    for tid in thread_ids(pid):
        if tid != pid:
            content = read_file(f"/proc/{pid}/task/{tid}/stat") or b""
            if content[content.rfind(b")") + 2 :][:1] == b"D":
                return "D", _wait_of(pid, tid)
    return state, ""


def _wait_of(pid: int, tid: int) -> str:
    name = (read_file(f"/proc/{pid}/task/{tid}/wchan") or b"").decode("ascii", "replace").strip()
    return "" if name == "0" else name


def traffic_of(pid: int) -> Traffic | None:
    """Return a process's bytes; None where it is gone, or another user's."""
    content = read_file(f"/proc/{pid}/io")
    if not content:
        return None
    pairs = dict(line.split(b": ") for line in content.splitlines() if b": " in line)
    return Traffic(
        read=int(pairs.get(b"rchar", 0)) + int(pairs.get(b"read_bytes", 0)),
        written=int(pairs.get(b"wchar", 0)),
    )


def session_traffic(leaders: Iterable[int]) -> dict[int, Traffic]:
    """Return for each session the bytes of its processes that we may look at."""
    wanted = set(leaders)
    totals: dict[int, Traffic] = {}
    for stat in all_stats():
        if stat.session in wanted and (own := traffic_of(stat.pid)) is not None:
            before = totals.get(stat.session, Traffic())
            totals[stat.session] = Traffic(read=before.read + own.read, written=before.written + own.written)
    return totals
