"""The evidence of one round's workers on this node: error files and the ends of logs, each read and classified once."""

import os
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path

from msgspec.structs import replace

from elastic_core.failure.classify import is_timed, judge
from elastic_core.failure.reported import Reported
from elastic_core.logger import Logger
from elastic_core.processes.errors.reader import read_error
from elastic_core.processes.errors.record_pipe import BEGUN_SUFFIX
from elastic_core.processes.output.disk import Disk
from elastic_core.processes.spec import WorkerPaths
from elastic_core.types import FailedWorker, FailureClass, Origin, Record, WorkerExit

STDERR_TAIL_BYTES = 16_384
LOG_TAIL_BYTES = 4_096
EVIDENCE_S = 3.0
"""How long reading the files of an ended worker may take, in seconds."""


class Evidence(Record, frozen=True, kw_only=True):
    """The known evidence of a round's failure at one moment."""

    failed: tuple[FailedWorker, ...]
    finished_count: int


class WorkerEvidence:
    """The evidence of a round's workers. Threading: the supervisor's thread; `read_ahead` reads on the disk's thread.

    `paths` are by local rank. `script` is `None` if the workers run no script.
    """

    def __init__(self, paths: Mapping[int, WorkerPaths], *, script: str | None) -> None:
        self._paths = paths
        self._script = script
        self._judged: dict[int, FailedWorker] = {}
        self._begun: dict[int, int] = {}
        """When each worker began to record a failure, as of the last `read_ahead`, in nanoseconds since the epoch."""

    def read_ahead(self, exit: WorkerExit, done: Callable[[], None], *, disk: Disk, log: Logger) -> None:
        """Read the evidence of a worker that ended, then call `done`, after `EVIDENCE_S` even if the disk hangs."""
        paths = self._paths[exit.local_rank]

        def take(found: tuple[FailedWorker, dict[int, int]] | None, error: Exception | None) -> None:
            if found is None:
                reason = getattr(error, "strerror", None) or error
                log.notice(f"what local rank {exit.local_rank} left beside {paths.error_file!r} is not read: {reason}")
                found = judge(exit, None), {}
            self._judged[exit.local_rank], self._begun = found
            done()

        # A failure that precedes this one has begun to be recorded before this worker ended, and so before this job.
        disk.run(paths.error_file, lambda: (self._judge(exit, paths), self._begun_now()), take, within_s=EVIDENCE_S)

    def begun_ns(self, local_ranks: Iterable[int]) -> list[int]:
        """Return when these workers began to record a failure, in nanoseconds since the epoch; 0 means not known."""
        return [self._begun[rank] for rank in local_ranks if rank in self._begun]

    def _begun_now(self) -> dict[int, int]:
        found = {rank: _begun_ns(paths) for rank, paths in self._paths.items()}
        return {rank: at_ns for rank, at_ns in found.items() if at_ns is not None}

    def gather(self, exits: Iterable[WorkerExit], reported: Reported | None) -> Evidence:
        """Return the evidence of the exits, and of workers that a report blames, even if they have not ended."""
        failed, finished = [], 0
        ends = {exit.local_rank: exit for exit in exits}
        if reported is not None:
            for rank in reported.blamed:
                exit = ends.pop(rank, None) or reported.exit_of(rank)
                blamed = reported.worker(rank, exit, self._logs_of(rank))
                failed.append(self._failed_before(exit) or blamed)
        for exit in ends.values():
            if exit.code == 0 and exit.stop_signal is None:
                finished += 1
                continue
            worker = self._judged.get(exit.local_rank)
            if worker is None or worker.exit != exit:
                worker = self._judged[exit.local_rank] = self._judge(exit, self._paths.get(exit.local_rank))
            if exit.code != 0 or worker.origin is Origin.STOPPED:
                failed.append(worker)
        return Evidence(failed=tuple(failed), finished_count=finished)

    def _failed_before(self, exit: WorkerExit) -> FailedWorker | None:
        """Return the part of a worker that failed and now hangs: its interpreter waits for a peer or a device.

        Only its error record is read, because the end of its stderr may also contain warnings.
        """
        paths = self._paths.get(exit.local_rank)
        if paths is None or not paths.error_file:
            return None
        ended = exit if exit.code else replace(exit, code=1)
        error = read_error(Path(paths.error_file), None, None, exit=ended)
        if not is_timed(error):
            return None
        worker = judge(ended, error, log_paths=self._logs_of(exit.local_rank))
        return None if worker.origin is Origin.STOPPED else worker

    def _judge(self, exit: WorkerExit, paths: WorkerPaths | None) -> FailedWorker:
        if paths is None:
            return judge(exit, None)
        tail = _tail(paths.stderr.file)
        error = read_error(
            Path(paths.error_file) if paths.error_file else None,
            Path(paths.fault_file) if paths.fault_file else None,
            tail,
            exit=exit,
        )
        worker = judge(exit, error, log_paths=_logs_in(paths), script_missing=self._script_missing(exit))
        if tail:
            worker = replace(worker, log_tail=tail[-LOG_TAIL_BYTES:].decode(errors="replace"))
        if worker.failure_class is FailureClass.EXIT and worker.origin is not Origin.STOPPED and _on_full_disk(paths):
            # A worker that can't write its own log can't record its error either.
            return replace(worker, summary=f"{worker.summary}; the disk of its log and error files is full")
        return worker

    def _logs_of(self, local_rank: int) -> tuple[str, ...]:
        paths = self._paths.get(local_rank)
        return () if paths is None else _logs_in(paths)

    def _script_missing(self, exit: WorkerExit) -> bool:
        return exit.code == 2 and self._script is not None and not os.access(self._script, os.R_OK)


def _begun_ns(paths: WorkerPaths) -> int | None:
    """Return when a worker began to record a failure; 0 if the record is complete, because it has its own time."""
    if not paths.error_file:
        return None
    begun = paths.error_file + BEGUN_SUFFIX
    for path in (paths.error_file, paths.fault_file, begun):
        with suppress(OSError):
            found = Path(path).stat()
            if found.st_size or path == begun:
                return 0 if path == paths.error_file else found.st_mtime_ns
    return None


def _logs_in(paths: WorkerPaths) -> tuple[str, ...]:
    return tuple(path for path in (paths.stderr.file, paths.stdout.file) if path and Path(path).exists())


def _on_full_disk(paths: WorkerPaths) -> bool:
    """Return whether the disk of this worker's files is full."""
    for file in (paths.stderr.file, paths.stdout.file, paths.error_file):
        with suppress(OSError):
            if file and os.statvfs(Path(file).parent).f_bavail == 0:
                return True
    return False


def _tail(path: str | None) -> bytes | None:
    """Return the end of a log file; `None` if it does not exist, which is no error here.

    If the log was rotated just before the end, the end of the rotated file is included.
    """
    if path is None:
        return None
    tail = _end_of(path, STDERR_TAIL_BYTES)
    if tail is None or len(tail) == STDERR_TAIL_BYTES:
        return tail
    return (_end_of(f"{path}.1", STDERR_TAIL_BYTES - len(tail)) or b"") + tail


def _end_of(path: str, most_bytes: int) -> bytes | None:
    try:
        with Path(path).open("rb") as file:
            file.seek(0, os.SEEK_END)
            file.seek(max(0, file.tell() - most_bytes))
            return file.read(most_bytes)  # other processes may still write to it
    except OSError:
        return None
