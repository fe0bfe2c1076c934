"""The process that removes the folder of a `KeptFolder` if its owner has ended without doing so.

It is started with an empty environment, in a session of its own, with every signal blocked. Its standard input is a
pipe whose other end the owner holds. An owner that has removed the folder kills it. To stay small, it imports only
`os`, `select` and `sys`.
"""

from __future__ import annotations

import os
import select
import sys

KEPT_FOLDER_VARIABLE = "ELASTIC_KEPT_FOLDER"
"""The mark of processes that use the folder, in addition to their incarnation if they have one."""
_LOOKS = 1500
_PAUSE_MS = 20
_SIGKILL = 9  # importing signal would double the time
_PF_KTHREAD = 0x00200000


def main() -> None:
    """Keep the folder; the command line ends with its owner and name."""
    os.chdir("/")  # no directory is kept busy
    until_ended(int(sys.argv[-2]), 0)
    clear(sys.argv[-1])
    os._exit(0)  # nothing to clean up: the interpreter's own shutdown would only take time


def until_ended(owner: int, pipe: int) -> None:
    """Return when the owner has ended, or has closed the pipe.

    The process is checked beside the pipe because a fork of it may keep the pipe open.
    """
    poll = select.poll()
    poll.register(pipe, select.POLLIN)
    try:
        poll.register(os.pidfd_open(owner), select.POLLIN)
    except ProcessLookupError:
        return
    except OSError:
        pass  # no pidfds here: the pipe must do
    if os.getppid() != owner:
        return  # it has ended; its pid may be reused by now
    poll.poll()


def clear(folder: str) -> None:
    """Kill the processes that use the folder and remove it; give up after half a minute."""
    entry = os.fsencode(f"{KEPT_FOLDER_VARIABLE}={folder}")
    for _ in range(_LOOKS):
        pids = _others()
        # One that is just being started shows its mark a moment later, which is long where the machine is busy. Asked
        # first: a process that is no longer starting has its variables below.
        starting = any(map(_is_starting, pids))
        users = [pid for pid in pids if _is_marked(pid, entry)]
        for pid in users:
            _kill(pid, entry)
        if not users and not starting and _remove(folder):
            return
        select.poll().poll(_PAUSE_MS)


def _others() -> list[int]:
    own = os.getpid()
    return [int(name) for name in os.listdir("/proc") if name.isdigit() and int(name) != own]  # noqa: PTH208  # pathlib takes 2 MiB


def _is_marked(pid: int, entry: bytes) -> bool:
    return entry in _read(pid, "environ").split(b"\0")


def _is_starting(pid: int) -> bool:
    """Return whether exec has removed a process's old memory and not yet filled the new one, or nearly so.

    The process that has started it continues by then (proc(5): neither environment nor command line can be read).
    """
    if _read(pid, "environ") or _read(pid, "cmdline"):
        return False
    words = _read(pid, "stat").rpartition(b")")[2].split()
    return len(words) > 6 and words[0] not in (b"Z", b"X") and not int(words[6]) & _PF_KTHREAD


def _read(pid: int, name: str) -> bytes:
    try:
        with open(f"/proc/{pid}/{name}", "rb") as file:  # noqa: PTH123  # as above
            return file.read()
    except OSError:
        return b""


def _kill(pid: int, entry: bytes) -> None:
    """Kill a process if it has the mark; it is pinned first, since its pid may be reused."""
    try:
        pidfd = os.pidfd_open(pid)
    except OSError:
        pidfd = -1
    try:
        if _is_marked(pid, entry):
            os.kill(pid, _SIGKILL)
    except OSError:
        return  # ended this instant
    finally:
        if pidfd >= 0:
            os.close(pidfd)


def _remove(folder: str) -> bool:
    """Remove the folder with its content; return whether it is gone."""
    for path, folders, files in os.walk(folder, topdown=False):
        for name in files:
            _attempt(os.unlink, f"{path}/{name}")
        for name in folders:
            inner = f"{path}/{name}"
            _attempt(os.unlink if os.path.islink(inner) else os.rmdir, inner)  # noqa: PTH114  # as above
    _attempt(os.rmdir, folder)
    return not os.path.lexists(folder)


def _attempt(act: Callable[[str], None], path: str) -> None:
    try:
        act(path)
    except OSError:
        return  # gone already, or tried again


TYPE_CHECKING = False  # importing typing would cost what the process takes in all
if TYPE_CHECKING:
    from collections.abc import Callable


if __name__ == "__main__":
    main()
