"""Executes the requests of hooks that have the run's handle."""

import signal
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Final

from elastic_core import messages as m
from elastic_core.agent.feed import Feed, Observation
from elastic_core.agent.loop import Agent
from elastic_core.hooks.handle import Offer
from elastic_core.launcher.planner import WorkerPlanner
from elastic_core.logger import Logger
from elastic_core.moments import FieldsPublished, RoundJoining, WorkerEnded, WorkersStarted, WorkersStopping
from elastic_core.rendezvous.coordinated import Backend
from elastic_core.rendezvous.events import Rendezvous
from elastic_core.rendezvous.store import CoordinationStore
from elastic_core.reports import AgentChannel, ChosenOption, FieldValue, RunningWorker
from elastic_core.rundir.directory import RunDirectory
from elastic_core.system.clock import SYSTEM_CLOCK

MOST_RESTARTS: Final = 10
"""How many rounds a hook may end by its own requests within `RESTARTS_WITHIN_S`; no budget counts them."""
RESTARTS_WITHIN_S: Final = 3600.0


class HookActions:
    """Executes hooks' requests, as it would those of a signal. Threading: the loop's.

    `planner` has the round that was planned last.
    """

    def __init__(
        self,
        *,
        agent: Agent,
        rendezvous: Rendezvous,
        planner: WorkerPlanner,
        handler: Backend,
        run_dir: RunDirectory,
        record_dir: Callable[[], str],
        options: Callable[[], tuple[ChosenOption, ...]],
        feed: Feed,
        log: Logger,
    ) -> None:
        self.offers: dict[str, Offer] = {}
        self.run_dir = str(run_dir.path)
        self.record_dir, self.options, self.keep_run_dir = record_dir, options, run_dir.keep
        self.report, self.release_stop = agent.report_failure, agent.release_stop
        self.workers: tuple[RunningWorker, ...] = ()
        self.started: tuple[RunningWorker, ...] = ()
        self._agent = agent
        self._rendezvous = rendezvous
        self._planner = planner
        self._handler = handler
        self._feed = feed
        self._log = log
        # The function of each hook. Threading: any.
        self._furthest_steps: dict[str, Callable[[], int | None]] = {}
        # For each hook, the rounds that it ended by its own requests, with the time.
        self._restarts: dict[str, dict[int, float]] = {}
        self._left_alone: dict[str, int] = {}
        # The questions that this node alone answers: how many there were, and the topics of the open ones by number.
        self._asked = 0
        self._questions: dict[int, str] = {}

    def observe(self, what: Observation) -> None:
        """Update the running workers, before hooks receive the event."""
        if isinstance(what, WorkersStarted | WorkersStopping):
            self._questions = {}
        if isinstance(what, WorkersStarted):
            self.workers = self.started = self._planner.running(what.pids)
        elif isinstance(what, RoundJoining):
            self.workers = ()  # those that are kept have no place yet
        elif isinstance(what, WorkerEnded):
            self.workers = tuple(each for each in self.workers if each.local_rank != what.exit.local_rank)

    def restart(self, hook: str, reason: str, *, by_user: bool = False) -> None:
        """Restart all workers, if the backend can pass it to the other nodes and the hook's limit allows it."""
        round_ = self._planner.round
        if round_ is not None and not by_user and not self._may_restart(hook, reason, round_.index):
            return
        if by_user:
            reason = f"a restart was requested on node {self._agent.node_id}" + (f" ({reason})" if reason else "")
        if round_ is not None and round_.node_count > 1 and not self._rendezvous.takes_requests:
            self._log.notice(f"{reason}: ignored, the rendezvous can't notify the other nodes")
        else:
            self._agent.dispatch(m.RestartRequested(reason=reason))

    def _may_restart(self, hook: str, reason: str, round_index: int) -> bool:
        # One line is printed for each round that the hook may not end.
        had = self._restarts.setdefault(hook, {})
        now_s = SYSTEM_CLOCK.monotonic_s()
        for earlier in [index for index, at_s in had.items() if now_s - at_s >= RESTARTS_WITHIN_S]:
            del had[earlier]
        if len(had) < MOST_RESTARTS or round_index in had:
            had.setdefault(round_index, now_s)
            return True
        if self._left_alone.get(hook) != round_index:
            self._left_alone[hook] = round_index
            self._log.notice(
                f"{reason}: ignored, it has ended {MOST_RESTARTS} rounds within {RESTARTS_WITHIN_S / 60:g} minutes"
            )
        return False

    def drain(self, reason: str, grace_s: float | None) -> None:
        """Stop this node's workers, and leave; an empty reason is not printed."""
        if reason:
            self._log.notice(reason)
        self._agent.dispatch(m.StopRequested(signum=signal.SIGTERM, grace_s=grace_s))

    def publish(self, hook: str, fields: Mapping[str, FieldValue]) -> None:
        """Publish a hook's fields."""
        self._feed.publish(FieldsPublished(hook=hook, fields=fields))

    def store_place(self) -> str:
        """Return the location of the rendezvous store for users. Empty if there is none, or not yet. Threading: any."""
        store = getattr(self._handler, "store", None)
        try:
            return store.where if isinstance(store, CoordinationStore) else ""
        except Exception:  # noqa: BLE001  # the backend's fault, not the hook's
            return ""

    def track_progress(self, hook: str, furthest_step: Callable[[], int | None]) -> None:
        """Call a hook's function for the furthest step from now on. Threading: any."""
        self._furthest_steps[hook] = furthest_step

    def progress(self) -> int | None:
        """Return the furthest step of this node's workers that a hook knows. `None` if no hook knows one."""
        steps = []
        for furthest_step in tuple(self._furthest_steps.values()):
            with suppress(Exception):  # a hook's fault: a decision needs no step
                steps.append(furthest_step())
        return max((step for step in steps if isinstance(step, int)), default=None)

    def exchange(self, request: m.NodesRequest | m.StateNumber) -> None:
        """Pass a request on to all nodes. If this node is alone, or they can't communicate, its own value counts."""
        round_ = self._planner.round
        match request:
            case m.AnswerNodes(serial=serial, data=data) if serial in self._questions:
                answers = {self._agent.node_id: data}
                self._feed.publish(m.AnswersGathered(serial=serial, topic=self._questions[serial], answers=answers))
            case m.ConcludeNodes(serial=serial, data=data) if serial in self._questions:
                self._feed.publish(m.Concluded(serial=serial, topic=self._questions.pop(serial), data=data))
            # The question of a new round may arrive before this node has planned that round.
            case m.AnswerNodes() | m.ConcludeNodes():
                self._rendezvous.post(request)
            case _ if round_ is not None and round_.node_count > 1 and self._rendezvous.gathers:
                self._rendezvous.post(request)
            case m.AskNodes(topic=topic) if self.workers:
                self._asked += 1
                self._questions[self._asked] = topic
                self._feed.publish(m.NodesAsked(serial=self._asked, topic=topic))
            case m.StateNumber(topic=topic, value=value):
                self._feed.publish(m.Agreed(topic=topic, value=value))

    def channel(self) -> AgentChannel | None:
        """Return how the run's agents authenticate each other. Threading: any."""
        return self._rendezvous.channel
