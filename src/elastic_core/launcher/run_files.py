"""The run directory and the files of each round: prepared in advance, and finished at the end."""

from collections.abc import Callable, Iterable
from contextlib import suppress

from elastic_core.errors import ConfigError
from elastic_core.launcher.logs import RunLogs
from elastic_core.logger import Logger
from elastic_core.processes.output.disk import Disk
from elastic_core.processes.spec import WorkerPaths
from elastic_core.rundir.directory import RunDirectory
from elastic_core.types import Round


class RunFiles:
    """The files of one run on this node.

    Threading: the supervisor's thread; after `begin`, files are made on the disk's thread.

    The run directory exists; the log files are in it or elsewhere.
    """

    def __init__(self, run_dir: RunDirectory, logs: RunLogs) -> None:
        self._run_dir = run_dir
        self._logs = logs
        self._used = self._finished = self._lost = False
        self._prepared: dict[int, WorkerPaths] | Exception | None = None

    def begin(self, disk: Disk, *, log: Logger) -> None:
        """Set the disk that makes files from now on."""
        self._disk, self._log = disk, log

    def discard_unused(self) -> None:
        """If no worker was to start, remove the files, unless there is a report."""
        if not self._used:
            self._logs.discard_empty()
            self._run_dir.finish(success=True)

    def prepare(
        self, round_: Round, done: Callable[[], None], *, pipes: Callable[[Iterable[str]], None] | None
    ) -> None:
        """Make the directories, log files and pipes of a round's workers.

        `pipes` makes the pipes of their error files. `None` means no pipes.
        """

        def work() -> dict[int, WorkerPaths]:
            if self._finished:  # the run ended while the disk was busy or slow
                return {}
            try:
                paths = self._logs.round_paths(round_)
            except ConfigError:
                if not self._used or self._run_dir.path.exists():
                    raise
                # The directory of a running run was removed (a logout removes $XDG_RUNTIME_DIR) and cannot be made
                # again. The training continues without it.
                return {rank: WorkerPaths(error_file="", fault_file="") for rank in range(round_.local_world_size)}
            self._disk.open_ahead(self._logs.files_of(paths))
            if pipes is not None:
                pipes(own.error_file for own in paths.values())
            return paths

        def take(paths: dict[int, WorkerPaths] | None, error: Exception | None) -> None:
            self._prepared = paths if error is None else error
            if paths and not paths[0].error_file and not self._lost:
                self._lost = True
                self._log.notice(
                    f"the run directory {str(self._run_dir.path)!r} has gone, and can't be made again: from now on "
                    "this node leaves no reports, and no log files"
                )
            done()

        self._prepared = None
        self._disk.run(str(self._run_dir.path), work, take)

    def take(self, round_: Round) -> dict[int, WorkerPaths]:
        """Return the files of workers that are about to start. Raises errors of their preparation."""
        self._used = True
        files, self._prepared = self._prepared, None
        if isinstance(files, Exception):
            raise files
        return self._logs.round_paths(round_) if files is None else files

    def finish(self, *, success: bool, record: Callable[[], None], within_s: float) -> None:
        """Finish the logs, and remove the run directory unless something must stay in it.

        `record` records how the run ended.
        """
        self._finished = True

        def finish() -> None:
            record()
            self._logs.finish()
            self._run_dir.finish(success=success)

        with suppress(TimeoutError):  # the disk has reported it
            self._disk.wait(str(self._run_dir.path), finish, within_s=within_s)
