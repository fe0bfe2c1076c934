"""The agent as a pure state machine: `advance(state, event, now_s)` returns the next state and commands.

`TABLE` has a rule for every pair of state and event: handled (with the function and the possible next states), ignored
on purpose (with the reason), or illegal. The diagram in the docs is drawn from it, and a journal of (event, now)
replays to the same steps.
"""

from collections.abc import Callable
from typing import get_args

from elastic_core import messages as m
from elastic_core.agent.machine import deciding, round_changed, running, starting, stopping
from elastic_core.agent.machine.states import (
    AgentState,
    Awaiting,
    Created,
    Deciding,
    Ended,
    Gating,
    Joining,
    Leaving,
    Preparing,
    Refused,
    Running,
    Settling,
    Starting,
    Step,
    Stopping,
    Waiting,
)
from elastic_core.errors import IllegalEventError
from elastic_core.types import Record

Handler = Callable[..., Step]


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
STATES: tuple[type, ...] = get_args(AgentState)

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
    Created: _row(
        {m.StartRequested: _to(starting.begin, Gating), m.StopRequested: _to(starting.never_began, Ended)},
        {(m.SignalForwarded,): _NO_WORKER},
    ),
    Gating: _row(
        {
            m.SignalForwarded: _to(running.forward, Gating),
            m.JoinAllowed: _to(starting.join, Joining),
            m.JoinRefused: _to(starting.join_refused, Refused, Leaving),
            # A node that waits aside keeps its seat: the run may end while its hooks are being called again.
            m.RendezvousFailed: _to(starting.no_round, Leaving),
            m.StopRequested: _to(starting.stop_before_start, Leaving),
        },
        {(m.RoundChanged, m.TimerFired): _LATE, (m.RestartRequested,): _STARTS},
    ),
    Refused: _row(
        {
            m.SignalForwarded: _to(running.forward, Refused),
            m.TimerFired: _to(starting.ask_again, Refused, Gating, Preparing),
            m.RendezvousFailed: _to(starting.no_round, Leaving),
            m.RoundChanged: _to(round_changed.refused, Refused, Awaiting, Gating, Waiting, Leaving),
            m.StopRequested: _to(starting.stop_refused, Leaving),
        },
        {(m.RestartRequested,): _STARTS},
    ),
    Joining: _row(
        {
            m.SignalForwarded: _to(running.forward, Joining),
            m.RoundFormed: _to(starting.formed, Preparing),
            m.RendezvousFailed: _to(starting.no_round, Leaving),
            m.StopRequested: _to(starting.stop_before_start, Leaving),
        },
        {(m.RoundChanged, m.TimerFired): _LATE, (m.RestartRequested,): _STARTS},
    ),
    Preparing: _row(
        {
            m.SignalForwarded: _to(running.forward, Preparing),
            m.StartAllowed: _to(starting.start, Starting, Awaiting, Gating, Waiting),
            m.StartRefused: _to(starting.start_refused, Refused, Awaiting, Gating, Waiting, Leaving),
            m.RoundChanged: _to(round_changed.preparing, Preparing, Leaving),
            m.StopRequested: _to(starting.stop_before_start, Leaving),
        },
        {(m.TimerFired,): _LATE, (m.RestartRequested,): _STARTS},
    ),
    Starting: _row(
        {
            m.SignalForwarded: _to(running.forward, Starting),
            # No exit arrives here: the loop starts all workers in one turn, and reads their exits in a later one.
            m.WorkersSpawned: _to(starting.spawned, Running, Stopping),
            m.SpawnFailed: _to(starting.spawn_failed, Deciding, Stopping),
            m.RoundChanged: _to(round_changed.starting, Starting),
            m.StopRequested: _to(starting.stop_starting, Stopping),
        },
        {(m.TimerFired,): _LATE, (m.RestartRequested,): _STARTS},
    ),
    Running: _row(
        {
            m.HangFound: _to(running.hang_found, Deciding),
            m.WorkerExited: _to(running.worker_ended, Running, Settling, Deciding, Stopping),
            m.RoundChanged: _to(round_changed.running, Running, Stopping),
            m.StopRequested: _to(running.stop_running, Stopping),
            m.RestartRequested: _to(running.restart_asked, Running, Stopping),
            m.SignalForwarded: _to(running.forward, Running),
        },
        {(m.TimerFired,): _LATE},
    ),
    Settling: _row(
        {
            m.SignalForwarded: _to(running.forward, Settling),
            m.WorkerExited: _to(running.another_ended, Settling, Deciding),
            m.TimerFired: _to(running.settled, Deciding),
            m.RoundChanged: _to(round_changed.settling, Settling, Stopping),
            m.StopRequested: _to(running.stop_settling, Stopping),
        },
        {
            (m.HangFound,): _FAILED,
            (m.RestartRequested,): _DECIDED,
        },
    ),
    Deciding: _row(
        {
            m.SignalForwarded: _to(running.forward, Deciding),
            m.WorkerExited: _to(deciding.ended_while_deciding, Deciding),
            m.Examined: _to(deciding.examined, Deciding),
            m.DecisionMade: _to(
                deciding.decided, Running, Settling, Deciding, Stopping, Awaiting, Waiting, Gating, Leaving
            ),
            m.RoundChanged: _to(round_changed.deciding, Deciding, Stopping, Awaiting, Gating, Waiting, Leaving),
            m.StopRequested: _to(deciding.stop_deciding, Stopping, Leaving),
        },
        {
            (m.HangFound,): _FAILED,
            (m.RestartRequested,): _DECIDED,
            (m.TimerFired,): _LATE,
        },
    ),
    Stopping: _row(
        {
            m.SignalForwarded: _to(running.forward, Stopping),
            m.WorkersStopped: _to(stopping.workers_gone, Awaiting, Gating, Waiting, Leaving),
            m.RoundChanged: _to(round_changed.stopping, Stopping),
            m.TimerFired: _to(stopping.report_due, Stopping),
            m.StopRequested: _to(stopping.stop_again, Stopping),
        },
        {
            (m.WorkerExited,): "the ladder counts them; the incident reads them",
            # A stop signal can come before the event that the workers were started, and leads here first.
            (*_POLICY, m.WorkersSpawned, m.SpawnFailed): _LATE,
            (m.HangFound, m.RestartRequested): "the workers are being stopped",
        },
    ),
    Awaiting: _row(
        {
            m.SignalForwarded: _to(running.forward, Awaiting),
            m.RoundChanged: _to(round_changed.awaiting, Awaiting, Deciding, Gating, Waiting, Leaving),
            m.StopRequested: _to(stopping.stop_awaiting, Leaving),
        },
        {(*_POLICY, m.TimerFired): _LATE, (m.RestartRequested,): _DECIDED},
    ),
    Waiting: _row(
        {
            m.SignalForwarded: _to(running.forward, Waiting),
            m.TimerFired: _to(stopping.backoff_over, Gating),
            m.RoundChanged: _to(round_changed.waiting, Waiting, Leaving),
            m.StopRequested: _to(stopping.stop_waiting, Leaving),
        },
        {(m.RestartRequested,): _STARTS},
    ),
    Leaving: _row(
        {
            m.RendezvousLeft: _to(stopping.left, Ended),
            m.TimerFired: _to(stopping.left_anyway, Ended),
            m.StopRequested: _to(stopping.stop_leaving, Leaving, Ended),
        },
        {
            (*_HOOKS, *_ANSWERS, *_POLICY): _LATE,
            (m.RoundChanged, m.RestartRequested): _OVER,
            (m.SignalForwarded,): _NO_WORKER,
        },
    ),
    Ended: _row({}, {EVENTS: "the agent has ended"}),
}


def advance(state: AgentState, event: m.AgentEvent, *, now_s: float) -> Step:
    """Return the next state and commands for `event` in `state`, without side effects.

    Raises:
        IllegalEventError: the pair can't happen; the state is unchanged.
    """
    match TABLE[type(state)][type(event)]:
        case Handled(handler=handler):
            return handler(state, event, now_s)
        case Ignored(why=why):
            return Step(state=state, reason=why)
        case Illegal():
            raise IllegalEventError(f"the agent can't take {type(event).__name__} in state {type(state).__name__}")
