"""The exit of a worker's process, read without waiting."""

import os
from contextlib import suppress
from pathlib import Path
from typing import Final

STATUS_LOST: Final = 1
"""The code of a worker whose exit status was read by another process, or by another part of this one."""


def code_of(pid: int) -> int | None:
    """Return a process's exit code, -N for death by signal N, `None` while it runs. A child of this process is reaped.

    Source: proc(5), `/proc/[pid]/stat`, fields 3 and 52.

    Raises:
        PermissionError: it is another process's child and another user's, for whom the kernel shows no code.
    """
    with suppress(ChildProcessError):
        reaped, status = os.waitpid(pid, os.WNOHANG)
        return os.waitstatus_to_exitcode(status) if reaped else None
    fields = _stat_fields(pid)
    if not fields:
        return STATUS_LOST
    if fields[0] not in (b"Z", b"X"):
        return None
    with suppress(FileNotFoundError, ProcessLookupError):  # the first is what an ended process has
        Path(f"/proc/{pid}/exe").readlink()  # the same permission as the code, which would be shown as 0
    return os.waitstatus_to_exitcode(int(fields[49]))


def code_lost(pid: int) -> int | None:
    """Return the placeholder code of a process whose exit code can't be read. `None` while it runs."""
    fields = _stat_fields(pid)
    return None if fields and fields[0] not in (b"Z", b"X") else STATUS_LOST


def _stat_fields(pid: int) -> list[bytes]:
    """Return the fields of a process from its state (the third) on; empty if there is no such process."""
    try:
        text = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return []
    return text.rpartition(b")")[2].split()
