"""Executes the requests of hooks that have the run's handle."""

import signal
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Final

from elastic_core.agent.feed import Feed, Observation
from elastic_core.agent.loop import Agent
from elastic_core.hooks.handle import Offer
from elastic_core.launcher.planner import WorkerPlanner
from elastic_core.logger import Logger
from elastic_core.messages import AskSteps, ReportSteps, RestartRequested, StateNumber, StopRequested
from elastic_core.moments import Agreed, FieldsPublished, StepsSeen, WorkerEnded, WorkersStarted
from elastic_core.rendezvous.coordinated import Backend
from elastic_core.rendezvous.events import Rendezvous
from elastic_core.rendezvous.store import CoordinationStore
from elastic_core.reports import (
    AgentChannel,
    FailureReport,
    FieldValue,
    NodeSteps,
    RunningWorker,
    RunSteps,
)
from elastic_core.rundir.directory import RunDirectory
from elastic_core.system.reactor import Reactor

MOST_RESTARTS: Final = 10
"""How many rounds a hook may end by its own requests within `RESTARTS_WITHIN_S`; no budget counts them."""
RESTARTS_WITHIN_S: Final = 3600.0


class HookActions:
    """Executes hooks' requests, as it would those of a signal. Threading: the loop's.

    `planner` has the round that was planned last.
    """

    def __init__(
        self,
        reactor: Reactor,
        *,
        agent: Agent,
        rendezvous: Rendezvous,
        planner: WorkerPlanner,
        handler: Backend,
        run_dir: RunDirectory,
        feed: Feed,
        log: Logger,
    ) -> None:
        self.offers: dict[str, Offer] = {}
        self.run_dir = str(run_dir.path)
        self.workers: tuple[RunningWorker, ...] = ()
        self._reactor = reactor
        self._agent = agent
        self._rendezvous = rendezvous
        self._planner = planner
        self._handler = handler
        self._keep = run_dir.keep
        self._feed = feed
        self._log = log
        # The function of each hook. Threading: any.
        self._furthest_steps: dict[str, Callable[[], int | None]] = {}
        # For each hook, the rounds that it ended by its own requests, with the time.
        self._restarts: dict[str, dict[int, float]] = {}
        self._left_alone: dict[str, int] = {}

    def observe(self, what: Observation) -> None:
        """Update the running workers, before hooks receive the event."""
        if isinstance(what, WorkersStarted):
            self.workers = self._planner.running(what.pids)
        elif isinstance(what, WorkerEnded):
            self.workers = tuple(each for each in self.workers if each.local_rank != what.exit.local_rank)

    def report(self, hook: str, report: FailureReport) -> None:
        """Process a failure that a hook found, unless another one is being decided."""
        self._agent.report_failure(hook, report)

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
            self._agent.dispatch(RestartRequested(reason=reason))

    def _may_restart(self, hook: str, reason: str, round_index: int) -> bool:
        # One line is printed for each round that the hook may not end.
        had = self._restarts.setdefault(hook, {})
        now_s = self._reactor.now_s()
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
        self._agent.dispatch(StopRequested(signum=signal.SIGTERM, grace_s=grace_s))

    def publish(self, hook: str, fields: Mapping[str, FieldValue]) -> None:
        """Publish a hook's fields."""
        self._feed.publish(FieldsPublished(hook=hook, fields=fields))

    def keep_run_dir(self, because: str) -> None:
        """Keep the run directory."""
        self._keep(because)

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

    def ask_steps(self) -> None:
        """Request the steps of all nodes. If no request is possible, or needed, publish an empty result."""
        round_ = self._planner.round
        if round_ is not None and round_.node_count > 1 and self._rendezvous.gathers:
            self._rendezvous.post(AskSteps())
        else:
            self._feed.publish(StepsSeen(seen=RunSteps(serial=0)))

    def report_steps(self, steps: NodeSteps) -> None:
        """Send this node's answer to the other nodes."""
        if self._rendezvous.gathers:
            self._rendezvous.post(ReportSteps(steps=steps))

    def agree(self, topic: str, value: int) -> None:
        """Submit this node's number. If it is the only node, or no agreement is possible, it is the result."""
        round_ = self._planner.round
        if round_ is not None and round_.node_count > 1 and self._rendezvous.agrees:
            self._rendezvous.post(StateNumber(topic=topic, value=value))
        else:
            self._feed.publish(Agreed(topic=topic, value=value))

    def release_stop(self, hook: str) -> None:
        """Stop delaying a planned stop for this hook."""
        self._agent.release_stop(hook)

    def channel(self) -> AgentChannel | None:
        """Return how the run's agents authenticate each other. Threading: any."""
        return self._rendezvous.channel
