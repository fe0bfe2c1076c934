"""The hook that lets workers save before a planned stop. It is on in every run, for scripts that call `should_stop`."""

import os
import signal
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import ClassVar, Final

from elastic_core.api import (
    SYSTEM_CLOCK,
    AgentHook,
    AgentStarted,
    Clock,
    HookSettings,
    LaunchChange,
    Launches,
    OptionSpec,
    Power,
    Record,
    RunTimer,
    WorkersStarting,
    WorkersStopping,
    encode_json,
)
from elastic_core.api.feed import Agreed, Answer, StopPlanned
from elastic_train import holding
from elastic_train.options import SAVE_SIGNAL, SAVE_TIMEOUT
from elastic_train.progress import WorkerProgress, progress_answer, round_asked, step_above, steps_answer
from elastic_train.worker_pages import WorkerPages

OFFER: Final = "planned-stops"
"""The name under which other hooks of this agent find `Saving` (`RunHandle.offers`)."""
PROGRESS: Final = "planned-stops-progress"
STEPS: Final = "planned-stops-steps"
"""The name under which they find `progress.Progress`. Parameters: `above`, a step, and `round`."""
STARTUP: Final = ("elastic_train.next_round:begin",)


class Saving(Record, frozen=True, kw_only=True):
    """The progress of this node's workers, as far as they call `should_stop`."""

    asks: bool
    """Whether a worker calls `should_stop`, or every worker is waited for."""
    steps: int | None
    """The most steps that a worker has made since its start. `None` means that no worker has named a step."""
    saved: bool
    """Whether the workers have saved for a planned stop of this round."""
    within_s: float
    """How long workers have to save before a planned stop, in seconds."""


class PlannedStops(AgentHook):
    """Holds a planned stop until the workers of all nodes have saved, at the same step."""

    api_version: ClassVar[int] = 1
    powers: ClassVar[frozenset[Power]] = frozenset({Power.RUN, Power.LAUNCHES, Power.HOLDS})
    options: ClassVar[Sequence[OptionSpec]] = (SAVE_TIMEOUT, SAVE_SIGNAL)
    clock: Clock = SYSTEM_CLOCK

    def __init__(self, settings: HookSettings) -> None:
        """Hold nothing yet."""
        super().__init__(settings)
        given, name = settings.options.get("save_timeout"), settings.options.get("save_signal")
        self._named = "--shutdown-timeout" if given is None else "--save-timeout"
        self._limit_s = settings.shutdown_timeout_s if given is None else settings.option("save_timeout", float)
        self._signal = signal.Signals[f"SIG{str(name).upper().removeprefix('SIG')}"] if name else None
        self._all_count = given is not None or self._signal is not None
        self._pages: WorkerPages | None = None
        self._hold: holding.Hold | None = None
        self._timer: RunTimer | None = None
        self._saved = False
        self._renewing = threading.Lock()
        """Guards the pages' change from one round to the next, for readers of the progress, and both rounds below."""
        self._round: int | None = None
        self._last: tuple[int | None, Mapping[int, WorkerProgress]] = (None, {})
        """The round before, and its workers' progress."""

    def on_agent_started(self, event: AgentStarted) -> None:
        """Offer the workers' progress to other hooks of this agent."""
        self.run.offer(OFFER, lambda parameters: self._answer())
        self.run.offer(PROGRESS, self._progress)
        self.run.offer(STEPS, lambda parameters: self._last_steps())
        self.run.track_progress(lambda: None if self._pages is None else self._pages.furthest_step())

    def _answer(self) -> Answer:
        """Return the workers' progress. Threading: any."""
        pages = self._pages
        found = Saving(
            asks=pages is not None and (self._all_count or pages.looked_at()),
            steps=None if pages is None else pages.steps_made(),
            saved=self._saved,
            within_s=self._limit_s,
        )
        return Answer(content=encode_json(found).decode() + "\n", content_type="application/json")

    def _progress(self, parameters: Mapping[str, str]) -> Answer:
        """Return the workers' steps, saves and restores. They stay until the next workers start. Threading: any.

        Parameters: `above`: the workers of this round note the time of their first step above this one. `round`: the
        number of this round or of the one before, whose last progress is kept. Other rounds have no workers here.
        """
        above, index = step_above(parameters), round_asked(parameters)
        with self._renewing:
            if self._pages is not None and above is not None:
                self._pages.note_above(above)
            if index is None or index == self._round:
                return progress_answer({} if self._pages is None else self._pages.progress())
            last, progress = self._last
            return progress_answer(progress if index == last else {})

    def _last_steps(self) -> Answer:
        """Return the last steps of this round's workers, with their times. Threading: any."""
        with self._renewing:
            return steps_answer({} if self._pages is None else self._pages.step_times())

    @property
    def hold_s(self) -> float:
        """The time that workers have to save. 0 means that no worker calls `should_stop`."""
        pages = self._pages
        return self._limit_s if pages is not None and (self._all_count or pages.looked_at()) else 0.0

    # --- the workers of a round

    def on_workers_starting(self, event: WorkersStarting) -> Launches | None:
        """Give every worker a page of its own."""
        if event.asked_again or event.dry_run:
            return None
        self._hold, self._saved = None, False
        try:
            with self._renewing:
                self._last = (self._round, {} if self._pages is None else self._pages.progress())
                self._round = event.round.index
                self._renew_pages(event.round.local_world_size, Path(self.run.run_dir()))
        except OSError as err:
            self.run.notice(f"workers will not know of planned stops: {err.strerror or err}")
            return None
        assert self._pages is not None
        places = self._pages.places()
        # In the first round it has no effect, but a process that is kept has the module then, when all ranks wait.
        startup = STARTUP if self.settings.may_restart else ()
        return Launches(
            workers={rank: LaunchChange(environment=place, startup=startup) for rank, place in places.items()}
        )

    def _renew_pages(self, count: int, run_dir: Path) -> None:
        """Prepare unused pages, in the places of the last round's pages, which spares know."""
        if self._pages is not None and self._pages.fit(count, run_dir):
            self._pages.renew()
            return
        self._forget()
        self._pages = WorkerPages(count, run_dir, all_count=self._all_count)

    def on_workers_stopping(self, event: WorkersStopping) -> None:
        """Forget a stop that is no longer held, for any reason."""
        self._hold = None

    def close(self) -> None:
        """Release the pages."""
        self._forget()

    def _forget(self) -> None:
        self._hold = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._pages is not None:
            self._pages.close()
            self._pages = None

    # --- a stop that is held

    def on_stop_planned(self, event: StopPlanned) -> None:
        """Notify the workers, and read their progress."""
        if self._pages is None:
            self.run.release_stop()
            return
        named = self._named if event.hold_s >= self._limit_s else "its deadline"
        self._hold = holding.Hold(began_s=self.clock.monotonic_s(), limit_s=event.hold_s, named=named)
        self._pages.ask(event.reason, event.hold_s)
        self.run.record("save_asked", {"round": event.round_index, "reason": event.reason, "within_s": event.hold_s})
        self._send_signal()
        self._look()

    def on_agreed(self, event: Agreed) -> None:
        """Carry out what all nodes have agreed."""
        if self._hold is not None:
            self.run.record("save_agreed", {"topic": event.topic, "value": event.value})
            self._saved = self._saved or event.topic == holding.Topic.SAVED
            self._do(lambda hold: holding.take(hold, event.topic, event.value))

    def _look(self) -> None:
        self._timer = None
        pages = self._pages
        if self._hold is None or pages is None:
            return
        ranks = {worker.local_rank: worker.global_rank for worker in self.run.workers()}
        seen = pages.read(ranks)
        self._do(lambda hold: holding.look(hold, seen, self.clock.monotonic_s()))
        if self._hold is not None:
            self._timer = self.run.call_later(holding.PAUSE_S, self._look)

    def _do(self, move: Callable[[holding.Hold], tuple[holding.Hold, tuple[holding.Action, ...]]]) -> None:
        assert self._hold is not None
        self._hold, actions = move(self._hold)
        for action in actions:
            match action:
                case holding.Tell(step=step):
                    if self._pages is not None:
                        self._pages.answer(step)
                case holding.State(topic=topic, value=value):
                    self.run.agree(topic, value)
                case holding.Release(why=why):
                    self._release(why)

    def _release(self, why: str) -> None:
        self._hold = None
        for line in (why, *(self._pages.remarks() if self._pages is not None else ())):
            if line:
                self.run.notice(line, named=False)
        self.run.record("save_released", {"reason": why})
        self.run.release_stop()

    def _send_signal(self) -> None:
        if self._signal is None:
            return
        for worker in self.run.workers():
            with suppress(ProcessLookupError, ChildProcessError):
                # Not reaped yet, so its pid is not reused. Workers that a starter has elsewhere are left alone.
                os.waitid(os.P_PID, worker.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
                os.kill(worker.pid, self._signal)
