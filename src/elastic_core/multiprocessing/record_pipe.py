"""The pipes by which workers' interpreters report that an uncaught exception is on record, before they have ended."""

import os
from collections.abc import Callable
from contextlib import suppress
from functools import partial

from elastic_core.multiprocessing.spec import WorkerLaunch
from elastic_core.reactor import Reactor

ERROR_FILE_VARIABLE = "TORCHELASTIC_ERROR_FILE"
HOOKS_VARIABLE = "ELASTIC_WORKER_HOOKS"
RECORD_PIPE_SUFFIX = ".pipe"
"""These are as in `worker.startup`, which the agent does not import."""
_LONGEST_REPORT_BYTES = 64


class RecordPipes:
    """The agent's ends, one beside each error file of a round.

    Args:
        reactor: The loop.
        on_record: Called with the pid of a process that has recorded an exception, and with the local rank whose pipe
            it came through: a child of a worker that is no interpreter reports there, too.
    """

    def __init__(self, reactor: Reactor, on_record: Callable[[int, int], None]) -> None:
        """Make none yet."""
        self._reactor = reactor
        self._on_record = on_record
        self._open: dict[int, str] = {}

    def open(self, launch: WorkerLaunch) -> None:
        """Make a worker's before it is started; where there can be none, its end alone tells that it failed."""
        error_file = launch.env.get(ERROR_FILE_VARIABLE)
        if not error_file or HOOKS_VARIABLE not in launch.env:
            return
        path = error_file + RECORD_PIPE_SUFFIX
        with suppress(OSError):
            os.mkfifo(path, 0o600)
            # With a writing end of our own it never ends, so that it wakes us for a report only.
            fd = os.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
            self._open[fd] = path
            self._reactor.add_reader(fd, partial(self._read, fd, launch.local_rank))

    def _read(self, fd: int, local_rank: int) -> None:
        with suppress(BlockingIOError, ValueError):  # read already; no report of ours
            self._on_record(int(os.read(fd, _LONGEST_REPORT_BYTES)), local_rank)

    def close(self) -> None:
        """Remove them; idempotent."""
        for fd, path in self._open.items():
            self._reactor.remove_reader(fd)
            os.close(fd)
            with suppress(OSError):  # its directory is gone
                os.unlink(path)  # noqa: PTH108  # a string, as it came
        self._open.clear()
