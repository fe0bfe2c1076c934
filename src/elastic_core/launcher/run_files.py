"""The run directory with the files of each round: made ahead, and ended."""

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

    Threading: the supervisor's thread; once there is a disk, files are made on its thread.

    Args:
        run_dir: Exists.
        logs: Lie in it, or elsewhere.
    """

    def __init__(self, run_dir: RunDirectory, logs: RunLogs) -> None:
        self._run_dir = run_dir
        self._logs = logs
        self._used = self._finished = self._lost = False
        self._prepared: dict[int, WorkerPaths] | Exception | None = None

    def begin(self, disk: Disk, *, log: Logger) -> None:
        """Take where files are made from now on.

        Args:
            disk: Runs what touches files.
            log: Takes lines for people.
        """
        self._disk, self._log = disk, log

    def discard_unused(self) -> None:
        """Remove what was made for workers of which none was ever to start, unless a report is in it."""
        if not self._used:
            self._logs.discard_empty()
            self._run_dir.finish(success=True)

    def prepare(
        self, round_: Round, done: Callable[[], None], *, pipes: Callable[[Iterable[str]], None] | None
    ) -> None:
        """Have the directories, log files and pipes of a round's workers made.

        `pipes` makes those of their error files; None: they get none.
        """

        def work() -> dict[int, WorkerPaths]:
            if self._finished:  # the run has ended while the disk was busy, or slow
                return {}
            try:
                paths = self._logs.round_paths(round_)
            except ConfigError:
                if not self._used or self._run_dir.path.exists():
                    raise
                # The directory of a run that trains was removed (a logout takes $XDG_RUNTIME_DIR with it), and can't
                # be made again where it was: that is no reason to end the training.
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
        """Return the files of workers that are about to be started; raises what their preparation raised."""
        self._used = True
        files, self._prepared = self._prepared, None
        if isinstance(files, Exception):
            raise files
        return self._logs.round_paths(round_) if files is None else files

    def finish(self, *, success: bool, record: Callable[[], None], within_s: float) -> None:
        """End the logs, and remove the run directory unless something is to stay in it.

        `record` writes down how the run has ended.
        """
        self._finished = True

        def finish() -> None:
            record()
            self._logs.finish()
            self._run_dir.finish(success=success)

        with suppress(TimeoutError):  # the disk has printed it
            self._disk.wait(str(self._run_dir.path), finish, within_s=within_s)
