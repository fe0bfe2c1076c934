"""Processes that set timers. Each is held so that its pid can't be confused with a later process's."""

import logging
import os
import select
import signal
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from errno import ENOSYS, ESRCH
from typing import Final

_NONE: Final = -1
"""This kernel has no pidfds; pids are used instead."""

_log = logging.getLogger(__name__)


class Processes:
    """By pid. Threading: one thread."""

    def __init__(self) -> None:
        """Hold none yet. One descriptor is reserved for a time at which the process has no other left."""
        self._fds: dict[int, int] = {}
        self._starts: dict[int, int] = {}
        """Where there was no descriptor for it: when the process was started, which tells it from others."""
        self._reserve = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
        self._warned = False

    def hold(self, pid: int) -> bool:
        """Hold a process. Return true if it is newly held, so that older data about this pid are about another process.

        A process that has ended already can't be held: a later process with its pid is then unknown.
        """
        if pid in self._fds or pid in self._starts:
            if self.lives(pid):
                return False
            self.let_go(pid)
        try:
            self._fds[pid] = os.pidfd_open(pid)
        except OSError as err:
            if err.errno == ENOSYS:
                self._fds[pid] = _NONE
                return True
            return err.errno != ESRCH and self._hold_by_start(pid, err)
        return True

    def _hold_by_start(self, pid: int, error: OSError) -> bool:
        start_ticks = self._start_of(pid)
        if start_ticks is not None:
            self._starts[pid] = start_ticks
        elif not self._warned:
            self._warned = True
            _log.warning("a timer of process %s is without effect: it can't be held (%s)", pid, error.strerror)
        return start_ticks is not None

    def _start_of(self, pid: int) -> int | None:
        with self._one_descriptor():
            return _start_of(pid)

    @contextmanager
    def _one_descriptor(self) -> Iterator[None]:
        if self._reserve >= 0:
            os.close(self._reserve)
        try:
            yield
        finally:
            try:
                self._reserve = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
            except OSError:  # another thread was faster: the next time may be better
                self._reserve = -1

    def lives(self, pid: int) -> bool:
        """Return whether the held process still runs."""
        if pid in self._starts:
            return self._start_of(pid) == self._starts[pid]
        fd = self._fds.get(pid)
        return fd is not None and (_exists(pid) if fd == _NONE else not _readable(fd))

    def send(self, pid: int, signum: int) -> None:
        """Signal it if it still runs.

        Raises:
            OSError: it may not be signalled, or there is no such signal.
        """
        if not self.lives(pid):
            return
        fd = self._fds.get(pid, _NONE)
        with suppress(ProcessLookupError):  # it has ended just now
            if fd == _NONE:
                os.kill(pid, signum)
            else:
                signal.pidfd_send_signal(fd, signum)

    def let_go(self, pid: int) -> None:
        """Release it."""
        self._starts.pop(pid, None)
        fd = self._fds.pop(pid, None)
        if fd is not None and fd != _NONE:
            os.close(fd)

    def keep(self, pids: Collection[int]) -> None:
        """Release all others."""
        for pid in [pid for pid in (*self._fds, *self._starts) if pid not in pids]:
            self.let_go(pid)

    def close(self) -> None:
        """Release all processes and descriptors; idempotent."""
        self.keep(())
        if self._reserve >= 0:
            os.close(self._reserve)
            self._reserve = -1


def _start_of(pid: int) -> int | None:
    """Return a process's start time, in the kernel's ticks. `None` if it has ended. Source: proc_pid_stat(5)."""
    try:
        with open(f"/proc/{pid}/stat", "rb", buffering=0) as file:  # noqa: PTH123 -- one descriptor, and no more
            fields = file.read(4096).rpartition(b")")[2].split()
    except OSError:
        return None
    return None if fields[0] in b"ZX" else int(fields[19])


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
