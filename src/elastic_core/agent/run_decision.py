"""The path of a failure from this node's evidence to a decision: its node, round and time, and the deciding policy."""

from collections.abc import Callable, Sequence

from msgspec.structs import replace

from elastic_core import messages as m
from elastic_core import moments
from elastic_core.agent.feed import Feed
from elastic_core.agent.machine.states import without_workers
from elastic_core.errors import ElasticError, is_momentary
from elastic_core.failure.incidents import Incidents
from elastic_core.failure.runner import PolicyRunner
from elastic_core.history import spent
from elastic_core.rendezvous.events import Rendezvous
from elastic_core.reports import NodeReport
from elastic_core.system.clock import Clock
from elastic_core.types import Decision, Failure, FailureClass, Ignore, Restart, Round, Stop, WorkerExit

NO_STORE_CODE = 4


class FailureContext:
    """The context of failures: which node, how far into the run, how long after the workers' start.

    It adds these fields, and creates the failures that no worker caused. Threading: the supervisor's thread only.

    `node_id` counts until a round assigns one. `progress` returns the highest step of this node's workers; `None`
    if unknown.
    """

    def __init__(self, node_id: str, clock: Clock, *, progress: Callable[[], int | None] = lambda: None) -> None:
        self.node_id = self._own_id = node_id
        """This node's id in the roster of its last round."""
        # Counts from now on, until a round provides the run's age.
        self.progress = progress
        self._clock = clock
        self._began_s = self.spawned_s = clock.monotonic_s()

    def joined(self, round_: Round) -> None:
        """Set this node's id and the run's age from a round that has just formed.

        With that, policies can compare failures of different nodes.
        """
        self.node_id = round_.node_id or self._own_id
        if round_.at_s is not None:
            self._began_s = self._clock.monotonic_s() - round_.at_s

    def spawning(self) -> None:
        """Record that workers are started now."""
        self.spawned_s = self._clock.monotonic_s()

    def of_worker(self, failure: Failure, exits: Sequence[WorkerExit], round_: Round) -> Failure:
        """Return a worker's failure with the time of that worker's exit, not the time when its evidence was read."""
        at_s = next((exit.at_s for exit in exits if exit.local_rank == failure.local_rank), None)
        if at_s is None:  # the worker hangs, and has not ended
            at_s = exits[0].at_s if exits else self._clock.monotonic_s()
        return replace(
            failure,
            node_id=round_.node_id or failure.node_id or self.node_id,
            at_s=at_s - self._began_s,
            uptime_s=at_s - self.spawned_s,
            progress=self.progress(),
            membership_changes=round_.membership_changes,
        )

    def of_machine(self, failure: Failure, round_: Round | None) -> Failure:
        """Return a failure of the machine with node and time; between two rounds it belongs to the last one."""
        if failure.node_id:
            return failure
        if round_ is not None and failure.round_index < 0:
            failure = replace(failure, round_index=round_.index)
        return replace(self.of_run(failure, round_), node_id=self.node_id, progress=self.progress())

    def of_run(self, failure: Failure, round_: Round | None) -> Failure:
        """Return a failure of no single node, with its time and the round's number of nodes."""
        count = None if round_ is None else round_.node_count
        at_s = self._clock.monotonic_s() - self._began_s
        return replace(failure, at_s=at_s, node_count=failure.node_count or count)

    def no_start(self, err: ElasticError, round_: Round) -> Failure:
        """Return the failure of workers that could not be started; it is retryable if the system may recover."""
        failure = self.of_machine(without_workers(str(err), FailureClass.START_UP), round_)
        at_s = self.spawned_s - self._began_s
        return replace(failure, at_s=at_s, exit_code=err.exit_code, retryable=is_momentary(err))

    def no_store(self, reason: str, round_: Round) -> Failure:
        """Return the failure of a run that lost its store."""
        failure = self.of_machine(without_workers(reason, FailureClass.STORE), round_)
        return replace(failure, exit_code=NO_STORE_CODE)


class RunDecision:
    """This node's part in the run's decision about a failure: its evidence, and the decision if this node must make it.

    Hooks and the run receive a round's failure once each. Threading: the supervisor's thread only.
    """

    def __init__(
        self,
        *,
        incidents: Incidents,
        rendezvous: Rendezvous,
        policy: PolicyRunner,
        feed: Feed,
        clock: Clock,
        context: FailureContext,
    ) -> None:
        self._incidents = incidents
        self._rendezvous = rendezvous
        self._policy = policy
        self._feed = feed
        self._clock = clock
        self._context = context
        self._question = ""
        """The last decision request for the whole run that this node answered."""
        self._answered: tuple[str, str] | None = None
        """Evidence of this node's last decision for the run, and why the chosen policy did not make it, if so."""
        self.begin_round()

    def begin_round(self) -> None:
        """Forget the last round."""
        self._ordered_s: float | None = None
        self._cause: Failure | None = None
        self._seen = self._taken = False

    def stop_ordered(self) -> None:
        """Record when this node ordered the stop or received the order: ages of its failures count from then."""
        if self._ordered_s is None:
            self._ordered_s = self._clock.monotonic_s()

    def order_stop(self, failure: Failure, round_: Round, exits: Sequence[WorkerExit], restart_count: int) -> None:
        """Order the stop of all nodes, with a report of the evidence so far."""
        self.stop_ordered()
        # A failed start or a hook's report: the workers' exits will not show it when the evidence is read.
        if failure.local_rank is None:
            self._cause = failure
        report = self.report(round_, exits, restart_count, final=False)
        self._rendezvous.post(m.OrderStop(failure=failure, report=report))

    def report(self, round_: Round, exits: Sequence[WorkerExit], restart_count: int, *, final: bool) -> NodeReport:
        """Return this node's report about the round."""
        ordered_s = self._clock.monotonic_s() if self._ordered_s is None else self._ordered_s
        report = self._incidents.report(round_, exits, restart_count, ordered_s=ordered_s)
        if report.failure is not None:
            failure = self._context.of_worker(report.failure, exits, round_)
            report = replace(report, failure=failure)
            self.publish_failure(failure)
        elif self._cause is not None:
            report = replace(report, failure=self._cause)
        return replace(report, final=final, progress=self._context.progress())

    def decide(self, reports: Sequence[NodeReport], history: Sequence[Failure], question: str) -> None:
        """Request the policy's decision for all nodes; this node may have had no part in the round."""
        restarts = max(spent(history), sum(isinstance(past.decision, Restart) for past in history))
        failure, evidence = self._incidents.merge(reports, restarts)
        if not failure.node_id:
            failure = self._context.of_run(failure, None)

        def answer(decision: Decision, fallback_reason: str) -> None:
            self._incidents.print_fallback(fallback_reason)
            if isinstance(decision, Ignore):  # the failed node did not ignore it: all workers have ended
                slow = failure.failure_class is FailureClass.STRAGGLER
                stop = Stop(reason="there is no worker to go on with", rule=decision.rule)
                decision = Restart(rule=decision.rule) if slow else stop
            # The request is repeated every 5 s until a decision is in the store; hooks receive the decision once.
            again, self._question = question == self._question, question
            self._answered = (evidence, fallback_reason)
            here = self._context.node_id
            if not again and not any(report.node_id == here for report in reports if report.absence is None):
                self.begin_failure()  # without a part in the round, this node does not receive the decision
                self.publish_decision(failure, decision, evidence=evidence)
            self._rendezvous.post(
                m.PublishDecision(
                    failure=failure,
                    decision=decision,
                    evidence=evidence,
                    question=question,
                    policy=self._policy.name,
                )
            )

        self._policy.decide(failure, history, answer)

    # --- the hooks

    def begin_failure(self) -> None:
        """Let hooks receive the next failure and its decision, too, although it is of the same round."""
        self._seen = self._taken = False

    def publish_failure(self, failure: Failure) -> None:
        """Publish the failure to the hooks, once."""
        if not self._seen:
            self._seen = True
            workers = () if failure.local_rank is None else self._incidents.failed_workers
            self._feed.publish(moments.FailureSeen(failure=failure, workers=workers))

    def publish_decision(
        self, failure: Failure, decision: Decision, fallback_reason: str = "", *, evidence: str = ""
    ) -> None:
        """Publish the decision to the hooks, once; `evidence` is that of all nodes if it is for the whole run."""
        if self._taken:
            return
        self._taken = True
        here = not evidence
        if evidence and self._answered is not None and self._answered[0] == evidence:
            here, fallback_reason = True, self._answered[1]
        self._feed.publish(
            moments.DecisionTaken(
                failure=failure,
                decision=decision,
                policy=self._policy.name,
                fallback_reason=fallback_reason,
                decided_here=here,
            )
        )
