"""Transitions on `RoundChanged`, one for each state: changes of the current round that the rendezvous reports.

A rendezvous with control reports each change once, so every state of an agent in a round handles it: a decision of the
run overrides this node's own. Without control, changes are reported only while workers run.
"""

from msgspec.structs import replace

from elastic_core import messages as m
from elastic_core import moments
from elastic_core.agent.machine import states as s
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


def running(state: s.Running, event: m.RoundChanged, now_s: float) -> s.Step:
    """Restart, wait, follow or record the reported change."""
    match event.change:
        case NodesWaiting() if state.done:
            # A new round would start finished ranks again: new nodes wait for the run's end or the next failure.
            watch = m.WatchRound(delay_s=s.PARKED_WATCH_S)
            return s.Step(state=state, commands=(watch,), reason="newcomers wait: workers have begun to finish")
        # Handlers without control report these; with control, the leader ends the round for all nodes at the same time.
        case NodesWaiting() | MemberLost():
            ledger, first = _regrouped(state.ledger, state.round, event.change)
            planned = isinstance(event.change, NodesWaiting)
            return s.stop(ledger, state.round, s.Rejoin(), "nodes came or went", first=first, planned=planned)
        case RoundEnded() | Decided() | StopOrdered():
            return follow(state, event.change)
        case RendezvousClosed():
            return _closed(state)
        case Suspended(reason=reason):
            # The store can't be reached, but the workers may be well: they run on until the lease is lost.
            return s.Step(state=state, commands=(m.WatchRound(),), reason=f"suspended: {reason}")
        case Resumed():
            return s.Step(state=state, commands=(m.WatchRound(),), reason="resumed")
        case Undecided():
            return s.Step(state=state, commands=(m.WatchRound(),), reason="there is nothing to decide")


def _closed(state: s.Running) -> s.Step:
    reason = "the rendezvous was closed: workers finish, no further round"
    if not state.ledger.control:
        return s.Step(state=state, reason=reason)
    # No node decides for the run any more, so a node that has finished must not wait for the others.
    alone = replace(state, ledger=replace(state.ledger, control=False))
    if state.alive:
        return s.Step(state=alone, reason=reason)
    outcome = s.Outcome(ending=s.AgentEnd.SUCCEEDED, exit_code=0, reason="all workers finished")
    return s.stop(alone.ledger, state.round, s.End(outcome=outcome), outcome.reason)


def follow(running: s.Running, over: s.RoundOver) -> s.Step:
    """Stop the workers because the round is over for all nodes."""
    ledger, round_ = running.ledger, running.round
    if isinstance(over, StopOrdered):
        return s.stop_and_wait(ledger, round_, over.reason)
    if isinstance(over, RoundEnded):
        ledger, changed = _regrouped(ledger, round_, over)
        within_s, planned = over.stop_within_s, over.planned
        return s.stop(ledger, round_, s.Rejoin(), over.reason, first=changed, grace_s=within_s, planned=planned)
    decision, failure = over.decision, over.failure
    if isinstance(decision, Restart):
        ledger, incident, report = _restarted(ledger, over)
        reason = "the run decided to restart" if failure is None else f"restart: {failure.summary}"
        then = s.Rejoin(delay_s=decision.delay_s)
        planned = failure is None
        return s.stop(ledger, round_, then, reason, first=report, incident=incident, planned=planned)
    # The run ends because its node was taken away: no worker has failed, and each may save.
    planned = failure is not None and failure.failure_class is FailureClass.PREEMPTED
    ledger, outcome, incident = _ended(ledger, decision, over, round_.index)
    return s.stop(ledger, round_, s.End(outcome=outcome), outcome.reason, incident=incident, planned=planned)


def _regrouped(ledger: s.Ledger, round_: Round, change: RoundChange) -> tuple[s.Ledger, tuple[m.AgentCommand, ...]]:
    changed: tuple[m.AgentCommand, ...] = (
        m.NotifyHooks(moment=moments.MembershipChanged(round_index=round_.index, change=change)),
    )
    if isinstance(change, RoundEnded):
        changed = (*changed, m.PrintLine(text=f"round {round_.index} is over: {change.reason}"))
    return replace(ledger, membership_changes=ledger.membership_changes + 1), changed


def _restarted(
    ledger: s.Ledger, decided: Decided
) -> tuple[s.Ledger, m.RecordIncident | None, tuple[m.AgentCommand, ...]]:
    decision, failure = decided.decision, decided.failure
    if failure is None:
        # A user or a hook requested this restart. No worker failed, so restart budget and incidents do not change.
        asked = (m.PrintLine(text=f"all workers are started again: {decision.rule}"),) if decision.rule else ()
        return ledger, None, asked
    ledger = s.noted(ledger, failure, decision, restarts=1)
    report = m.ReportDecision(
        failure=failure, decision=decision, evidence=decided.evidence, restart_count=ledger.restart_count
    )
    return ledger, _incident(failure, decided), (report,)


def _incident(failure: Failure, decided: Decided) -> m.RecordIncident:
    return m.RecordIncident(failure=failure, decision=decided.decision, evidence=decided.evidence)


def _ended(
    ledger: s.Ledger, decision: Stop, decided: Decided, round_index: int
) -> tuple[s.Ledger, s.Outcome, m.RecordIncident | None]:
    """Return how the run ends by this verdict, and its incident."""
    failure = decided.failure
    if decision.outcome == "done":
        outcome = s.Outcome(ending=s.AgentEnd.SUCCEEDED, exit_code=0, reason=decision.reason)
        if failure is None:
            return ledger, outcome, None
        return s.noted(ledger, failure, decision, restarts=0), outcome, _incident(failure, decided)
    if failure is None:
        # No worker failed: the leader ended the run, for example after too many membership changes.
        made_up = s.without_workers(decision.reason, FailureClass.RENDEZVOUS, round_index)
        failure = replace(made_up, exit_code=NO_ROUND_CODE)
    outcome = s.Outcome(ending=s.AgentEnd.FAILED, exit_code=failure.exit_code, reason=failure.summary)
    return s.noted(ledger, failure, decision, restarts=0), outcome, _incident(failure, decided)


# --- before workers run


def preparing(state: s.Preparing, event: m.RoundChanged, now_s: float) -> s.Step:
    """Leave if the run is over; if only the round is over, remember that until the hooks have replied."""
    # No later step depends on the hooks' reply, so a slow health check does not delay the end.
    if isinstance(event.change, Decided) and isinstance(event.change.decision, Stop) and state.ledger.control:
        return without_start(state.ledger, state.round, event.change)
    return _remember(state, event.change)


def starting(state: s.Starting, event: m.RoundChanged, now_s: float) -> s.Step:
    """Remember that the round is over, until the workers have been started."""
    return _remember(state, event.change)


def _remember(state: s.Preparing | s.Starting, change: RoundChange) -> s.Step:
    # Without control only running workers are watched: this late report is about the previous round.
    if not state.ledger.control:
        return s.Step(state=state, reason="of the round before")
    # A decision replaces a round's end, and a round's end replaces an order to stop.
    undecided = state.over is None or isinstance(state.over, StopOrdered)
    # Only remembered: a reply of the hooks, or the start of workers, is still due, and no later state accepts it.
    new = isinstance(change, StopOrdered) and state.over is None
    if isinstance(change, Decided) or (isinstance(change, RoundEnded) and undecided) or new:
        marked = replace(state, over=change)
        return s.Step(state=marked, commands=s.watch_on(state.ledger), reason="the round is over before it has begun")
    return s.Step(state=state, commands=_watch_after(state.ledger, change), reason="nothing to do about it yet")


def without_start(ledger: s.Ledger, round_: Round, over: s.RoundOver) -> s.Step:
    """Rejoin or leave, because the round was over before this node started a worker."""
    first: tuple[m.AgentCommand, ...]
    if isinstance(over, StopOrdered):
        return s.wait_for_run(ledger, round_, over.reason)
    if isinstance(over, RoundEnded):
        ledger, first = _regrouped(ledger, round_, over)
        step = s.after_stop(ledger, s.Rejoin(), None, None)
    elif isinstance(over.decision, Restart):
        ledger, incident, first = _restarted(ledger, over)
        step = s.after_stop(ledger, s.Rejoin(delay_s=over.decision.delay_s), incident, None)
    else:
        ledger, outcome, incident = _ended(ledger, over.decision, over, round_.index)
        first, step = (), s.after_stop(ledger, s.End(outcome=outcome), incident, None)
    return replace(step, commands=(*first, *step.commands))


def _watch_after(ledger: s.Ledger, change: RoundChange) -> tuple[m.AgentCommand, ...]:
    """Return the next watch of the round, with a delay if the rendezvous is closed, which it reports each time."""
    if isinstance(change, RendezvousClosed):
        return (m.WatchRound(delay_s=s.PARKED_WATCH_S),) if ledger.control else ()
    return s.watch_on(ledger)


def refused(state: s.Refused, event: m.RoundChanged, now_s: float) -> s.Step:
    """Follow the run's decision, if this node still has its place in the round."""
    ledger, change = state.ledger, event.change
    if ledger.gates.aside or not ledger.control or state.round is None:
        return s.Step(state=state, reason="this node waits beside it")
    if isinstance(change, s.RoundOver):
        step = without_start(ledger, state.round, change)
        return replace(step, commands=(m.CancelTimer(name=s.GATE), *step.commands))
    return s.Step(state=state, commands=_watch_after(ledger, change), reason="nothing to do about it yet")


# --- while a failure is looked at


def deciding(state: s.Deciding, event: m.RoundChanged, now_s: float) -> s.Step:
    """Follow the run's decision in place of this node's; otherwise the failure comes first."""
    # If this node decides alone because no node could decide after that order, the order is not new.
    known = state.alone and isinstance(event.change, StopOrdered)
    if state.ledger.control and isinstance(event.change, s.RoundOver) and not known:
        if state.running is not None:
            return follow(state.running, event.change)
        return without_start(state.ledger, state.round, event.change)
    return s.Step(state=state, commands=_watch_after(state.ledger, event.change), reason="the failure comes first")


# --- while workers are stopped, and after


def stopping(state: s.Stopping, event: m.RoundChanged, now_s: float) -> s.Step:
    """Follow the run's decision in place of this node's; shorten the stop if the lease ends."""
    ledger, change = state.ledger, event.change
    if not ledger.control:
        return s.Step(state=state, reason="the next round sees it")
    step = s.Step(state=state, commands=_watch_after(ledger, change), reason="the workers are being stopped anyway")
    match change:
        case RoundEnded() if isinstance(state.then, s.Await):  # no decision about this round follows
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


def _is_under_way(state: s.Stopping, decided: Decided) -> bool:
    """Return whether the workers are already being stopped for this decision, usually published by this node."""
    if isinstance(state.then, s.Await):
        return False
    goes_on = isinstance(state.then, s.Rejoin)
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


def _regroup_instead(state: s.Stopping, change: RoundEnded) -> s.Step:
    """Join the next round: after this round's end there is nothing to decide."""
    ledger, first = _regrouped(state.ledger, state.round, change)
    if state.stop_asked_s is not None:  # this node leaves the run: the end of the round concerns the others
        first = first[:1]
    within_s = change.stop_within_s
    hurry = () if within_s is None else (m.ShortenGrace(grace_s=within_s, at_once=True),)
    then: s.Then = s.Rejoin() if state.stop_asked_s is None else state.then
    changed = replace(state, ledger=ledger, then=then)
    return s.Step(state=changed, commands=(*hurry, *first, *s.watch_on(ledger)), reason=change.reason)


def _overrule(state: s.Stopping, decided: Decided) -> s.Step:
    # Two nodes failed at once, and the run took the other's decision. This node's own is removed from the ledger, so
    # that the restart is not counted twice.
    ledger, decision = _without_own(state), decided.decision
    first: tuple[m.AgentCommand, ...] = ()
    then: s.Then
    if isinstance(decision, Restart):
        ledger, incident, first = _restarted(ledger, decided)
        then, reason = s.Rejoin(delay_s=decision.delay_s), "the run restarts"
    else:
        ledger, outcome, incident = _ended(ledger, decision, decided, state.round.index)
        then, reason = s.End(outcome=outcome), f"the run ends: {outcome.reason}"
        first = () if isinstance(state.then, s.End) else (m.NoneMayLeave(),)
    changed = replace(state, ledger=ledger, then=then, incident=incident)
    return s.Step(state=changed, commands=(*first, *s.watch_on(ledger)), reason=reason)


def _without_own(state: s.Stopping) -> s.Ledger:
    """Return the ledger without this node's own decision, which the run has overridden."""
    if state.incident is None:
        return state.ledger
    ledger, restarts = state.ledger, int(isinstance(state.incident.decision, Restart))
    return replace(ledger, restart_count=ledger.restart_count - restarts, history=ledger.history[:-1])


def waiting(state: s.Waiting, event: m.RoundChanged, now_s: float) -> s.Step:
    """Leave if the run is over; the next round handles other changes."""
    change = event.change
    if state.ledger.control and isinstance(change, Decided) and isinstance(change.decision, Stop):
        ledger, outcome, incident = _ended(state.ledger, change.decision, change, state.ledger.rounds - 1)
        step = s.after_stop(ledger, s.End(outcome=outcome), incident, None)
        return replace(step, commands=(m.CancelTimer(name=s.BACKOFF), *step.commands))
    return s.Step(state=state, commands=_watch_after(state.ledger, change), reason="the next round sees it")


def awaiting(state: s.Awaiting, event: m.RoundChanged, now_s: float) -> s.Step:
    """Carry out the run's decision; decide here if the run can't."""
    ledger, change = state.ledger, event.change
    match change:
        case Decided() | RoundEnded():
            return without_start(ledger, state.round, change)
        case Undecided(reason=reason, final=final):
            ask = m.DecideAlone(round=state.round, reason=reason, final=final, history=ledger.history)
            deciding = s.Deciding(ledger=ledger, running=None, round=state.round, alone=True)
            return s.Step(state=deciding, commands=(ask, *s.watch_on(ledger)), reason=reason)
        case _:
            return s.Step(state=state, commands=_watch_after(ledger, change), reason="still to be decided")
