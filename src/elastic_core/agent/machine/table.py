"""The agent as a pure state machine: `advance(state, event, now_s)` returns the next state and commands.

`TABLE` has a rule for every pair of state and event: handled (with the function and the possible next states), ignored
on purpose (with the reason), or illegal. The diagram in the docs is drawn from it, and a journal of (event, now)
replays to the same steps.
"""

from collections.abc import Callable
from typing import get_args

from elastic_core import messages as m
from elastic_core.agent.machine import deciding, round_changed, running, starting, stopping
from elastic_core.agent.machine import states as s
from elastic_core.errors import IllegalEventError
from elastic_core.types import Record

Handler = Callable[..., s.Step]


class Handled(Record, frozen=True, kw_only=True):
    """A pair that changes something: the function, and the possible next states."""

    handler: Handler
    to: tuple[type, ...]


class Ignored(Record, frozen=True, kw_only=True):
    """A pair that can happen and changes nothing."""

    why: str


class Illegal(Record, frozen=True, kw_only=True):
    """A pair that can't happen: it is a defect, and `advance` raises."""


Rule = Handled | Ignored | Illegal
EVENTS: tuple[type, ...] = get_args(m.AgentEvent)
STATES: tuple[type, ...] = get_args(s.AgentState)

_LATE = "an answer to a question of an earlier state"
_NO_WORKER = "no worker exists that could get it"
_FAILED = "another failure comes first; a hang is found again if that changes nothing"
_OVER = "the run is ending anyway"
_DECIDED = "what follows the failure is decided first"
_STARTS = "workers are about to be started anyway"
_HOOKS = (m.JoinAllowed, m.JoinRefused, m.StartAllowed, m.StartRefused)
_ANSWERS = (m.RoundFormed, m.RendezvousFailed)
_POLICY = (m.Examined, m.DecisionMade)


def _row(handled: dict[type, Handled], ignored: dict[tuple[type, ...], str]) -> dict[type, Rule]:
    """Return one state's complete row; events that are neither handled nor ignored are illegal."""
    row: dict[type, Rule] = {event: Illegal() for event in EVENTS}
    for events, why in ignored.items():
        row.update(dict.fromkeys(events, Ignored(why=why)))
    row.update(handled)
    return row


def _to(handler: Handler, *to: type) -> Handled:
    return Handled(handler=handler, to=to)


TABLE: dict[type, dict[type, Rule]] = {
    s.Created: _row(
        {m.StartRequested: _to(starting.begin, s.Gating), m.StopRequested: _to(starting.never_began, s.Ended)},
        {(m.SignalForwarded,): _NO_WORKER},
    ),
    s.Gating: _row(
        {
            m.SignalForwarded: _to(running.forward, s.Gating),
            m.JoinAllowed: _to(starting.join, s.Joining),
            m.JoinRefused: _to(starting.join_refused, s.Refused, s.Leaving),
            # A node that waits aside keeps its seat: the run may end while its hooks are being called again.
            m.RendezvousFailed: _to(starting.no_round, s.Leaving),
            m.StopRequested: _to(starting.stop_before_start, s.Leaving),
        },
        {(m.RoundChanged, m.TimerFired): _LATE, (m.RestartRequested,): _STARTS},
    ),
    s.Refused: _row(
        {
            m.SignalForwarded: _to(running.forward, s.Refused),
            m.TimerFired: _to(starting.ask_again, s.Refused, s.Gating, s.Preparing),
            m.RendezvousFailed: _to(starting.no_round, s.Leaving),
            m.RoundChanged: _to(round_changed.refused, s.Refused, s.Awaiting, s.Gating, s.Waiting, s.Leaving),
            m.StopRequested: _to(starting.stop_refused, s.Leaving),
        },
        {(m.RestartRequested,): _STARTS},
    ),
    s.Joining: _row(
        {
            m.SignalForwarded: _to(running.forward, s.Joining),
            m.RoundFormed: _to(starting.formed, s.Preparing),
            m.RendezvousFailed: _to(starting.no_round, s.Leaving),
            m.StopRequested: _to(starting.stop_before_start, s.Leaving),
        },
        {(m.RoundChanged, m.TimerFired): _LATE, (m.RestartRequested,): _STARTS},
    ),
    s.Preparing: _row(
        {
            m.SignalForwarded: _to(running.forward, s.Preparing),
            m.StartAllowed: _to(starting.start, s.Starting, s.Awaiting, s.Gating, s.Waiting),
            m.StartRefused: _to(starting.start_refused, s.Refused, s.Awaiting, s.Gating, s.Waiting, s.Leaving),
            m.RoundChanged: _to(round_changed.preparing, s.Preparing, s.Leaving),
            m.StopRequested: _to(starting.stop_before_start, s.Leaving),
        },
        {(m.TimerFired,): _LATE, (m.RestartRequested,): _STARTS},
    ),
    s.Starting: _row(
        {
            m.SignalForwarded: _to(running.forward, s.Starting),
            # No exit arrives here: the loop starts all workers in one turn, and reads their exits in a later one.
            m.WorkersSpawned: _to(starting.spawned, s.Running, s.Stopping),
            m.SpawnFailed: _to(starting.spawn_failed, s.Deciding, s.Stopping),
            m.RoundChanged: _to(round_changed.starting, s.Starting),
            m.StopRequested: _to(starting.stop_starting, s.Stopping),
        },
        {(m.TimerFired,): _LATE, (m.RestartRequested,): _STARTS},
    ),
    s.Running: _row(
        {
            m.HangFound: _to(running.hang_found, s.Deciding),
            m.WorkerExited: _to(running.worker_ended, s.Running, s.Deciding, s.Stopping),
            m.RoundChanged: _to(round_changed.running, s.Running, s.Stopping),
            m.StopRequested: _to(running.stop_running, s.Stopping),
            m.RestartRequested: _to(running.restart_asked, s.Running, s.Stopping),
            m.SignalForwarded: _to(running.forward, s.Running),
        },
        {(m.TimerFired,): _LATE},
    ),
    s.Deciding: _row(
        {
            m.SignalForwarded: _to(running.forward, s.Deciding),
            m.WorkerExited: _to(deciding.ended_while_deciding, s.Deciding),
            m.Examined: _to(deciding.examined, s.Deciding),
            m.DecisionMade: _to(
                deciding.decided,
                s.Running,
                s.Deciding,
                s.Stopping,
                s.Awaiting,
                s.Waiting,
                s.Gating,
                s.Leaving,
            ),
            m.RoundChanged: _to(
                round_changed.deciding, s.Deciding, s.Stopping, s.Awaiting, s.Gating, s.Waiting, s.Leaving
            ),
            m.StopRequested: _to(deciding.stop_deciding, s.Stopping, s.Leaving),
        },
        {
            (m.HangFound,): _FAILED,
            (m.RestartRequested,): _DECIDED,
            (m.TimerFired,): _LATE,
        },
    ),
    s.Stopping: _row(
        {
            m.SignalForwarded: _to(running.forward, s.Stopping),
            m.WorkersStopped: _to(stopping.workers_gone, s.Awaiting, s.Gating, s.Waiting, s.Leaving),
            m.RoundChanged: _to(round_changed.stopping, s.Stopping),
            m.TimerFired: _to(stopping.report_due, s.Stopping),
            m.StopRequested: _to(stopping.stop_again, s.Stopping),
        },
        {
            (m.WorkerExited,): "the ladder counts them; the incident reads them",
            # A stop signal can come before the event that the workers were started, and leads here first.
            (*_POLICY, m.WorkersSpawned, m.SpawnFailed): _LATE,
            (m.HangFound, m.RestartRequested): "the workers are being stopped",
        },
    ),
    s.Awaiting: _row(
        {
            m.SignalForwarded: _to(running.forward, s.Awaiting),
            m.RoundChanged: _to(round_changed.awaiting, s.Awaiting, s.Deciding, s.Gating, s.Waiting, s.Leaving),
            m.StopRequested: _to(stopping.stop_awaiting, s.Leaving),
        },
        {(*_POLICY, m.TimerFired): _LATE, (m.RestartRequested,): _DECIDED},
    ),
    s.Waiting: _row(
        {
            m.SignalForwarded: _to(running.forward, s.Waiting),
            m.TimerFired: _to(stopping.backoff_over, s.Gating),
            m.RoundChanged: _to(round_changed.waiting, s.Waiting, s.Leaving),
            m.StopRequested: _to(stopping.stop_waiting, s.Leaving),
        },
        {(m.RestartRequested,): _STARTS},
    ),
    s.Leaving: _row(
        {
            m.RendezvousLeft: _to(stopping.left, s.Ended),
            m.TimerFired: _to(stopping.left_anyway, s.Ended),
            m.StopRequested: _to(stopping.stop_leaving, s.Leaving, s.Ended),
        },
        {
            (*_HOOKS, *_ANSWERS, *_POLICY): _LATE,
            (m.RoundChanged, m.RestartRequested): _OVER,
            (m.SignalForwarded,): _NO_WORKER,
        },
    ),
    s.Ended: _row({}, {EVENTS: "the agent has ended"}),
}


def advance(state: s.AgentState, event: m.AgentEvent, *, now_s: float) -> s.Step:
    """Return the next state and commands for `event` in `state`, without side effects.

    Raises:
        IllegalEventError: the pair can't happen; the state is unchanged.
    """
    match TABLE[type(state)][type(event)]:
        case Handled(handler=handler):
            return handler(state, event, now_s)
        case Ignored(why=why):
            return s.Step(state=state, reason=why)
        case Illegal():
            raise IllegalEventError(f"the agent can't take {type(event).__name__} in state {type(state).__name__}")
