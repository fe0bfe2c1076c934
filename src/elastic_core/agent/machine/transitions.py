"""What each event does in each state that handles it: the functions behind the table of `machine`.

Every function takes (state, event, now_s) and returns a `Step`; none has a side effect. What the rendezvous tells of
the round is in `news`.
"""

from collections.abc import Iterable

from msgspec.structs import replace

from elastic_core import messages as m
from elastic_core.agent.machine import round_changed as news
from elastic_core.agent.machine.states import (
    AgentState,
    Await,
    Awaiting,
    Created,
    Deciding,
    End,
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
from elastic_core.agent.machine.steps import (
    BACKOFF,
    LEAVE,
    REPORT,
    SETTLE,
    SETTLE_S,
    STOP_SETTLE_S,
    URGE_S,
    Step,
    after_stop,
    depart,
    drain,
    end,
    gate,
    leave,
    listen,
    noted,
    stop,
    stop_and_wait,
    stopped_by,
    wait_for_run,
    without_workers,
)
from elastic_core.errors import IllegalEventError
from elastic_core.types import (
    Failure,
    FailureClass,
    Ignore,
    Restart,
    Round,
    Stop,
    WorkerExit,
)

# --- before workers ---


def begin(state: Created, event: m.StartRequested, now_s: float) -> Step:
    """Ask the hooks, then join."""
    gathers = event.control and event.gathers
    ledger = replace(state.ledger, control=event.control, gathers=gathers, stop_signals=event.stop_signals)
    return gate(ledger, "the agent was started")


def never_began(state: Created, event: m.StopRequested, now_s: float) -> Step:
    """End before anything began."""
    return end(state.ledger, stopped_by(event.signum))


def join(state: Gating, event: m.JoinAllowed, now_s: float) -> Step:
    """Enter the rendezvous."""
    return Step(state=Joining(ledger=state.ledger), commands=(m.JoinRendezvous(),), reason="joining")


def join_refused(state: Gating, event: m.JoinRefused, now_s: float) -> Step:
    """Let the policy decide what a refused join means."""
    failure = without_workers(f"hook {event.hook!r} refused: {event.reason}", FailureClass.HEALTH_CHECK)
    ask = m.AskPolicy(failure=failure, history=state.ledger.history)
    return Step(state=Deciding(ledger=state.ledger, running=None), commands=(ask,), reason=failure.summary)


def stop_before_round(state: Gating | Joining, event: m.StopRequested, now_s: float) -> Step:
    """Leave without a round."""
    return leave(state.ledger, stopped_by(event.signum), (m.CancelRendezvous(),), asked_s=now_s)


def formed(state: Joining, event: m.RoundFormed, now_s: float) -> Step:
    """Ask the hooks before workers start."""
    ledger = replace(state.ledger, rounds=event.round.index + 1)
    if (counts := event.round.counts) is not None:
        ledger = replace(
            ledger,
            restart_count=counts.restart_count,
            membership_changes=counts.membership_changes,
            history=counts.history,
        )
    ask = m.AskToStart(
        round=event.round, restart_count=ledger.restart_count, membership_changes=ledger.membership_changes
    )
    commands = (m.Tell(moment=m.RoundJoined(round=event.round)), ask, *listen(ledger))
    return Step(state=Preparing(ledger=ledger, round=event.round), commands=commands, reason="a round was formed")


def no_round(state: Joining, event: m.RendezvousFailed, now_s: float) -> Step:
    """End: without a round there is nothing to run; an unneeded node ends well."""
    if event.exit_code == 0:
        outcome = Outcome(ending=Ending.SUCCEEDED, exit_code=0, reason=event.summary)
        return leave(state.ledger, outcome, (m.Say(text=event.summary),))
    failure = replace(without_workers(event.summary, FailureClass.RENDEZVOUS), exit_code=event.exit_code)
    record = m.RecordIncident(failure=failure, decision=Stop(reason="there is no round to run", rule="rendezvous"))
    outcome = Outcome(ending=Ending.FAILED, exit_code=event.exit_code, reason=event.summary)
    return leave(state.ledger, outcome, (record,))


def start(state: Preparing, event: m.StartAllowed, now_s: float) -> Step:
    """Start the workers, unless the round is over already."""
    ledger = state.ledger
    if state.news is not None:
        return news.without_start(ledger, state.round, state.news)
    spawn = m.SpawnWorkers(
        round=state.round,
        restart_count=ledger.restart_count,
        membership_changes=ledger.membership_changes,
        variables=event.variables,
    )
    return Step(state=Starting(ledger=ledger, round=state.round), commands=(spawn,), reason="starting workers")


def start_refused(state: Preparing, event: m.StartRefused, now_s: float) -> Step:
    """Let the policy decide what a refused start means, unless the round is over already."""
    if state.news is not None:
        return news.without_start(state.ledger, state.round, state.news)
    summary = f"hook {event.hook!r} refused: {event.reason}"
    failure = without_workers(summary, FailureClass.HEALTH_CHECK, state.round.index)
    ask = m.AskPolicy(failure=failure, history=state.ledger.history)
    deciding = Deciding(ledger=state.ledger, running=None, round=state.round)
    return Step(state=deciding, commands=(ask,), reason=failure.summary)


def stop_before_start(state: Preparing, event: m.StopRequested, now_s: float) -> Step:
    """Leave without workers."""
    return leave(state.ledger, stopped_by(event.signum), (m.CancelRendezvous(),), asked_s=now_s)


def spawned(state: Starting, event: m.WorkersSpawned, now_s: float) -> Step:
    """Workers run, or are stopped because the round is over already."""
    everyone = frozenset(range(state.round.local_world_size))
    running = Running(ledger=state.ledger, round=state.round, started_s=now_s, alive=everyone)
    if state.news is not None:
        return news.heed(running, state.news)
    return Step(state=running, commands=(m.WatchRound(),), reason="workers run")


def spawn_failed(state: Starting, event: m.SpawnFailed, now_s: float) -> Step:
    """Let the policy decide what a failed start means, unless the round is over already."""
    running = Running(ledger=state.ledger, round=state.round, started_s=now_s, alive=event.alive)
    if state.news is not None:
        return news.heed(running, state.news)
    ask = m.AskPolicy(failure=event.failure, history=state.ledger.history)
    deciding = Deciding(ledger=state.ledger, running=running, round=state.round)
    return Step(state=deciding, commands=(ask,), reason=event.failure.summary)


def stop_starting(state: Starting, event: m.StopRequested, now_s: float) -> Step:
    """Stop what was started."""
    return drain(state.ledger, state.round, event.signum, now_s, grace_s=event.grace_s)


# --- while workers run ---


def _finished(running: Running, first: tuple[m.AgentCommand, ...] = ()) -> Step:
    if running.ledger.control:
        return Step(state=running, commands=(m.ReportDone(), *first), reason="all workers of this node finished")
    outcome = Outcome(ending=Ending.SUCCEEDED, exit_code=0, reason="all workers finished")
    return stop(running.ledger, running.round, End(outcome=outcome), outcome.reason)


def worker_ended(state: Running, event: m.WorkerExited, now_s: float) -> Step:
    """Note a clean exit, or begin to look at a failure."""
    rank = event.exit.local_rank
    running, exits = _collect(state, (), event.exit)
    if exits:
        return _evidence(running, exits, settle=event.exit.code > 0)
    if running.alive:
        return Step(state=running, commands=_finishing(state, running), reason=f"local rank {rank} finished")
    return _finished(running)


def hang_found(state: Running, event: m.HangFound, now_s: float) -> Step:
    """Let the policy decide what a hang means; the workers run on until it has."""
    ask = m.AskPolicy(failure=event.failure, history=state.ledger.history)
    deciding = Deciding(ledger=state.ledger, running=state, round=state.round)
    return Step(state=deciding, commands=(ask,), reason=event.failure.summary)


def _finishing(before: Running, running: Running) -> tuple[m.AgentCommand, ...]:
    """Return what tells the run that the first worker has finished, if that has just happened."""
    first = running.ledger.control and running.done and not before.done
    return (m.ReportFinishing(),) if first else ()


def _evidence(running: Running, exits: tuple[WorkerExit, ...], *, settle: bool) -> Step:
    reason = f"local rank {exits[0].local_rank} failed"
    if any(_told_to_stop(running.ledger, exit) for exit in exits):
        delay_s, reason = STOP_SETTLE_S, f"local rank {exits[0].local_rank} was told to stop, not by us"
    elif settle and running.alive:
        delay_s = SETTLE_S
    else:
        return _examine(running, exits, reason)
    timer = m.SetTimer(name=SETTLE, delay_s=delay_s)
    return Step(state=Settling(running=running, exits=exits), commands=(timer,), reason=reason)


def _told_to_stop(ledger: Ledger, exit: WorkerExit) -> bool:
    """Return whether a worker ended by a stop signal of somebody else's, or with the code that stands for one."""
    signum = -exit.code if exit.code < 0 else exit.code - 128
    return exit.stop_signal is None and signum in ledger.stop_signals


def _examine(
    running: Running, exits: tuple[WorkerExit, ...], reason: str, first: Iterable[m.AgentCommand] = ()
) -> Step:
    deciding = Deciding(ledger=running.ledger, running=running, round=running.round, exits=exits)
    return Step(state=deciding, commands=(*first, m.Examine(exits=exits, round=running.round)), reason=reason)


def another_ended(state: Settling, event: m.WorkerExited, now_s: float) -> Step:
    """Collect what another worker left while the evidence settles."""
    running, exits = _collect(state.running, state.exits, event.exit)
    stops = any(_told_to_stop(running.ledger, exit) for exit in exits)
    if not running.alive and not stops:
        return _examine(running, exits, "no worker is left", (m.CancelTimer(name=SETTLE),))
    longer: tuple[m.AgentCommand, ...] = ()
    if stops and not any(_told_to_stop(running.ledger, exit) for exit in state.exits):
        longer = (m.SetTimer(name=SETTLE, delay_s=STOP_SETTLE_S),)
    return Step(
        state=Settling(running=running, exits=exits),
        commands=(*_finishing(state.running, running), *longer),
        reason=f"local rank {event.exit.local_rank} ended too",
    )


def _collect(
    running: Running, exits: tuple[WorkerExit, ...], exit: WorkerExit
) -> tuple[Running, tuple[WorkerExit, ...]]:
    alive = running.alive - {exit.local_rank}
    if exit.code == 0:
        return replace(running, alive=alive, done=running.done | {exit.local_rank}), exits
    if exit.local_rank in running.ignored:  # one that hung, and has ended since: that it is missing is decided
        return replace(running, alive=alive), exits
    return replace(running, alive=alive), (*exits, exit)


def settled(state: Settling, event: m.TimerFired, now_s: float) -> Step:
    """Read the evidence."""
    return _examine(state.running, state.exits, "the evidence has settled")


def stop_settling(state: Settling, event: m.StopRequested, now_s: float) -> Step:
    """The user's word comes before the failure's."""
    running = state.running
    return drain(
        running.ledger, running.round, event.signum, now_s, (m.CancelTimer(name=SETTLE),), grace_s=event.grace_s
    )


def ended_while_deciding(state: Deciding, event: m.WorkerExited, now_s: float) -> Step:
    """Collect what another worker left while the policy decides."""
    if state.running is None:
        raise IllegalEventError("a worker ended where none had been started")
    running, exits = _collect(state.running, state.exits, event.exit)
    return Step(
        state=replace(state, running=running, exits=exits),
        commands=_finishing(state.running, running),
        reason=f"local rank {event.exit.local_rank} ended too",
    )


def examined(state: Deciding, event: m.Examined, now_s: float) -> Step:
    """Ask the policy about the first cause."""
    ask = m.AskPolicy(failure=event.failure, history=state.ledger.history)
    return Step(state=state, commands=(ask,), reason=event.failure.summary)


def decided(state: Deciding, event: m.DecisionMade, now_s: float) -> Step:
    """Do what the policy decided."""
    gathers = state.ledger.gathers and not state.alone
    match event.decision:
        case Restart() | Stop() if gathers and state.round is not None:
            return _order_stop(state, state.round, event.failure)
        case Restart():
            return _restart(state, event.failure, event.decision)
        case Stop():
            return _give_up(state, event.failure, event.decision)
        case Ignore():
            return _ignore(state, event.failure, event.decision)


def _order_stop(state: Deciding, round_: Round, failure: Failure) -> Step:
    """Stop all nodes, the others first: what follows is decided for the run, when it is known what all have seen."""
    order = (m.OrderStop(failure=failure),)
    if state.running is not None:
        return stop_and_wait(state.ledger, round_, failure.summary, order)
    return wait_for_run(state.ledger, round_, failure.summary, order)


def _publish(state: Deciding, failure: Failure, decision: Restart | Stop) -> tuple[m.AgentCommand, ...]:
    """Return what tells the run first, so that all its nodes stop their workers at the same time.

    Of a node that is in no round there is nothing that the others need to know.
    """
    if not state.ledger.control or state.round is None:
        return ()
    return (m.PublishDecision(failure=failure, decision=decision),)


def _restart(state: Deciding, failure: Failure, decision: Restart) -> Step:
    ledger = noted(state.ledger, failure, decision, restarts=1)
    return _carry_out(
        state,
        ledger,
        Rejoin(delay_s=decision.delay_s),
        failure,
        decision,
        f"restart {ledger.restart_count}: {failure.summary}",
    )


def _give_up(state: Deciding, failure: Failure, decision: Stop) -> Step:
    ledger = noted(state.ledger, failure, decision, restarts=0)
    if decision.outcome == "done":
        outcome = Outcome(ending=Ending.SUCCEEDED, exit_code=0, reason=decision.reason)
    else:
        outcome = Outcome(ending=Ending.FAILED, exit_code=failure.exit_code, reason=failure.summary)
    reason = f"{failure.summary}; {decision.reason}"
    return _carry_out(state, ledger, End(outcome=outcome), failure, decision, reason)


def _carry_out(
    state: Deciding, ledger: Ledger, then: Rejoin | End, failure: Failure, decision: Restart | Stop, reason: str
) -> Step:
    first, incident = _publish(state, failure, decision), (failure, decision, "")
    if state.running is not None:
        return stop(ledger, state.running.round, then, reason, first=first, incident=incident)
    step = after_stop(ledger, then, incident, None)
    return replace(step, commands=(*first, *step.commands))


def _ignore(state: Deciding, failure: Failure, decision: Ignore) -> Step:
    if state.running is None or failure.local_rank is None:
        # Nothing runs on without it: a refused join or a failed start can't be ignored.
        if state.ledger.gathers and not state.alone and state.round is not None:
            return _order_stop(state, state.round, failure)
        return _give_up(state, failure, Stop(reason="there is no worker to go on with", rule=decision.rule))
    ledger = noted(state.ledger, failure, decision, restarts=0)
    running = replace(state.running, ledger=ledger, ignored=state.running.ignored | {failure.local_rank})
    others = tuple(e for e in state.exits if e.local_rank not in running.ignored)
    if others:
        return _evidence(running, others, settle=False)
    if not running.alive:
        return _finished(running, listen(ledger))
    return Step(state=running, commands=(m.WatchRound(),), reason=f"going on without local rank {failure.local_rank}")


def stop_deciding(state: Deciding, event: m.StopRequested, now_s: float) -> Step:
    """The user's word comes before the policy's."""
    if state.running is None:
        return leave(state.ledger, stopped_by(event.signum), asked_s=now_s)
    return drain(state.ledger, state.running.round, event.signum, now_s, grace_s=event.grace_s)


def stop_running(state: Running, event: m.StopRequested, now_s: float) -> Step:
    """Drain: the workers get the signal that we got."""
    finished = not state.alive
    return drain(state.ledger, state.round, event.signum, now_s, finished=finished, grace_s=event.grace_s)


def restart_asked(state: Running, event: m.RestartRequested, now_s: float) -> Step:
    """Begin the next round, with all nodes: no failure is on the books, and no budget spent."""
    if not state.alive:
        return Step(state=state, reason="no worker of this node runs")
    ask = (m.RequestRestart(reason=event.reason),) if state.ledger.control else ()
    told = m.Say(text=f"round {state.round.index} is over: {event.reason}")
    return stop(state.ledger, state.round, Rejoin(), event.reason, first=(*ask, told))


def forward(state: AgentState, event: m.SignalForwarded, now_s: float) -> Step:
    """Pass a user signal on to the workers, or to those that are started next."""
    if isinstance(state, Stopping) and isinstance(state.then, End):
        return Step(state=state, reason="the workers are being stopped")
    send = m.ForwardSignal(signum=event.signum)
    return Step(state=state, commands=(send,), reason=f"signal {event.signum} passed on")


# --- when workers are gone ---


def workers_gone(state: Stopping, event: m.WorkersStopped, now_s: float) -> Step:
    """Record the incident, then begin the next round, wait, or leave; or wait for what the run decides."""
    if isinstance(state.then, Await):
        forget = (m.CancelTimer(name=REPORT),)
        return wait_for_run(state.ledger, state.round, "the workers are gone: what follows is decided", forget)
    return after_stop(state.ledger, state.then, state.incident, state.stop_asked_s)


def report_due(state: Stopping, event: m.TimerFired, now_s: float) -> Step:
    """Say what was seen so far, where workers take long to stop and the run is still to decide."""
    if not isinstance(state.then, Await):
        return Step(state=state, reason="it is decided already")
    report = m.ReportEvidence(round=state.round, final=False)
    return Step(state=state, commands=(report,), reason="the workers take long to stop")


def stop_awaiting(state: Awaiting, event: m.StopRequested, now_s: float) -> Step:
    """Leave without waiting for what the run decides."""
    return leave(state.ledger, stopped_by(event.signum), depart(state.ledger), asked_s=now_s)


def stop_again(state: Stopping, event: m.StopRequested, now_s: float) -> Step:
    """A second signal kills, or has the workers hurry; a first one turns a restart into an end."""
    urged = state.stop_asked_s is not None and now_s - state.stop_asked_s >= URGE_S
    then = state.then if isinstance(state.then, End) else End(outcome=stopped_by(event.signum))
    stopping = replace(state, then=then, stop_asked_s=now_s if state.stop_asked_s is None else state.stop_asked_s)
    hurry = () if event.grace_s is None else (m.ShortenGrace(grace_s=event.grace_s),)
    if urged and not hurry:
        return Step(state=stopping, commands=(m.KillWorkers(),), reason="second stop signal: killing the workers")
    if state.stop_asked_s is None and not _succeeds(state.then):
        gone = () if isinstance(state.then, End) else depart(state.ledger)
        announce = m.AnnounceDrain(signum=event.signum)
        return Step(state=stopping, commands=(*gone, *hurry, announce), reason="already stopping; told to end")
    return Step(state=stopping, commands=hurry, reason="already stopping")


def _succeeds(then: Then) -> bool:
    return isinstance(then, End) and then.outcome.ending is Ending.SUCCEEDED


def backoff_over(state: Waiting, event: m.TimerFired, now_s: float) -> Step:
    """Begin the next round."""
    return gate(state.ledger, "the delay is over")


def stop_waiting(state: Waiting, event: m.StopRequested, now_s: float) -> Step:
    """Leave instead of restarting."""
    return leave(state.ledger, stopped_by(event.signum), (m.CancelTimer(name=BACKOFF),), asked_s=now_s)


def left(state: Leaving, event: m.RendezvousLeft, now_s: float) -> Step:
    """End."""
    step = end(state.ledger, state.outcome)
    return Step(state=step.state, commands=(m.CancelTimer(name=LEAVE), *step.commands), reason=step.reason)


def left_anyway(state: Leaving, event: m.TimerFired, now_s: float) -> Step:
    """End: leaving took too long."""
    return end(state.ledger, state.outcome)


def stop_leaving(state: Leaving, event: m.StopRequested, now_s: float) -> Step:
    """A second signal ends at once."""
    if state.stop_asked_s is not None and now_s - state.stop_asked_s >= URGE_S:
        return end(state.ledger, state.outcome)
    asked_s = now_s if state.stop_asked_s is None else state.stop_asked_s
    return Step(state=replace(state, stop_asked_s=asked_s), reason="already leaving")
