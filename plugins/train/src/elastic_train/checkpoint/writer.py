"""The process that writes a checkpoint, in the name of what it writes: so that another one removes only remains."""

import hashlib
import os
import secrets
from pathlib import Path
from typing import Final

_PROC: Final = Path("/proc")


def mark() -> str:
    """Return this process's mark, of letters, digits and `-`: it ends with a random part, another one each time."""
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
    """Return what is the same for all processes that see one another's ids; None: it is not known."""
    try:
        boot = (_PROC / "sys/kernel/random/boot_id").read_text()
        return hashlib.sha256(f"{boot}{(_PROC / 'self/ns/pid').readlink()}".encode()).hexdigest()[:12]
    except OSError:
        return None


def _start(pid: int) -> str | None:
    """Return when a process has started, as the kernel counts; None: there is no such process, or it has ended."""
    try:
        fields = (_PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in "ZX" else fields[19]
