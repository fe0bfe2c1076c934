"""Processes that set timers, each held so that its pid can't come to mean another."""

import os
import select
import signal
from collections.abc import Collection
from contextlib import suppress
from errno import ENOSYS
from typing import Final

_NONE: Final = -1
"""This kernel has no pidfds: then a pid must do."""


class Processes:
    """By pid. Threading: one thread."""

    def __init__(self) -> None:
        """Hold none yet."""
        self._fds: dict[int, int] = {}

    def hold(self, pid: int) -> bool:
        """Hold a process; True: only from now on, so that whatever is known of this pid is about another one.

        One that has ended already can't be held, so that whoever has its pid later is a stranger.
        """
        if pid in self._fds:
            if self.lives(pid):
                return False
            self.let_go(pid)
        try:
            self._fds[pid] = os.pidfd_open(pid)
        except OSError as err:
            if err.errno != ENOSYS:
                return False
            self._fds[pid] = _NONE
        return True

    def lives(self, pid: int) -> bool:
        """Return whether the process that was held still runs."""
        fd = self._fds.get(pid)
        return fd is not None and (_exists(pid) if fd == _NONE else not _readable(fd))

    def send(self, pid: int, signum: int) -> None:
        """Signal it, if it still runs.

        Raises:
            OSError: it may not be signalled, or there is no such signal.
        """
        if not self.lives(pid):
            return
        fd = self._fds[pid]
        with suppress(ProcessLookupError):  # it has ended just now
            if fd == _NONE:
                os.kill(pid, signum)
            else:
                signal.pidfd_send_signal(fd, signum)

    def let_go(self, pid: int) -> None:
        """Hold it no longer."""
        fd = self._fds.pop(pid, None)
        if fd is not None and fd != _NONE:
            os.close(fd)

    def keep(self, pids: Collection[int]) -> None:
        """Hold no others any longer."""
        for pid in [pid for pid in self._fds if pid not in pids]:
            self.let_go(pid)


def _readable(fd: int) -> bool:
    poll = select.poll()  # `select` takes no large descriptors
    poll.register(fd, select.POLLIN)
    return bool(poll.poll(0))


def _exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except OSError:
        return False
    return True
