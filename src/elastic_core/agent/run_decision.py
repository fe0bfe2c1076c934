"""This node's part in the one decision about a failure: what it says that it saw, and the decision, if it is asked."""

from collections.abc import Sequence
from typing import Protocol

from msgspec.structs import replace

from elastic_core import messages as m
from elastic_core.agent.placing import Placing
from elastic_core.agent.rendezvous_thread import RendezvousThread
from elastic_core.clock import Clock
from elastic_core.failure.runner import PolicyRunner
from elastic_core.history import spent
from elastic_core.hooks.runner import HookRunner
from elastic_core.types import (
    Decision,
    FailedWorker,
    Failure,
    Ignore,
    NodeReport,
    Restart,
    Round,
    Stop,
    WorkerExit,
)


class Reader(Protocol):
    """Reads what failed workers left."""

    def failed_workers(self) -> tuple[FailedWorker, ...]:
        """Return what the last examination found."""
        ...

    def report(self, round_: Round, exits: Sequence[WorkerExit], restart_count: int, *, heard_s: float) -> NodeReport:
        """Return what this node has seen, for a decision about the whole run."""
        ...

    def merge(self, reports: Sequence[NodeReport], restarts: int) -> tuple[Failure, str]:
        """Return the first cause among those of all nodes, and what is known of it, as text."""
        ...

    def notice(self, text: str) -> None:
        """Print one line."""
        ...


class RunDecision:
    """Tells the run and the hooks of a round's failure, each once. Threading: the supervisor's thread only."""

    def __init__(
        self,
        *,
        reader: Reader,
        rendezvous: RendezvousThread,
        policy: PolicyRunner,
        hooks: HookRunner,
        clock: Clock,
        placing: Placing,
    ) -> None:
        """Wire it; `begin_round` comes first."""
        self._reader = reader
        self._rendezvous = rendezvous
        self._policy = policy
        self._hooks = hooks
        self._clock = clock
        self._placing = placing
        self.begin_round()

    def begin_round(self) -> None:
        """Forget the last round."""
        self._heard_s: float | None = None
        self._cause: Failure | None = None
        self._seen = self._taken = False

    def heard(self) -> None:
        """Take note that this node orders the stop, or hears of it: its failures are so much older than now."""
        if self._heard_s is None:
            self._heard_s = self._clock.monotonic_s()

    def order_stop(self, failure: Failure, round_: Round, exits: Sequence[WorkerExit], restart_count: int) -> None:
        """Have all nodes stop, and say what is known so far."""
        self.heard()
        if failure.local_rank is None:
            self._cause = failure
        report = self.report(round_, exits, restart_count, final=False)
        self._rendezvous.order_stop(failure.summary, report)

    def report(self, round_: Round, exits: Sequence[WorkerExit], restart_count: int, *, final: bool) -> NodeReport:
        """Return what this node has seen of the round."""
        heard_s = self._clock.monotonic_s() if self._heard_s is None else self._heard_s
        report = self._reader.report(round_, exits, restart_count, heard_s=heard_s)
        if report.failure is not None:
            failure = self._placing.of_worker(report.failure, exits, round_)
            report = replace(report, failure=failure)
            self.tell_failure(failure)
        elif self._cause is not None:
            report = replace(report, failure=self._cause)
        return replace(report, final=final, progress=self._placing.progress())

    def decide(self, reports: Sequence[NodeReport], history: Sequence[Failure], question: str) -> None:
        """Have the policy decide for all nodes; this one may have had no part in the round."""
        restarts = max(spent(history), sum(isinstance(past.decision, Restart) for past in history))
        failure, evidence = self._reader.merge(reports, restarts)
        if not failure.node_id:
            failure = self._placing.of_run(failure, None)

        def answer(decision: Decision, fallback_reason: str) -> None:
            if fallback_reason:
                self._reader.notice(f"{fallback_reason}; the built-in policy 'intensity' decided in its place")
            if isinstance(decision, Ignore):  # the node where it failed had not: all workers are gone
                decision = Stop(reason="there is no worker to go on with", rule=decision.rule)
            self._rendezvous.answer(decision, failure, evidence, question)

        self._policy.decide(failure, history, answer)

    # --- the hooks

    def ask_anew(self) -> None:
        """Let the next failure, and what is decided about it, be told again: another one of the same round."""
        self._seen = self._taken = False

    def tell_failure(self, failure: Failure) -> None:
        """Tell the hooks what failed, unless they know."""
        if not self._seen:
            self._seen = True
            workers = () if failure.local_rank is None else self._reader.failed_workers()
            self._hooks.tell(m.FailureSeen(failure=failure, workers=workers))

    def tell_decision(self, failure: Failure, decision: Decision, fallback_reason: str = "") -> None:
        """Tell the hooks what was decided, unless they know."""
        if not self._taken:
            self._taken = True
            policy = self._policy.name
            self._hooks.tell(
                m.DecisionTaken(failure=failure, decision=decision, policy=policy, fallback_reason=fallback_reason)
            )
