"""`TORCHELASTIC_ENABLE_FILE_TIMER` of one run: nothing at all where it is not set."""

import os
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from elastic_core.agent.parts import Workers
from elastic_core.errors import ConfigError
from elastic_core.failure.reporter import Reporter
from elastic_core.launcher.observers import Observers
from elastic_core.options.settings import RunSettings
from elastic_core.processes.spec import WorkerLaunch, WorkerPaths
from elastic_core.reactor import Reactor
from elastic_core.types import Failure, Round

if TYPE_CHECKING:
    from elastic_core.agent.watch.hang_report import HangReport
    from elastic_core.agent.watch.stack_collector import StackFile
    from elastic_core.agent.watch.timer_expiry import TimerExpiry
    from elastic_core.agent.watch.timer_watch import TimerWatch
    from elastic_core.timer.file_request import FileTimerRequest
    from elastic_core.timer.pipe import TimerPipe

FOLDER: Final = "timers"
STARTED: Final = "watchdog started"
STOPPED: Final = "watchdog stopped"


class TimerWatching:
    """The timers of a run's workers.

    Args:
        settings: The run's.
        reactor: The loop.
        run_dir: Where the pipe is, unless the user has named one, and where stacks go.
        reporter: The voice of the run.
        observers: Hear of what the watchdog does.
        on_hang: Called with what makes a failure of an expiry, to be called if that is wanted.
        sources: Returns for each live worker its pid, that of the process to look at, and where it writes its stacks.
        send: Signals a worker, by local rank.

    Raises:
        ConfigError: the pipe can't be made.
    """

    def __init__(
        self,
        settings: RunSettings,
        *,
        reactor: Reactor,
        run_dir: Path,
        reporter: Reporter,
        observers: Observers,
        on_hang: Callable[[Callable[[], Failure]], None],
        sources: "Callable[[], Mapping[int, tuple[int, int, StackFile | None]]]",
        send: Callable[[int, int], None],
    ) -> None:
        """Open the pipe."""
        self._reporter = reporter
        self._observers = observers
        self._on_hang = on_hang
        self._round: Round | None = None
        self._begun = False
        self._watch: TimerWatch | None = None
        self._expiry: TimerExpiry | None = None
        self._folder = run_dir / FOLDER
        self._path = ""
        if not settings.watch.file_timer:
            return
        from elastic_core.agent.watch import timer_expiry, timer_watch

        pipe = self._pipe(settings.watch.timer_file)
        self._path = pipe.path
        self._expiry = timer_expiry.TimerExpiry(
            reactor,
            folder=run_dir / "hang",
            sources=sources,
            on_hang=self._hung,
            send=send,
            heard=self._tell,
            notice=reporter.notice,
        )
        self._watch = timer_watch.TimerWatch(
            reactor,
            pipe,
            on_overdue=self._expiry.take,
            notice=reporter.notice,
            heeds=settings.workers.debug_rank is None,
        )

    # --- the pipe

    def _pipe(self, chosen: str) -> "TimerPipe":
        """Return the pipe that was named, else one of our own: a run within a run has the name of the outer's."""
        from elastic_core.timer.pipe import PipeInUseError, TimerPipe

        try:
            if chosen:
                try:
                    return TimerPipe(os.path.abspath(chosen))  # noqa: PTH100  # workers may be started elsewhere
                except PipeInUseError:
                    self._reporter.notice(f"TORCHELASTIC_TIMER_FILE={chosen!r}: another agent reads it")
            return TimerPipe(self._own_path())
        except OSError as err:
            where = chosen or str(self._folder)
            what = f"TORCHELASTIC_ENABLE_FILE_TIMER: no pipe can be made at {where!r} ({err.strerror or err})"
            raise ConfigError(what, hint="TORCHELASTIC_TIMER_FILE with a new name in a directory of yours") from err

    def _own_path(self) -> str:
        from elastic_core.control_plane.paths import check_directory

        self._folder.mkdir(0o700, exist_ok=True)
        check_directory(self._folder)
        return str(self._folder / f"{os.getpid()}.pipe")

    # --- a round

    def with_files(self, paths: dict[int, WorkerPaths], round_: Round) -> dict[int, WorkerPaths]:
        """Return the files of a round's workers with the pipe."""
        self._round = round_
        if not self._path:
            return paths
        return {rank: replace(own, timer_file=self._path) for rank, own in paths.items()}

    def over(self, workers: Workers) -> Workers:
        """Return the workers as the agent is to have them."""
        if self._watch is None:
            return workers
        from elastic_core.agent.watch.watched_workers import WatchedWorkers

        return WatchedWorkers(workers, self)

    def begin(self, launches: Iterable[WorkerLaunch], pids: Mapping[int, int]) -> None:
        """Begin to heed workers that were just started."""
        if self._watch is None or self._expiry is None or self._round is None:
            return
        self._expiry.begin(self._round)
        self._watch.begin(launches, pids)
        if not self._begun:
            self._begun = True
            self._tell(STARTED)

    def ended(self, local_rank: int) -> None:
        """Take a worker's end."""
        if self._watch is not None and self._expiry is not None:
            self._watch.ended(local_rank)
            self._expiry.ended(local_rank)

    def end(self) -> None:
        """Heed nobody any longer: they are being stopped."""
        if self._watch is not None and self._expiry is not None:
            self._watch.end()
            self._expiry.end()

    def helpers(self) -> frozenset[int]:
        """Return the pids of this process's children that are no workers."""
        return frozenset() if self._expiry is None else self._expiry.helpers()

    def close(self) -> None:
        """Remove the pipe, and tell; idempotent."""
        if self._watch is None:
            return
        self.end()
        self._watch.close()
        self._watch = None
        with suppress(OSError):  # it is not ours, or was never made
            self._folder.rmdir()
        if self._begun:
            self._tell(STOPPED)

    # --- what happens

    def _tell(self, name: str, request: "FileTimerRequest | None" = None) -> None:
        from elastic_core.agent.feed import WatchdogAct

        act = WatchdogAct(name=name)
        if request is not None:
            act = WatchdogAct(
                name=name,
                worker_pid=request.worker_pid,
                scope_id=request.scope_id,
                expiration_time=request.expiration_time,
                signal=request.signal,
            )
        self._observers.observe(act)

    def _hung(self, report: "Callable[[], HangReport]", send: Callable[[], None]) -> bool:
        round_, wanted = self._round, False

        def examine() -> Failure:
            from elastic_core.agent.watch.hang_evidence import report_hang

            nonlocal wanted
            wanted = True
            assert round_ is not None
            failure = report_hang(self._reporter, round_, report())
            send()
            return failure

        self._on_hang(examine)
        return wanted
