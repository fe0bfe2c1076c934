"""The state of another process: its letter, processor time, reads and writes."""

import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

from elastic_core.api import Record

_TICKS_A_SECOND: Final = os.sysconf("SC_CLK_TCK")
_DEAD: Final = frozenset("ZXx")
_STORE_THREAD: Final = b"pt_tcpstore"
"""The beginning of the names of the threads in which torch serves a `TCPStore`. Source: torch 2.11 to 2.15."""
_MOST_READINGS: Final = 10
"""How often the bytes of a process and of its store are read until they belong together."""


class Vitals(Record, frozen=True, kw_only=True):
    """One process at one moment.

    `state` is the kernel's letter: R runs, S sleeps, D sleeps uninterruptibly (any of its threads), T is stopped, t is
    held by a debugger. `cpu_s`: processor time so far. `wait`: the kernel function of a thread in D, if known.
    """

    state: str
    cpu_s: float
    wait: str = ""


class Traffic(Record, frozen=True, kw_only=True):
    """Bytes that processes have read so far, by calls or through mapped files, and written by calls."""

    read: int = 0
    written: int = 0


def look_at(pid: int) -> Vitals | None:
    """Return the state of a process, or `None` if it is gone."""
    fields = _stat(f"/proc/{pid}/stat")
    if not fields:
        return None
    state, wait = fields[0].decode(), ""
    if state in "RS":
        state, wait = _deepest(pid, state)
    elif state == "D":
        wait = _wait_of(pid, pid)
    return Vitals(state=state, cpu_s=(int(fields[11]) + int(fields[12])) / _TICKS_A_SECOND, wait=wait)


def lives(pid: int) -> bool:
    """Return whether any thread of a process can still run."""
    fields = _stat(f"/proc/{pid}/stat")
    return bool(fields) and (fields[0].decode() not in _DEAD or int(fields[17]) > 1)


def answers(pid: int, signum: int, session: int) -> bool:
    """Return whether a process leads a session or is in it, its main thread handles a signal now, and runs or waits."""
    fields = _stat(f"/proc/{pid}/stat")
    if not fields or session not in (pid, int(fields[3])) or fields[0].decode() in "TtZX":
        return False
    # The mask of blocked signals is the main thread's: otherwise another thread would handle it.
    return _in_mask(pid, signum, b"SigCgt:") and not _in_mask(pid, signum, b"SigBlk:")


def pending(pid: int, signum: int) -> bool:
    """Return whether a signal to a process has not reached a thread yet."""
    return _in_mask(pid, signum, b"ShdPnd:")


def _in_mask(pid: int, signum: int, name: bytes) -> bool:
    found = [line for line in _read(f"/proc/{pid}/status").splitlines() if line.startswith(name)]
    return any(int(line.split()[1], 16) >> (signum - 1) & 1 for line in found)


def state_of(pid: int) -> str:
    """Return the kernel's letter for the main thread of a process; empty if it is gone."""
    fields = _stat(f"/proc/{pid}/stat")
    return fields[0].decode() if fields else ""


def run_delay_s(pid: int) -> float | None:
    """Return how long a process's main thread has waited for a processor while it could run.

    Time in which the processor limit of a cgroup stops it is included. `None` if the kernel does not count it, or the
    process is gone. Source: Documentation/scheduler/sched-stats.rst of Linux.
    """
    fields = _read(f"/proc/{pid}/schedstat").split()
    return int(fields[1]) / 1e9 if len(fields) > 1 else None


def traffic_of(pid: int) -> Traffic | None:
    """Return a process's bytes. `None` if it is gone, or another user's.

    Without those of the store that torch serves in rank 0: with NCCL, a thread of each rank asks it every second
    whether another rank has failed, also while all ranks wait.
    """
    tasks = [f"/proc/{pid}/task/{tid}" for tid in _numbers(f"/proc/{pid}/task")]
    stores = [task for task in tasks if _read(f"{task}/comm").startswith(_STORE_THREAD)]
    for _ in range(_MOST_READINGS):
        before = [_traffic(f"{task}/io") for task in stores]
        total = _traffic(f"/proc/{pid}/io")
        # Otherwise the store has served meanwhile, and the difference would be neither the old value nor the new one.
        if before == [_traffic(f"{task}/io") for task in stores]:
            break
    if total is None:
        return None
    served = [each for each in before if each is not None]
    return Traffic(
        read=max(0, total.read - sum(each.read for each in served)),
        written=max(0, total.written - sum(each.written for each in served)),
    )


def _traffic(path: str) -> Traffic | None:
    content = _read(path)
    if not content:
        return None
    pairs = dict(line.split(b": ") for line in content.splitlines() if b": " in line)
    return Traffic(
        read=int(pairs.get(b"rchar", 0)) + int(pairs.get(b"read_bytes", 0)),
        written=int(pairs.get(b"wchar", 0)),
    )


def session_traffic(leaders: Iterable[int]) -> dict[int, Traffic]:
    """Return for each session the bytes of its processes that this process may read."""
    wanted = set(leaders)
    totals: dict[int, Traffic] = {}
    for pid in _numbers("/proc"):
        fields = _stat(f"/proc/{pid}/stat")
        session = int(fields[3]) if fields else 0
        if session in wanted and (own := traffic_of(pid)) is not None:
            before = totals.get(session, Traffic())
            totals[session] = Traffic(read=before.read + own.read, written=before.written + own.written)
    return totals


def _deepest(pid: int, state: str) -> tuple[str, str]:
    """Return D if one of the threads is in it."""
    for tid in _numbers(f"/proc/{pid}/task"):
        if tid != pid and _stat(f"/proc/{pid}/task/{tid}/stat")[:1] == [b"D"]:
            return "D", _wait_of(pid, tid)
    return state, ""


def _wait_of(pid: int, tid: int) -> str:
    name = _read(f"/proc/{pid}/task/{tid}/wchan").decode("ascii", "replace").strip()
    return "" if name == "0" else name


def _numbers(folder: str) -> Iterator[int]:
    try:
        names = os.listdir(folder)  # noqa: PTH208  # names are all that is wanted, of every process
    except OSError:  # it has ended
        return
    yield from (int(name) for name in names if name.isdigit())


def _stat(path: str) -> list[bytes]:
    """Return the fields after the name; empty if there is no such process. Source: proc_pid_stat(5)."""
    content = _read(path)
    # The name may hold blanks and parentheses; the last parenthesis ends it.
    return content[content.rfind(b")") + 2 :].split()


def _read(path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError:  # it has ended, or is another's
        return b""
