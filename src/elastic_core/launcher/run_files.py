"""The run directory with the files of each round, wherever it is: made ahead, followed when it has gone, ended."""

from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

from elastic_core.errors import ElasticError
from elastic_core.launcher.logs import RunLogs
from elastic_core.processes.output.disk import Disk
from elastic_core.processes.spec import WorkerPaths
from elastic_core.rundir.directory import RunDirectory
from elastic_core.types import Round


class RunFiles:
    """The files of one run on this node.

    Threading: the supervisor's thread; once there is a disk, files are made and moved on its thread.

    Args:
        run_dir: Exists.
        logs: Lie in it, or elsewhere.
    """

    def __init__(self, run_dir: RunDirectory, logs: RunLogs) -> None:
        self._run_dir = run_dir
        self._logs = logs
        self._used = self._finished = False
        self._prepared: dict[int, WorkerPaths] | Exception | None = None
        self._times_made, self._last_path = run_dir.times_made, run_dir.path

    def begin(self, disk: Disk, *, notice: Callable[[str], None], moved: Callable[[Path], None]) -> None:
        """Take where files are made from now on.

        Args:
            disk: Runs what touches files.
            notice: Takes one line for people.
            moved: Called when the run directory was made anew, with where it is.
        """
        self._disk, self._notice, self._moved = disk, notice, moved

    def discard_unused(self) -> None:
        """Remove what was made for workers of which none was ever to start, unless a report is in it."""
        if not self._used:
            self._logs.discard_empty()
            self._run_dir.finish(success=True)

    def prepare(
        self, round_: Round, done: Callable[[], None], *, pipes: Callable[[Iterable[str]], None] | None
    ) -> None:
        """Have the directories, log files and pipes of a round's workers made, wherever they are.

        `pipes` makes those of their error files; None: they get none.
        """

        def work() -> dict[int, WorkerPaths]:
            if self._finished:  # the run has ended while the disk was busy, or slow
                return {}
            self._run_dir.restore()
            self._logs.move(self._run_dir.path)  # whoever has made it anew, elsewhere perhaps: an incident, say
            paths = self._logs.round_paths(round_)
            self._disk.open_ahead(self._logs.files_of(paths))
            if pipes is not None:
                pipes(own.error_file for own in paths.values())
            return paths

        def take(paths: dict[int, WorkerPaths] | None, error: Exception | None) -> None:
            self._follow()
            self._prepared = paths if error is None else error
            done()

        self._prepared = None
        self._disk.run(str(self._run_dir.path), work, take)

    def take(self, round_: Round) -> dict[int, WorkerPaths]:
        """Return the files of a round's workers, which are about to be started; raises what preparing them has."""
        self._used = True
        files, self._prepared = self._prepared, None
        if isinstance(files, Exception):
            raise files
        return self._logs.round_paths(round_) if files is None else files

    def restore(self) -> bool:
        """Make the run directory again if it has gone; return whether it had since this was last looked at."""
        try:
            self._run_dir.restore()
        except ElasticError as err:  # whoever needs it says what that means
            self._notice(f"the run directory {str(self._run_dir.path)!r} has gone, and can't be made again: {err}")
        return self._follow()

    def _follow(self) -> bool:
        """Go where the run directory has been made again; return whether it has, since last time."""
        if self._run_dir.times_made == self._times_made:
            return False
        before, path = self._last_path, self._run_dir.path
        self._times_made, self._last_path = self._run_dir.times_made, path
        self._notice(
            f"the run directory {str(before)!r} had gone (a cleaner of temporary files, or a logout); "
            + ("made anew" if path == before else f"{str(path)!r} is in its place")
        )
        self._logs.move(path)
        self._moved(path)
        return True

    def finish(self, *, success: bool, record: Callable[[], None], within_s: float) -> None:
        """End the logs, and remove the run directory unless something is to stay in it.

        `record` writes down how the run has ended.
        """
        self._finished = True

        def finish() -> None:
            record()
            self._logs.finish()
            self._run_dir.finish(success=success)

        with suppress(TimeoutError):  # the disk says so
            self._disk.wait(str(self._run_dir.path), finish, within_s=within_s)
