"""Transitions on `RoundChanged`, one for each state: changes of the current round that the rendezvous reports.

A rendezvous with control reports each change once, so every state of an agent in a round handles it: a decision of the
run overrides this node's own. Without control, changes are reported only while workers run.
"""

from collections.abc import Iterable

from msgspec.structs import replace

from elastic_core import messages as m
from elastic_core import moments
from elastic_core.agent.machine.states import (
    BACKOFF,
    GATE,
    PARKED_WATCH_S,
    SETTLE,
    AgentEnd,
    Await,
    Awaiting,
    Deciding,
    End,
    Ledger,
    Outcome,
    Preparing,
    Refused,
    Rejoin,
    RoundOver,
    Running,
    Settling,
    Starting,
    Step,
    Stopping,
    Then,
    Waiting,
    after_stop,
    noted,
    stop,
    stop_and_wait,
    wait_for_run,
    watch_on,
    without_workers,
)
from elastic_core.types import (
    Decided,
    Failure,
    FailureClass,
    MemberLost,
    NodesWaiting,
    RendezvousClosed,
    Restart,
    Resumed,
    Round,
    RoundChange,
    RoundEnded,
    Stop,
    StopOrdered,
    Suspended,
    Undecided,
)

NO_ROUND_CODE = 4


# --- while workers run


def running(state: Running, event: m.RoundChanged, now_s: float) -> Step:
    """Restart, wait, follow or record the reported change."""
    match event.change:
        case NodesWaiting() if state.done:
            # A new round would start finished ranks again: new nodes wait for the run's end or the next failure.
            watch = m.WatchRound(delay_s=PARKED_WATCH_S)
            return Step(state=state, commands=(watch,), reason="newcomers wait: workers have begun to finish")
        # Handlers without control report these; with control, the leader ends the round for all nodes at the same time.
        case NodesWaiting() | MemberLost():
            ledger, first = _regrouped(state.ledger, state.round, event.change)
            planned = isinstance(event.change, NodesWaiting)
            return stop(ledger, state.round, Rejoin(), "nodes came or went", first=first, planned=planned)
        case RoundEnded() | Decided() | StopOrdered():
            return follow(state, event.change)
        case RendezvousClosed():
            return _closed(state)
        case Suspended(reason=reason):
            # The store can't be reached, but the workers may be well: they run on until the lease is lost.
            return Step(state=state, commands=(m.WatchRound(),), reason=f"suspended: {reason}")
        case Resumed():
            return Step(state=state, commands=(m.WatchRound(),), reason="resumed")
        case Undecided():
            return Step(state=state, commands=(m.WatchRound(),), reason="there is nothing to decide")


def _closed(state: Running) -> Step:
    reason = "the rendezvous was closed: workers finish, no further round"
    if not state.ledger.control:
        return Step(state=state, reason=reason)
    # No node decides for the run any more, so a node that has finished must not wait for the others.
    alone = replace(state, ledger=replace(state.ledger, control=False))
    if state.alive:
        return Step(state=alone, reason=reason)
    outcome = Outcome(ending=AgentEnd.SUCCEEDED, exit_code=0, reason="all workers finished")
    return stop(alone.ledger, state.round, End(outcome=outcome), outcome.reason)


def follow(running: Running, over: RoundOver, first: Iterable[m.AgentCommand] = ()) -> Step:
    """Stop the workers because the round is over for all nodes."""
    ledger, round_ = running.ledger, running.round
    if isinstance(over, StopOrdered):
        return stop_and_wait(ledger, round_, over.reason, first)
    if isinstance(over, RoundEnded):
        ledger, changed = _regrouped(ledger, round_, over)
        return stop(
            ledger,
            round_,
            Rejoin(),
            over.reason,
            first=(*first, *changed),
            grace_s=over.stop_within_s,
            planned=over.planned,
        )
    decision, failure = over.decision, over.failure
    if isinstance(decision, Restart):
        ledger, incident, report = _restarted(ledger, over)
        reason = "the run decided to restart" if failure is None else f"restart: {failure.summary}"
        then = Rejoin(delay_s=decision.delay_s)
        planned = failure is None
        return stop(ledger, round_, then, reason, first=(*first, *report), incident=incident, planned=planned)
    # The run ends because its node was taken away: no worker has failed, and each may save.
    planned = failure is not None and failure.failure_class is FailureClass.PREEMPTED
    ledger, outcome, incident = _ended(ledger, decision, over, round_.index)
    return stop(ledger, round_, End(outcome=outcome), outcome.reason, first=first, incident=incident, planned=planned)


def _regrouped(ledger: Ledger, round_: Round, change: RoundChange) -> tuple[Ledger, tuple[m.AgentCommand, ...]]:
    changed: tuple[m.AgentCommand, ...] = (
        m.NotifyHooks(moment=moments.MembershipChanged(round_index=round_.index, change=change)),
    )
    if isinstance(change, RoundEnded):
        changed = (*changed, m.PrintLine(text=f"round {round_.index} is over: {change.reason}"))
    return replace(ledger, membership_changes=ledger.membership_changes + 1), changed


def _restarted(ledger: Ledger, decided: Decided) -> tuple[Ledger, m.RecordIncident | None, tuple[m.AgentCommand, ...]]:
    decision, failure = decided.decision, decided.failure
    if failure is None:
        # A user or a hook requested this restart. No worker failed, so restart budget and incidents do not change.
        asked = (m.PrintLine(text=f"all workers are started again: {decision.rule}"),) if decision.rule else ()
        return ledger, None, asked
    ledger = noted(ledger, failure, decision, restarts=1)
    report = m.ReportDecision(
        failure=failure, decision=decision, evidence=decided.evidence, restart_count=ledger.restart_count
    )
    return ledger, _incident(failure, decided), (report,)


def _incident(failure: Failure, decided: Decided) -> m.RecordIncident:
    return m.RecordIncident(failure=failure, decision=decided.decision, evidence=decided.evidence)


def _ended(
    ledger: Ledger, decision: Stop, decided: Decided, round_index: int
) -> tuple[Ledger, Outcome, m.RecordIncident | None]:
    """Return how the run ends by this verdict, and its incident."""
    failure = decided.failure
    if decision.outcome == "done":
        outcome = Outcome(ending=AgentEnd.SUCCEEDED, exit_code=0, reason=decision.reason)
        if failure is None:
            return ledger, outcome, None
        return noted(ledger, failure, decision, restarts=0), outcome, _incident(failure, decided)
    if failure is None:
        # No worker failed: the leader ended the run, for example after too many membership changes.
        made_up = without_workers(decision.reason, FailureClass.RENDEZVOUS, round_index)
        failure = replace(made_up, exit_code=NO_ROUND_CODE)
    outcome = Outcome(ending=AgentEnd.FAILED, exit_code=failure.exit_code, reason=failure.summary)
    return noted(ledger, failure, decision, restarts=0), outcome, _incident(failure, decided)


# --- before workers run


def preparing(state: Preparing, event: m.RoundChanged, now_s: float) -> Step:
    """Leave if the run is over; if only the round is over, remember that until the hooks have replied."""
    # No later step depends on the hooks' reply, so a slow health check does not delay the end.
    if isinstance(event.change, Decided) and isinstance(event.change.decision, Stop) and state.ledger.control:
        return without_start(state.ledger, state.round, event.change)
    return _remember(state, event.change)


def starting(state: Starting, event: m.RoundChanged, now_s: float) -> Step:
    """Remember that the round is over, until the workers have been started."""
    return _remember(state, event.change)


def _remember(state: Preparing | Starting, change: RoundChange) -> Step:
    # Without control only running workers are watched: this late report is about the previous round.
    if not state.ledger.control:
        return Step(state=state, reason="of the round before")
    # A decision replaces a round's end, and a round's end replaces an order to stop.
    undecided = state.over is None or isinstance(state.over, StopOrdered)
    # Only remembered: a reply of the hooks, or the start of workers, is still due, and no later state accepts it.
    new = isinstance(change, StopOrdered) and state.over is None
    if isinstance(change, Decided) or (isinstance(change, RoundEnded) and undecided) or new:
        marked = replace(state, over=change)
        return Step(state=marked, commands=watch_on(state.ledger), reason="the round is over before it has begun")
    return Step(state=state, commands=_watch_after(state.ledger, change), reason="nothing to do about it yet")


def without_start(ledger: Ledger, round_: Round, over: RoundOver) -> Step:
    """Rejoin or leave, because the round was over before this node started a worker."""
    first: tuple[m.AgentCommand, ...]
    if isinstance(over, StopOrdered):
        return wait_for_run(ledger, round_, over.reason)
    if isinstance(over, RoundEnded):
        ledger, first = _regrouped(ledger, round_, over)
        step = after_stop(ledger, Rejoin(), None, None)
    elif isinstance(over.decision, Restart):
        ledger, incident, first = _restarted(ledger, over)
        step = after_stop(ledger, Rejoin(delay_s=over.decision.delay_s), incident, None)
    else:
        ledger, outcome, incident = _ended(ledger, over.decision, over, round_.index)
        first, step = (), after_stop(ledger, End(outcome=outcome), incident, None)
    return replace(step, commands=(*first, *step.commands))


def _watch_after(ledger: Ledger, change: RoundChange) -> tuple[m.AgentCommand, ...]:
    """Return the next watch of the round, with a delay if the rendezvous is closed, which it reports each time."""
    if isinstance(change, RendezvousClosed):
        return (m.WatchRound(delay_s=PARKED_WATCH_S),) if ledger.control else ()
    return watch_on(ledger)


def refused(state: Refused, event: m.RoundChanged, now_s: float) -> Step:
    """Follow the run's decision, if this node still has its place in the round."""
    ledger, change = state.ledger, event.change
    if ledger.gates.aside or not ledger.control or state.round is None:
        return Step(state=state, reason="this node waits beside it")
    if isinstance(change, RoundOver):
        step = without_start(ledger, state.round, change)
        return replace(step, commands=(m.CancelTimer(name=GATE), *step.commands))
    return Step(state=state, commands=_watch_after(ledger, change), reason="nothing to do about it yet")


# --- while a failure is looked at


def settling(state: Settling, event: m.RoundChanged, now_s: float) -> Step:
    """Follow the run's decision even after a failure here; otherwise the failure comes first."""
    ledger = state.running.ledger
    if ledger.control and isinstance(event.change, RoundOver):
        return follow(state.running, event.change, (m.CancelTimer(name=SETTLE),))
    return Step(state=state, commands=_watch_after(ledger, event.change), reason="the failure comes first")


def deciding(state: Deciding, event: m.RoundChanged, now_s: float) -> Step:
    """Follow the run's decision in place of this node's; otherwise the failure comes first."""
    if state.ledger.control and isinstance(event.change, RoundOver) and not _known(state, event.change):
        if state.running is not None:
            return follow(state.running, event.change)
        return without_start(state.ledger, state.round, event.change)
    return Step(state=state, commands=_watch_after(state.ledger, event.change), reason="the failure comes first")


def _known(state: Deciding, change: RoundChange) -> bool:
    # This node decides alone because no node could decide after that order: the order is not new.
    return state.alone and isinstance(change, StopOrdered)


# --- while workers are stopped, and after


def stopping(state: Stopping, event: m.RoundChanged, now_s: float) -> Step:
    """Follow the run's decision in place of this node's; shorten the stop if the lease ends."""
    ledger, change = state.ledger, event.change
    if not ledger.control:
        return Step(state=state, reason="the next round sees it")
    step = Step(state=state, commands=_watch_after(ledger, change), reason="the workers are being stopped anyway")
    match change:
        case RoundEnded() if isinstance(state.then, Await):  # no decision about this round follows
            return _regroup_instead(state, change)
        # The lease of this node ends: the guard kills remaining processes, so no hook may hold the stop any more.
        case RoundEnded(reason=reason, stop_within_s=float() | int() as within_s):
            hurry = m.ShortenGrace(grace_s=within_s, at_once=True)
            return replace(step, commands=(hurry, *step.commands), reason=reason)
        # A user's stop of this node is not overridden.
        case Decided() if state.stop_asked_s is None and not _is_under_way(state, change):
            return _overrule(state, change)
        case _:
            return step


def _is_under_way(state: Stopping, decided: Decided) -> bool:
    """Return whether the workers are already being stopped for this decision, usually published by this node."""
    if isinstance(state.then, Await):
        return False
    goes_on = isinstance(state.then, Rejoin)
    if isinstance(decided.decision, Restart) != goes_on:
        return False
    # An end or a restart without a failed worker has nothing to record in place of this node's incident.
    if decided.failure is None:
        return True
    return state.incident is not None and _same(state.incident.failure, decided.failure)


def _same(ours: Failure, theirs: Failure) -> bool:
    """Return whether both are the same failure; the rendezvous may use other node ids than the agent."""
    return (ours.round_index, ours.global_rank, ours.summary) == (
        theirs.round_index,
        theirs.global_rank,
        theirs.summary,
    )


def _regroup_instead(state: Stopping, change: RoundEnded) -> Step:
    """Join the next round: after this round's end there is nothing to decide."""
    ledger, first = _regrouped(state.ledger, state.round, change)
    if state.stop_asked_s is not None:  # this node leaves the run: the end of the round concerns the others
        first = first[:1]
    within_s = change.stop_within_s
    hurry = () if within_s is None else (m.ShortenGrace(grace_s=within_s, at_once=True),)
    then: Then = Rejoin() if state.stop_asked_s is None else state.then
    changed = replace(state, ledger=ledger, then=then)
    return Step(state=changed, commands=(*hurry, *first, *watch_on(ledger)), reason=change.reason)


def _overrule(state: Stopping, decided: Decided) -> Step:
    # Two nodes failed at once, and the run took the other's decision. This node's own is removed from the ledger, so
    # that the restart is not counted twice.
    ledger, decision = _without_own(state), decided.decision
    first: tuple[m.AgentCommand, ...] = ()
    then: Then
    if isinstance(decision, Restart):
        ledger, incident, first = _restarted(ledger, decided)
        then, reason = Rejoin(delay_s=decision.delay_s), "the run restarts"
    else:
        ledger, outcome, incident = _ended(ledger, decision, decided, state.round.index)
        then, reason = End(outcome=outcome), f"the run ends: {outcome.reason}"
    changed = replace(state, ledger=ledger, then=then, incident=incident)
    return Step(state=changed, commands=(*first, *watch_on(ledger)), reason=reason)


def _without_own(state: Stopping) -> Ledger:
    """Return the ledger without this node's own decision, which the run has overridden."""
    if state.incident is None:
        return state.ledger
    ledger, restarts = state.ledger, int(isinstance(state.incident.decision, Restart))
    return replace(ledger, restart_count=ledger.restart_count - restarts, history=ledger.history[:-1])


def waiting(state: Waiting, event: m.RoundChanged, now_s: float) -> Step:
    """Leave if the run is over; the next round handles other changes."""
    change = event.change
    if state.ledger.control and isinstance(change, Decided) and isinstance(change.decision, Stop):
        ledger, outcome, incident = _ended(state.ledger, change.decision, change, state.ledger.rounds - 1)
        step = after_stop(ledger, End(outcome=outcome), incident, None)
        return replace(step, commands=(m.CancelTimer(name=BACKOFF), *step.commands))
    return Step(state=state, commands=_watch_after(state.ledger, change), reason="the next round sees it")


def awaiting(state: Awaiting, event: m.RoundChanged, now_s: float) -> Step:
    """Carry out the run's decision; decide here if the run can't."""
    ledger, change = state.ledger, event.change
    match change:
        case Decided() | RoundEnded():
            return without_start(ledger, state.round, change)
        case Undecided(reason=reason, final=final):
            ask = m.DecideAlone(round=state.round, reason=reason, final=final, history=ledger.history)
            deciding = Deciding(ledger=ledger, running=None, round=state.round, alone=True)
            return Step(state=deciding, commands=(ask, *watch_on(ledger)), reason=reason)
        case _:
            return Step(state=state, commands=_watch_after(ledger, change), reason="still to be decided")
