"""What each event does in each state that handles it: the functions behind the table of `machine`.

Every function takes (state, event, now_s) and returns a `Step`; none has a side effect.
"""

from collections.abc import Iterable

from msgspec.structs import replace

from elastic_core import messages as m
from elastic_core.agent.states import (
    AgentState,
    Created,
    Deciding,
    End,
    Ended,
    Ending,
    Gating,
    Joining,
    Leaving,
    Ledger,
    Outcome,
    Preparing,
    Rejoin,
    Running,
    Settling,
    Starting,
    Stopping,
    Then,
    Waiting,
)
from elastic_core.errors import IllegalEventError
from elastic_core.types import (
    Decided,
    Decision,
    Failure,
    FailureClass,
    Ignore,
    MemberLost,
    NodesWaiting,
    Record,
    RendezvousClosed,
    Restart,
    Resumed,
    Round,
    Stop,
    Suspended,
    WorkerExit,
)

SETTLE_S = 0.1
"""How long peers of a worker that failed by itself may still report what they saw; a signal death settles at once."""
URGE_S = 0.5
"""A second stop signal counts only this long after the first: one Ctrl-C can arrive twice."""
LEAVE_S = 3.0
"""The longest that leaving the rendezvous may hold the agent up."""
PARKED_WATCH_S = 1.0
"""While newcomers have to wait, the round is looked at this often."""

SETTLE, BACKOFF, LEAVE = "settle", "backoff", "leave"
SIGTERM = 15


class Step(Record, frozen=True, kw_only=True):
    """What `advance` returns: the next state, the commands in order, and why."""

    state: AgentState
    commands: tuple[m.AgentCommand, ...] = ()
    reason: str = ""


# --- building blocks ---


def _gate(ledger: Ledger, reason: str, first: Iterable[m.AgentCommand] = ()) -> Step:
    ask = m.AskToJoin(round_index=ledger.rounds)
    return Step(state=Gating(ledger=ledger), commands=(*first, ask), reason=reason)


def _leave(
    ledger: Ledger, outcome: Outcome, first: Iterable[m.AgentCommand] = (), asked_s: float | None = None
) -> Step:
    commands = (
        *first,
        m.SetTimer(name=LEAVE, delay_s=LEAVE_S),
        m.LeaveRendezvous(close=outcome.ending is not Ending.STOPPED),
    )
    return Step(
        state=Leaving(ledger=ledger, outcome=outcome, stop_asked_s=asked_s), commands=commands, reason=outcome.reason
    )


def _end(ledger: Ledger, outcome: Outcome) -> Step:
    finish = m.Finish(exit_code=outcome.exit_code, reason=outcome.reason)
    return Step(state=Ended(ledger=ledger, outcome=outcome), commands=(finish,), reason=outcome.reason)


def _stopped_by(signum: int) -> Outcome:
    return Outcome(ending=Ending.STOPPED, exit_code=128 + signum, reason=f"stopped by signal {signum}")


def _stop(
    ledger: Ledger,
    round: Round,
    then: Then,
    reason: str,
    *,
    first: Iterable[m.AgentCommand] = (),
    incident: tuple[Failure, Decision] | None = None,
) -> Step:
    stopping = Stopping(ledger=ledger, round=round, then=then, incident=incident)
    return Step(state=stopping, commands=(*first, m.StopWorkers(signum=SIGTERM, reason=reason)), reason=reason)


def _drain(ledger: Ledger, round: Round, signum: int, now_s: float, first: Iterable[m.AgentCommand] = ()) -> Step:
    outcome = _stopped_by(signum)
    stopping = Stopping(ledger=ledger, round=round, then=End(outcome=outcome), stop_asked_s=now_s)
    stop = m.StopWorkers(signum=signum, reason=outcome.reason, drain=True)
    return Step(state=stopping, commands=(*first, stop), reason=outcome.reason)


def _without_workers(summary: str, kind: FailureClass, round_index: int = -1) -> Failure:
    return Failure(
        failure_class=kind,
        summary=summary,
        node_id="",
        round_index=round_index,
        at_s=0.0,
        uptime_s=0.0,
        message=summary,
    )


# --- before workers ---


def begin(state: Created, event: m.StartRequested, now_s: float) -> Step:
    """Ask the hooks, then join."""
    return _gate(state.ledger, "the agent was started")


def never_began(state: Created, event: m.StopRequested, now_s: float) -> Step:
    """End before anything began."""
    return _end(state.ledger, _stopped_by(event.signum))


def join(state: Gating, event: m.JoinAllowed, now_s: float) -> Step:
    """Enter the rendezvous."""
    return Step(state=Joining(ledger=state.ledger), commands=(m.JoinRendezvous(),), reason="joining")


def join_refused(state: Gating, event: m.JoinRefused, now_s: float) -> Step:
    """Let the policy decide what a refused join means."""
    failure = _without_workers(f"hook {event.hook!r} refused: {event.reason}", FailureClass.HEALTH_CHECK)
    ask = m.AskPolicy(failure=failure, history=state.ledger.history)
    return Step(state=Deciding(ledger=state.ledger, running=None), commands=(ask,), reason=failure.summary)


def stop_before_round(state: Gating | Joining, event: m.StopRequested, now_s: float) -> Step:
    """Leave without a round."""
    return _leave(state.ledger, _stopped_by(event.signum), (m.CancelRendezvous(),), asked_s=now_s)


def formed(state: Joining, event: m.RoundFormed, now_s: float) -> Step:
    """Ask the hooks before workers start."""
    ledger = replace(state.ledger, rounds=state.ledger.rounds + 1)
    ask = m.AskToStart(
        round=event.round, restart_count=ledger.restart_count, membership_changes=ledger.membership_changes
    )
    commands = (m.Tell(moment=m.RoundJoined(round=event.round)), ask)
    return Step(state=Preparing(ledger=ledger, round=event.round), commands=commands, reason="a round was formed")


def no_round(state: Joining, event: m.RendezvousFailed, now_s: float) -> Step:
    """End: without a round there is nothing to run; an unneeded node ends well."""
    if event.exit_code == 0:
        outcome = Outcome(ending=Ending.SUCCEEDED, exit_code=0, reason=event.summary)
        return _leave(state.ledger, outcome)
    failure = replace(_without_workers(event.summary, FailureClass.RENDEZVOUS), exit_code=event.exit_code)
    record = m.RecordIncident(failure=failure, decision=Stop(reason="there is no round to run", rule="rendezvous"))
    outcome = Outcome(ending=Ending.FAILED, exit_code=event.exit_code, reason=event.summary)
    return _leave(state.ledger, outcome, (record,))


def start(state: Preparing, event: m.StartAllowed, now_s: float) -> Step:
    """Start the workers."""
    ledger = state.ledger
    spawn = m.SpawnWorkers(
        round=state.round,
        restart_count=ledger.restart_count,
        membership_changes=ledger.membership_changes,
        variables=event.variables,
    )
    return Step(state=Starting(ledger=ledger, round=state.round), commands=(spawn,), reason="starting workers")


def start_refused(state: Preparing, event: m.StartRefused, now_s: float) -> Step:
    """Let the policy decide what a refused start means."""
    summary = f"hook {event.hook!r} refused: {event.reason}"
    failure = _without_workers(summary, FailureClass.HEALTH_CHECK, state.round.index)
    ask = m.AskPolicy(failure=failure, history=state.ledger.history)
    return Step(state=Deciding(ledger=state.ledger, running=None), commands=(ask,), reason=failure.summary)


def stop_before_start(state: Preparing, event: m.StopRequested, now_s: float) -> Step:
    """Leave without workers."""
    return _leave(state.ledger, _stopped_by(event.signum), (m.CancelRendezvous(),), asked_s=now_s)


def spawned(state: Starting, event: m.WorkersSpawned, now_s: float) -> Step:
    """Workers run."""
    everyone = frozenset(range(state.round.local_world_size))
    running = Running(ledger=state.ledger, round=state.round, started_s=now_s, alive=everyone)
    return Step(state=running, commands=(m.WatchRound(),), reason="workers run")


def spawn_failed(state: Starting, event: m.SpawnFailed, now_s: float) -> Step:
    """Let the policy decide what a failed start means."""
    running = Running(ledger=state.ledger, round=state.round, started_s=now_s, alive=event.alive)
    ask = m.AskPolicy(failure=event.failure, history=state.ledger.history)
    deciding = Deciding(ledger=state.ledger, running=running)
    return Step(state=deciding, commands=(ask,), reason=event.failure.summary)


def stop_starting(state: Starting, event: m.StopRequested, now_s: float) -> Step:
    """Stop what was started."""
    return _drain(state.ledger, state.round, event.signum, now_s)


# --- while workers run ---


def _finished(running: Running) -> Step:
    outcome = Outcome(ending=Ending.SUCCEEDED, exit_code=0, reason="all workers finished")
    return _stop(running.ledger, running.round, End(outcome=outcome), outcome.reason)


def worker_ended(state: Running, event: m.WorkerExited, now_s: float) -> Step:
    """Note a clean exit, or begin to look at a failure."""
    rank = event.exit.local_rank
    alive = state.alive - {rank}
    running = replace(state, alive=alive, done=state.done | {rank} if event.exit.code == 0 else state.done)
    if event.exit.code == 0:
        return Step(state=running, reason=f"local rank {rank} finished") if alive else _finished(running)
    return _evidence(running, (event.exit,), settle=event.exit.code > 0)


def _evidence(running: Running, exits: tuple[WorkerExit, ...], *, settle: bool) -> Step:
    reason = f"local rank {exits[0].local_rank} failed"
    if settle and running.alive:
        timer = m.SetTimer(name=SETTLE, delay_s=SETTLE_S)
        return Step(state=Settling(running=running, exits=exits), commands=(timer,), reason=reason)
    return _examine(running, exits, reason)


def _examine(
    running: Running, exits: tuple[WorkerExit, ...], reason: str, first: Iterable[m.AgentCommand] = ()
) -> Step:
    deciding = Deciding(ledger=running.ledger, running=running, exits=exits)
    return Step(state=deciding, commands=(*first, m.Examine(exits=exits, round=running.round)), reason=reason)


def another_ended(state: Settling, event: m.WorkerExited, now_s: float) -> Step:
    """Collect what another worker left while the evidence settles."""
    running, exits = _collect(state.running, state.exits, event.exit)
    if not running.alive:
        return _examine(running, exits, "no worker is left", (m.CancelTimer(name=SETTLE),))
    return Step(state=Settling(running=running, exits=exits), reason=f"local rank {event.exit.local_rank} ended too")


def _collect(
    running: Running, exits: tuple[WorkerExit, ...], exit: WorkerExit
) -> tuple[Running, tuple[WorkerExit, ...]]:
    alive = running.alive - {exit.local_rank}
    if exit.code == 0:
        return replace(running, alive=alive, done=running.done | {exit.local_rank}), exits
    return replace(running, alive=alive), (*exits, exit)


def settled(state: Settling, event: m.TimerFired, now_s: float) -> Step:
    """Read the evidence."""
    return _examine(state.running, state.exits, "the evidence has settled")


def stop_settling(state: Settling, event: m.StopRequested, now_s: float) -> Step:
    """The user's word comes before the failure's."""
    running = state.running
    return _drain(running.ledger, running.round, event.signum, now_s, (m.CancelTimer(name=SETTLE),))


def ended_while_deciding(state: Deciding, event: m.WorkerExited, now_s: float) -> Step:
    """Collect what another worker left while the policy decides."""
    if state.running is None:
        raise IllegalEventError("a worker ended where none had been started")
    running, exits = _collect(state.running, state.exits, event.exit)
    deciding = Deciding(ledger=state.ledger, running=running, exits=exits)
    return Step(state=deciding, reason=f"local rank {event.exit.local_rank} ended too")


def examined(state: Deciding, event: m.Examined, now_s: float) -> Step:
    """Ask the policy about the first cause."""
    ask = m.AskPolicy(failure=event.failure, history=state.ledger.history)
    return Step(state=state, commands=(ask,), reason=event.failure.summary)


def decided(state: Deciding, event: m.DecisionMade, now_s: float) -> Step:
    """Do what the policy decided."""
    match event.decision:
        case Restart():
            return _restart(state, event.failure, event.decision)
        case Stop():
            return _give_up(state, event.failure, event.decision)
        case Ignore():
            return _ignore(state, event.failure, event.decision)


def _noted(ledger: Ledger, failure: Failure, decision: Decision, *, restarts: int) -> Ledger:
    noted = replace(failure, decision=decision)
    return replace(ledger, restart_count=ledger.restart_count + restarts, history=(*ledger.history, noted))


def _restart(state: Deciding, failure: Failure, decision: Restart) -> Step:
    ledger = _noted(state.ledger, failure, decision, restarts=1)
    reason = f"restart {ledger.restart_count}: {failure.summary}"
    if state.running is None:
        return _after_stop(ledger, Rejoin(delay_s=decision.delay_s), (failure, decision), None)
    return _stop(ledger, state.running.round, Rejoin(delay_s=decision.delay_s), reason, incident=(failure, decision))


def _give_up(state: Deciding, failure: Failure, decision: Stop) -> Step:
    ledger = _noted(state.ledger, failure, decision, restarts=0)
    if decision.outcome == "done":
        outcome = Outcome(ending=Ending.SUCCEEDED, exit_code=0, reason=decision.reason)
    else:
        outcome = Outcome(ending=Ending.FAILED, exit_code=failure.exit_code, reason=failure.summary)
    if state.running is None:
        return _after_stop(ledger, End(outcome=outcome), (failure, decision), None)
    reason = f"{failure.summary}; {decision.reason}"
    return _stop(ledger, state.running.round, End(outcome=outcome), reason, incident=(failure, decision))


def _ignore(state: Deciding, failure: Failure, decision: Ignore) -> Step:
    if state.running is None or failure.local_rank is None:
        # Nothing runs on without it: a refused join or a failed start can't be ignored.
        return _give_up(state, failure, Stop(reason="there is no worker to go on with", rule=decision.rule))
    ledger = _noted(state.ledger, failure, decision, restarts=0)
    running = replace(state.running, ledger=ledger, ignored=state.running.ignored | {failure.local_rank})
    others = tuple(e for e in state.exits if e.local_rank not in running.ignored)
    if others:
        return _evidence(running, others, settle=False)
    if not running.alive:
        return _finished(running)
    return Step(state=running, commands=(m.WatchRound(),), reason=f"going on without local rank {failure.local_rank}")


def stop_deciding(state: Deciding, event: m.StopRequested, now_s: float) -> Step:
    """The user's word comes before the policy's."""
    if state.running is None:
        return _leave(state.ledger, _stopped_by(event.signum), asked_s=now_s)
    return _drain(state.ledger, state.running.round, event.signum, now_s)


def stop_running(state: Running, event: m.StopRequested, now_s: float) -> Step:
    """Drain: the workers get the signal that we got."""
    return _drain(state.ledger, state.round, event.signum, now_s)


def forward(state: Running, event: m.SignalForwarded, now_s: float) -> Step:
    """Pass a user signal on."""
    return Step(
        state=state, commands=(m.ForwardSignal(signum=event.signum),), reason=f"signal {event.signum} passed on"
    )


def round_changed(state: Running, event: m.RoundChanged, now_s: float) -> Step:
    """Restart, park, follow or note what the rendezvous reports."""
    match event.change:
        case NodesWaiting() if state.done:
            watch = m.WatchRound(delay_s=PARKED_WATCH_S)
            return Step(state=state, commands=(watch,), reason="newcomers wait: workers have begun to finish")
        case NodesWaiting() | MemberLost():
            return _change_membership(state, event)
        case Decided(decision=decision):
            return _follow(state, decision)
        case RendezvousClosed():
            return Step(state=state, reason="the rendezvous was closed: workers finish, no further round")
        case Suspended(reason=reason):
            return Step(state=state, commands=(m.WatchRound(),), reason=f"suspended: {reason}")
        case Resumed():
            return Step(state=state, commands=(m.WatchRound(),), reason="resumed")


def _follow(state: Running, decision: Restart | Stop) -> Step:
    if isinstance(decision, Restart):
        return _stop(state.ledger, state.round, Rejoin(delay_s=decision.delay_s), "the leader decided to restart")
    done = decision.outcome == "done"
    ending, code = (Ending.SUCCEEDED, 0) if done else (Ending.FAILED, 1)
    outcome = Outcome(ending=ending, exit_code=code, reason=decision.reason)
    return _stop(state.ledger, state.round, End(outcome=outcome), decision.reason)


def _change_membership(state: Running, event: m.RoundChanged) -> Step:
    ledger = replace(state.ledger, membership_changes=state.ledger.membership_changes + 1)
    told = m.Tell(moment=m.MembershipChanged(round_index=state.round.index, change=event.change))
    return _stop(ledger, state.round, Rejoin(), "nodes came or went", first=(told,))


# --- when workers are gone ---


def _after_stop(
    ledger: Ledger,
    then: Then,
    incident: tuple[Failure, Decision] | None,
    asked_s: float | None,
) -> Step:
    recorded: tuple[m.AgentCommand, ...] = ()
    if incident is not None:
        recorded = (m.RecordIncident(failure=incident[0], decision=incident[1]),)
    match then:
        case End(outcome=outcome):
            return _leave(ledger, outcome, recorded, asked_s)
        case Rejoin(delay_s=delay_s) if delay_s > 0:
            timer = m.SetTimer(name=BACKOFF, delay_s=delay_s)
            return Step(
                state=Waiting(ledger=ledger), commands=(*recorded, timer), reason=f"next round in {delay_s:g} s"
            )
        case Rejoin():
            return _gate(ledger, "next round", recorded)


def workers_gone(state: Stopping, event: m.WorkersStopped, now_s: float) -> Step:
    """Record the incident, then begin the next round, wait, or leave."""
    return _after_stop(state.ledger, state.then, state.incident, state.stop_asked_s)


def stop_again(state: Stopping, event: m.StopRequested, now_s: float) -> Step:
    """A second signal kills; a first one turns a restart into an end."""
    urged = state.stop_asked_s is not None and now_s - state.stop_asked_s >= URGE_S
    then = state.then if isinstance(state.then, End) else End(outcome=_stopped_by(event.signum))
    stopping = replace(state, then=then, stop_asked_s=now_s if state.stop_asked_s is None else state.stop_asked_s)
    if urged:
        return Step(state=stopping, commands=(m.KillWorkers(),), reason="second stop signal: killing the workers")
    if state.stop_asked_s is None and not _succeeds(state.then):
        announce = m.AnnounceDrain(signum=event.signum)
        return Step(state=stopping, commands=(announce,), reason="already stopping; told to end")
    return Step(state=stopping, reason="already stopping")


def _succeeds(then: Then) -> bool:
    return isinstance(then, End) and then.outcome.ending is Ending.SUCCEEDED


def backoff_over(state: Waiting, event: m.TimerFired, now_s: float) -> Step:
    """Begin the next round."""
    return _gate(state.ledger, "the delay is over")


def stop_waiting(state: Waiting, event: m.StopRequested, now_s: float) -> Step:
    """Leave instead of restarting."""
    return _leave(state.ledger, _stopped_by(event.signum), (m.CancelTimer(name=BACKOFF),), asked_s=now_s)


def left(state: Leaving, event: m.RendezvousLeft, now_s: float) -> Step:
    """End."""
    step = _end(state.ledger, state.outcome)
    return Step(state=step.state, commands=(m.CancelTimer(name=LEAVE), *step.commands), reason=step.reason)


def left_anyway(state: Leaving, event: m.TimerFired, now_s: float) -> Step:
    """End: leaving took too long."""
    return _end(state.ledger, state.outcome)


def stop_leaving(state: Leaving, event: m.StopRequested, now_s: float) -> Step:
    """A second signal ends at once."""
    if state.stop_asked_s is not None and now_s - state.stop_asked_s >= URGE_S:
        return _end(state.ledger, state.outcome)
    asked_s = now_s if state.stop_asked_s is None else state.stop_asked_s
    return Step(state=replace(state, stop_asked_s=asked_s), reason="already leaving")
