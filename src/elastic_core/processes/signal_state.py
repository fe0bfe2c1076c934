"""What another process does about a signal: catches it, takes it in a thread that waits for it, has it pending."""

from elastic_core.processes.procfs import read_file, thread_ids


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


def _wait_of(pid: int, tid: int) -> str:
    name = (read_file(f"/proc/{pid}/task/{tid}/wchan") or b"").decode("ascii", "replace").strip()
    return "" if name == "0" else name
