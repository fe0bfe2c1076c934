"""Pipes by which workers' interpreters report a recorded exception before they end."""

import os
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from itertools import islice

from elastic_core.processes.output.disk import MOST_AHEAD, Disk
from elastic_core.processes.spec import WorkerLaunch
from elastic_core.system.reactor import Reactor

ERROR_FILE_VARIABLE = "TORCHELASTIC_ERROR_FILE"
HOOKS_VARIABLE = "ELASTIC_WORKER_HOOKS"
RECORD_PIPE_SUFFIX = ".pipe"
BEGUN_SUFFIX = ".begun"
"""The same as in `worker.startup`, which the agent does not import."""
_LONGEST_REPORT_BYTES = 64


class RecordPipes:
    """The agent's ends of the pipes, one beside each error file of a round. The disk's threads make and remove them.

    `on_record` is called with the pid of a process that has recorded an exception, and with the pipe's local rank.
    If a worker is no interpreter, its children report through its pipe.
    """

    def __init__(self, reactor: Reactor, disk: Disk, on_record: Callable[[int, int], None]) -> None:
        self._reactor = reactor
        self._disk = disk
        self._lane = disk.lane("")  # one lane, so that a name is removed before it is made again
        self._on_record = on_record
        self._ahead: dict[str, int] = {}
        self._open: dict[str, int | None] = {}  # None: not made yet

    def open_ahead(self, error_files: Iterable[str]) -> None:
        """Make the pipes of workers in advance. Called: in a job, before `open`."""
        for path in islice((file + RECORD_PIPE_SUFFIX for file in error_files if file), MOST_AHEAD):
            with suppress(OSError):
                self._ahead[path] = _make(path)

    def open(self, launch: WorkerLaunch) -> None:
        """Watch a worker's pipe, before the worker starts. Without a pipe, only the worker's end shows its failure."""
        error_file = launch.env.get(ERROR_FILE_VARIABLE)
        if not error_file or HOOKS_VARIABLE not in launch.env:
            return
        path = error_file + RECORD_PIPE_SUFFIX
        self._open[path] = None
        watch = partial(self._watch, self._open, path, launch.local_rank)
        if path in self._ahead:
            watch(self._ahead.pop(path), None)
        else:
            self._lane.path = path
            self._disk.run(path, partial(_make, path), watch, lane=self._lane)

    def _watch(
        self, round_: dict[str, int | None], path: str, local_rank: int, fd: int | None, _: Exception | None
    ) -> None:
        if fd is None:
            return
        if round_ is not self._open:  # closed meanwhile
            os.close(fd)
            return
        self._open[path] = fd
        self._reactor.add_reader(fd, partial(self._read, fd, local_rank))

    def _read(self, fd: int, local_rank: int) -> None:
        with suppress(BlockingIOError, ValueError):  # read already, or an invalid report
            self._on_record(int(os.read(fd, _LONGEST_REPORT_BYTES)), local_rank)

    def forget_ahead(self) -> None:
        """Remove the pipes that were made in advance and not used."""
        ahead, self._ahead = self._ahead, {}
        for fd in ahead.values():
            os.close(fd)
        self._remove(list(ahead))

    def close(self) -> None:
        """Remove the pipes of the workers; idempotent."""
        pipes, self._open = self._open, {}
        for fd in pipes.values():
            if fd is not None:
                self._reactor.remove_reader(fd)
                os.close(fd)
        self._remove(list(pipes))

    def _remove(self, paths: list[str]) -> None:
        if paths:
            self._lane.path = paths[0]
            self._lane.put(partial(_unlink, paths))


def _make(path: str) -> int:
    os.mkfifo(path, 0o600)
    # With a writing end in the agent the pipe never ends, so that only a report wakes the loop.
    return os.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)


def _unlink(paths: list[str]) -> None:
    for path in paths:
        with suppress(OSError):  # its directory is gone
            os.unlink(path)  # noqa: PTH108  # a string, as it came
