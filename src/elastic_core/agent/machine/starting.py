"""Transitions from the first event to running workers: joining, preparing, starting."""

from msgspec.structs import replace

from elastic_core import messages as m
from elastic_core import moments
from elastic_core.agent.machine import round_changed
from elastic_core.agent.machine.states import (
    Created,
    Deciding,
    Ending,
    Gating,
    Joining,
    Outcome,
    Preparing,
    Running,
    Starting,
)
from elastic_core.agent.machine.steps import (
    Step,
    drain,
    end,
    gate,
    leave,
    stopped_by,
    watch_on,
    without_workers,
)
from elastic_core.types import FailureClass, Stop


def begin(state: Created, event: m.StartRequested, now_s: float) -> Step:
    """Ask the hooks, then join."""
    gathers = event.control and event.gathers  # evidence of all nodes is of no use where each decides for itself
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
    # What the whole run has been through wins over this node's own books: a newcomer's are empty, and a policy that
    # counted by them would give a run more restarts than its budget.
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
    # Watched from now on: the round may be over before the hooks have answered.
    commands = (m.NotifyHooks(moment=moments.RoundJoined(round=event.round)), ask, *watch_on(ledger))
    return Step(state=Preparing(ledger=ledger, round=event.round), commands=commands, reason="a round was formed")


def no_round(state: Joining, event: m.RendezvousFailed, now_s: float) -> Step:
    """End: without a round there is nothing to run; an unneeded node ends well."""
    if event.exit_code == 0:
        outcome = Outcome(ending=Ending.SUCCEEDED, exit_code=0, reason=event.summary)
        return leave(state.ledger, outcome, (m.PrintLine(text=event.summary),))
    failure = replace(without_workers(event.summary, FailureClass.RENDEZVOUS), exit_code=event.exit_code)
    record = m.RecordIncident(failure=failure, decision=Stop(reason="there is no round to run", rule="rendezvous"))
    outcome = Outcome(ending=Ending.FAILED, exit_code=event.exit_code, reason=event.summary)
    return leave(state.ledger, outcome, (record,))


def start(state: Preparing, event: m.StartAllowed, now_s: float) -> Step:
    """Start the workers, unless the round is over already."""
    ledger = state.ledger
    if state.over is not None:  # its workers would meet nobody
        return round_changed.without_start(ledger, state.round, state.over)
    spawn = m.SpawnWorkers(
        round=state.round,
        restart_count=ledger.restart_count,
        membership_changes=ledger.membership_changes,
        changes=event.changes,
    )
    return Step(state=Starting(ledger=ledger, round=state.round), commands=(spawn,), reason="starting workers")


def start_refused(state: Preparing, event: m.StartRefused, now_s: float) -> Step:
    """Let the policy decide what a refused start means, unless the round is over already."""
    if state.over is not None:
        return round_changed.without_start(state.ledger, state.round, state.over)
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
    if state.over is not None:
        return round_changed.follow(running, state.over)
    return Step(state=running, commands=(m.WatchRound(),), reason="workers run")


def spawn_failed(state: Starting, event: m.SpawnFailed, now_s: float) -> Step:
    """Let the policy decide what a failed start means, unless the round is over already."""
    running = Running(ledger=state.ledger, round=state.round, started_s=now_s, alive=event.alive)
    if state.over is not None:
        return round_changed.follow(running, state.over)
    ask = m.AskPolicy(failure=event.failure, history=state.ledger.history)
    deciding = Deciding(ledger=state.ledger, running=running, round=state.round)
    return Step(state=deciding, commands=(ask,), reason=event.failure.summary)


def stop_starting(state: Starting, event: m.StopRequested, now_s: float) -> Step:
    """Stop what was started."""
    return drain(state.ledger, state.round, event.signum, now_s, grace_s=event.grace_s)
