"""Uninterruptible sleep, as the kernel tells of it: who sleeps, where, and since when. Pure but for what it reads.

No signal ends such a process. One that reads a slow disk is in this state often, but never for long at a time; what
tells them apart is the kernel's count of how often it has gone to sleep.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple


class Sleep(NamedTuple):
    """One uninterruptible sleep of one worker: which it is, and since when it is seen."""

    serial: int
    since_s: float


def sleep_serial(pid: int, *, proc: str = "/proc") -> int | None:
    """Return how often a process has gone to sleep, if it is in uninterruptible sleep now; None: it is not."""
    fields = dict(line.split(b":", 1) for line in _read(f"{proc}/{pid}/status").splitlines() if b":" in line)
    if fields.get(b"State", b"").split()[:1] != [b"D"]:
        return None
    return int(fields.get(b"voluntary_ctxt_switches", b"0"))


def sleep_place(pid: int, *, proc: str = "/proc") -> str:
    """Return the kernel function in which a process sleeps; empty: not told."""
    name = _read(f"{proc}/{pid}/wchan").decode("ascii", "replace").strip()
    return "" if name == "0" else name


def look(before: Mapping[int, Sleep], serials: Mapping[int, int | None], *, now_s: float) -> dict[int, Sleep]:
    """Return who sleeps now, by local rank: since when, if it is the same sleep as before."""
    found = {}
    for rank, serial in serials.items():
        if serial is None:
            continue
        known = before.get(rank)
        same = known is not None and known.serial == serial
        found[rank] = known if known is not None and same else Sleep(serial=serial, since_s=now_s)
    return found


def _read(path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError:  # it has ended, or is another's
        return b""
