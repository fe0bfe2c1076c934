"""Marks of the processes that write checkpoints, by which other processes remove only the remains of ended ones."""

import hashlib
import os
import secrets
from pathlib import Path
from typing import Final

_PROC: Final = Path("/proc")


def mark() -> str:
    """Return a mark of this process: letters, digits and `-`, with a new random part each time."""
    place, pid = _place(), os.getpid()
    start = _start(pid)
    return f"{place or 'x'}-{pid}-{start or 0}-{secrets.token_hex(4)}"


def is_gone(other: str) -> bool:
    """Return whether the process of a mark is known to have ended: it ran under this kernel, and no longer does."""
    parts = other.split("-")
    if len(parts) != 4 or not all(part.isascii() and part.isdigit() for part in parts[1:3]):
        return False
    place, pid, start, _ = parts
    return place == _place() and _start(int(pid)) != start


def _place() -> str | None:
    """Return an id that is the same for all processes that see each other's pids. `None` if it is not known."""
    try:
        boot = (_PROC / "sys/kernel/random/boot_id").read_text()
        return hashlib.sha256(f"{boot}{(_PROC / 'self/ns/pid').readlink()}".encode()).hexdigest()[:12]
    except OSError:
        return None


def _start(pid: int) -> str | None:
    """Return a process's start time, as the kernel counts. `None` if there is no such process, or it has ended."""
    try:
        fields = (_PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in "ZX" else fields[19]
