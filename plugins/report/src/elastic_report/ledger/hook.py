"""The hook that records the ledger."""

import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar, Final

from elastic_core.api import (
    SYSTEM_CLOCK,
    AgentHook,
    AgentStarted,
    AgentStopped,
    HookSettings,
    Power,
    WorkersStarted,
    WorkersStarting,
)
from elastic_core.api.feed import Answer, RunEvent

if TYPE_CHECKING:
    from elastic_report.ledger.recorder import Recorder

BEGIN_AFTER_S: Final = 0.5
"""How long a run must last before anything is loaded or written."""
WAIT_S: Final = 2.0
LEDGER: Final = "ledger"
"""The hook's name, under which the ledger is offered to requests to the agent, and its fields are published."""


class LedgerHook(AgentHook):
    """Records in which state this node spends its time.

    Nothing is loaded or written within the first half second, so the start of a run does not wait for it. A run that
    succeeds within that time has no ledger, unless its run directory is kept.
    """

    api_version: ClassVar[int] = 1
    powers: ClassVar[frozenset[Power]] = frozenset({Power.FEED, Power.RUN})
    without_events: ClassVar[frozenset[str]] = frozenset({"store_call", "fields_published", "metric"})

    def __init__(self, settings: HookSettings) -> None:
        """Record nothing yet."""
        super().__init__(settings)
        self._changed = threading.Condition()
        # Guarded by the condition's lock.
        self._early: list[RunEvent] = []
        self._recorder: Recorder | None = None
        self._preparing = False
        # The hooks' thread's alone.
        self._started_round: int | None = None
        self._first_node = False

    def on_agent_started(self, event: AgentStarted) -> None:
        """Begin to record soon, and offer the ledger."""
        self.run.offer(LEDGER, self._answer)
        self.run.call_later(BEGIN_AFTER_S, self._warm)

    def on_workers_started(self, event: WorkersStarted) -> None:
        """Note whether this is the first node, which prints the line at the end of a run that had workers."""
        self._first_node = event.round.node_rank == 0

    def on_workers_starting(self, event: WorkersStarting) -> None:
        """Read the progress of the round before, which the hooks after this one overwrite."""
        previous = self._started_round
        if not event.dry_run:
            self._started_round = event.round.index
            if self._recorder is not None and previous is not None:
                self._recorder.before_start(previous)

    def on_run_event(self, event: RunEvent) -> None:
        """Record an event. Threading: the feed's."""
        with self._changed:
            recorder = self._recorder
            if recorder is None:
                self._early.append(event)
        if recorder is not None:
            recorder.observe((event,))
        if event.name == "feed_closed":
            self._close(event)

    def on_agent_stopped(self, event: AgentStopped) -> None:
        """Print how to get the report of a failed run, on its first node."""
        if event.outcome == "failed" and self._first_node:
            from shlex import quote

            run_id = self.settings.run_id
            end_of_options = "-- " if run_id.startswith("-") else ""
            self.run.notice(f"report: elastic report {end_of_options}{quote(run_id)}", named=False)

    def _warm(self) -> None:
        """Load what is needed on a thread of its own: folders on a slow file system are read for it."""
        with self._changed:
            if self._recorder is not None or self._preparing:
                return
            self._preparing = True
        threading.Thread(target=self._prepare, name="elastic-ledger", daemon=True).start()

    def _prepare(self) -> None:
        try:
            from elastic_report.ledger.attempts import earlier_high_step

            recorder = self._begin(earlier_high_step(self.settings.run_id, began_ns=self._first().at_ns))
        finally:
            with self._changed:
                self._preparing = False
                self._changed.notify_all()
        recorder.warm()

    def _first(self) -> RunEvent:
        """Return the first event. If there is none yet, the agent's time begins now."""
        with self._changed:
            if self._early:
                return self._early[0]
        return RunEvent(name="", at_s=SYSTEM_CLOCK.monotonic_s(), at_ns=SYSTEM_CLOCK.wall_ns())

    def _begin(self, high_step: int | None = None) -> "Recorder":
        """Return the recorder. The first call adds all events so far. Threading: any."""
        from elastic_report.ledger.recorder import Recorder, begin_line

        begin = begin_line(self.settings, self.run, self._first(), high_step=high_step)
        with self._changed:
            if self._recorder is None:
                recorder = Recorder(begin, self.run)
                recorder.observe(self._early, late=True)
                self._recorder, self._early = recorder, []
            return self._recorder

    def _close(self, event: RunEvent) -> None:
        with self._changed:
            self._changed.wait_for(lambda: not self._preparing, timeout=WAIT_S)
            if self._preparing:  # a disk has stalled
                return
        kept = event.values.get("run_dir_kept") is True
        if self._recorder is None and not kept:
            return  # a success within half a second: its end does not wait for a file
        recorder = self._recorder or self._begin()
        recorder.close(event.at_s, kept=kept)

    def _answer(self, parameters: Mapping[str, str]) -> Answer:
        """Return the ledger so far as JSON, with the lines of its file unless `lines` is `no`. Threading: any."""
        if self._recorder is None:
            self._warm()
            with self._changed:
                self._changed.wait_for(lambda: not self._preparing, timeout=WAIT_S)
        recorder = self._recorder or self._begin()
        return Answer(content=recorder.answer(lines=parameters.get("lines") != "no"), content_type="application/json")
