"""Uninterruptible sleep as the kernel shows it: the sleeping workers, the place, and the duration.

Pure except for reads.

No signal ends such a process. A process that reads a slow disk is often in this state, but never for long at a time.
The kernel's count of sleeps distinguishes the two.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple


class Sleep(NamedTuple):
    """One uninterruptible sleep of one worker: its serial number, and the time at which it was first seen."""

    serial: int
    since_s: float


def sleep_serial(pid: int, *, proc: str = "/proc") -> int | None:
    """Return how often a process has gone to sleep, if it is in uninterruptible sleep now, else `None`."""
    fields = dict(line.split(b":", 1) for line in _read(f"{proc}/{pid}/status").splitlines() if b":" in line)
    if fields.get(b"State", b"").split()[:1] != [b"D"]:
        return None
    return int(fields.get(b"voluntary_ctxt_switches", b"0"))


def sleep_place(pid: int, *, proc: str = "/proc") -> str:
    """Return the kernel function in which a process sleeps; empty if not known."""
    name = _read(f"{proc}/{pid}/wchan").decode("ascii", "replace").strip()
    return "" if name == "0" else name


def look(before: Mapping[int, Sleep], serials: Mapping[int, int | None], *, now_s: float) -> dict[int, Sleep]:
    """Return the sleeping workers, by local rank, each with its start if it is the same sleep as before."""
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
