"""The hook behind `TORCHELASTIC_ENABLE_FILE_TIMER`."""

import os
import stat
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import ClassVar, Final

from elastic_core.api import (
    AgentHook,
    AgentStarted,
    AgentStopped,
    ConfigError,
    FailureSeen,
    HookSettings,
    LaunchChange,
    Launches,
    OptionSpec,
    Power,
    WorkerEnded,
    WorkersStarted,
    WorkersStarting,
    WorkersStopping,
)
from elastic_torchrun.options import FILE_TIMER
from elastic_torchrun.timer.late_workers import LateWorkers, record
from elastic_torchrun.timer.pipe import PipeInUseError, TimerPipe
from elastic_torchrun.timer.worker_timers import Overdue, WorkerTimers

VARIABLE: Final = FILE_TIMER.variable
FILE_VARIABLE: Final = "TORCHELASTIC_TIMER_FILE"
FOLDER: Final = "timers"
STARTED: Final = "watchdog started"
STOPPED: Final = "watchdog stopped"


class FileTimers(AgentHook):
    """Gives workers a pipe, and ends those that exceed the time limits that they set."""

    api_version: ClassVar[int] = 1
    powers: ClassVar[frozenset[Power]] = frozenset({Power.LAUNCHES, Power.RUN})
    options: ClassVar[Sequence[OptionSpec]] = (FILE_TIMER,)

    def __init__(self, settings: HookSettings) -> None:
        """Make the pipe.

        Raises:
            ConfigError: it can't be made, or the variable is malformed.
        """
        super().__init__(settings)
        text = str(settings.options["file_timer"])
        if text not in ("0", "1"):
            raise ConfigError(f"{VARIABLE}: {text!r}; expected 1 or 0", hint=f"{VARIABLE}=1, or unset it")
        self._folder = Path(settings.run_dir) / FOLDER
        self._notices: list[str] = []
        self._began = False
        self._timers: WorkerTimers | None = None
        self._late: LateWorkers | None = None
        if text == "1" and not settings.dry_run:
            pipe = self._pipe(os.environ.get(FILE_VARIABLE, ""))
            self._launch = LaunchChange(environment={FILE_VARIABLE: pipe.path})
            self._timers = WorkerTimers(
                pipe, on_overdue=self._overdue, notice=self._notice, limits=not settings.debugging
            )

    # --- the pipe

    def _pipe(self, chosen: str) -> TimerPipe:
        """Return the pipe in the variable, else a new one: a run within a run has the name of the outer run's."""
        try:
            if chosen:
                try:
                    return TimerPipe(os.path.abspath(chosen))  # noqa: PTH100  # workers may be started elsewhere
                except PipeInUseError:
                    self._notices.append(f"{FILE_VARIABLE}={chosen!r}: another agent reads it")
            return TimerPipe(self._own_path())
        except OSError as err:
            where = chosen or str(self._folder)
            what = f"{VARIABLE}: no pipe can be made at {where!r} ({err.strerror or err})"
            raise ConfigError(what, hint=f"{FILE_VARIABLE} with a new name in a directory of yours") from err

    def _own_path(self) -> str:
        self._folder.mkdir(0o700, parents=True, exist_ok=True)
        found = self._folder.lstat()
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o022:
            what = f"{str(self._folder)!r} is not this user's alone"
            raise ConfigError(what, hint="a directory of your own with mode 0700")
        return str(self._folder / f"{os.getpid()}.pipe")

    # --- the run

    def on_agent_started(self, event: AgentStarted) -> None:
        """Begin to read."""
        if self._timers is not None:
            self._late = LateWorkers(self.run, folder=Path(event.run_dir) / "hang")
            self._timers.start()
        for text in self._notices:
            self.run.notice(text, named=False)

    def on_workers_starting(self, event: WorkersStarting) -> Launches | None:
        """Pass the pipe to each worker."""
        if self._timers is None:
            return None
        self._timers.expect()
        return Launches(workers=dict.fromkeys(range(event.round.local_world_size), self._launch))

    def on_workers_started(self, event: WorkersStarted) -> None:
        """Accept their timers."""
        if self._timers is None or self._late is None:
            return
        self._late.begin(event.round)
        self._timers.begin(dict(enumerate(event.pids)))
        if not self._began:
            self._began = True
            record(self.run, STARTED)

    def on_worker_exited(self, event: WorkerEnded) -> None:
        """Forget its timers."""
        if self._timers is not None and self._late is not None:
            self._timers.ended(event.exit.local_rank)
            self._late.ended(event.exit.local_rank)

    def on_failure(self, event: FailureSeen) -> None:
        """Note that the failure of a late worker is being decided."""
        if self._late is not None:
            self._late.taken(event.failure)

    def on_workers_stopping(self, event: WorkersStopping) -> None:
        """Accept no more timers."""
        if self._timers is not None and self._late is not None:
            self._timers.end()
            self._late.end()

    def on_agent_stopped(self, event: AgentStopped) -> None:
        """Remove the pipe."""
        self.close()
        if self._began:
            record(self.run, STOPPED)

    def close(self) -> None:
        """Remove the pipe; idempotent."""
        if self._timers is not None:
            self._timers.close()
            with suppress(OSError):  # it is not ours, or was never made
                self._folder.rmdir()

    # --- from the thread of the timers

    def _overdue(self, found: tuple[Overdue, ...]) -> None:
        self.run.call_later(0.0, lambda: None if self._late is None else self._late.take(found))

    def _notice(self, text: str) -> None:
        self.run.notice(text, named=False)
