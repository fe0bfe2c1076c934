"""What the agent knows of a worker that it may keep, pure: its reports, its place, and what follows from them.

A worker can be kept if its function runs and has completed a step. It is asked to leave its round, leaves, is kept
without a place, gets a place in the next round, and takes it. Each wait has a limit, after which the worker goes down
the ladder: one that was asked is stopped with its round, and one that was kept is killed.

The shell passes events to `advance` and executes the actions in order. `timer_s` of each step replaces its timer.
"""

import enum
from typing import Final

from msgspec.structs import replace

from elastic_core.api import Record

VERSION: Final = 1
"""The version of the protocol between worker and agent."""
MOST_IDLE_ROUNDS: Final = 2
"""How many rounds in a row a process may begin without completing a step; after that it is started anew."""
LONGEST_KEPT_S: Final = 600.0
"""How long a worker is kept without a place: it holds its devices and memory."""
END_S: Final = 2.0
"""How long a kept worker may take to end when the run is over."""


class Phase(enum.Enum):
    """How far a worker is."""

    OUTSIDE = "its function does not run"
    INSIDE = "its function runs"
    ASKED = "it was asked to leave its round"
    KEPT = "it has left its round"
    PLACED = "it has a place in the next round"
    ENDING = "it ends, or is stopped like all others"


class WorkerState(Record, frozen=True, kw_only=True):
    """One process that has connected."""

    phase: Phase = Phase.OUTSIDE
    round: int = -1
    """The round in which it is, or was last."""
    stepped: bool = False
    """Whether it has completed a step in any round."""
    idle_rounds: int = 0
    """The number of places that it took since its last step."""
    held: str = ""
    """The error by which its function was left before the agent asked; empty if there is none."""


# --- events


class Reported(Record, frozen=True, kw_only=True):
    """A message of the worker. Only the fields of its kind are set."""

    kind: str
    version: int = 0
    round: int = -1
    reason: str = ""
    error: str = ""


class LeaveWanted(Record, frozen=True, kw_only=True):
    """The worker's round ends, and another may follow."""

    round: int
    within_s: float
    planned: bool
    stopped: bool = False
    """Whether a signal has stopped the process, so that it can't leave."""


class PlaceGiven(Record, frozen=True, kw_only=True):
    """The worker was sent its place in a round."""

    round: int
    within_s: float


class PlaceRefused(Record, frozen=True, kw_only=True):
    """The worker can't have a place in the next round."""

    reason: str


class EndWanted(Record, frozen=True, kw_only=True):
    """No round follows any more."""


class Late(Record, frozen=True, kw_only=True):
    """The timer of the last step is due."""


class Disconnected(Record, frozen=True, kw_only=True):
    """The connection has ended, or its content was invalid."""


Event = Reported | LeaveWanted | PlaceGiven | PlaceRefused | EndWanted | Late | Disconnected


# --- actions


class Send(Record, frozen=True, kw_only=True):
    """Send the worker a message."""

    message: dict[str, object]


class Refused(Record, frozen=True, kw_only=True):
    """The worker can't be asked; empty if users need not know why."""

    reason: str = ""


class HasLeft(Record, frozen=True, kw_only=True):
    """The worker has left its round: it is the starter's, if its process has not been signalled meanwhile."""


class Stays(Record, frozen=True, kw_only=True):
    """The worker does not leave: it is stopped with its round."""

    reason: str


class Kill(Record, frozen=True, kw_only=True):
    """Kill the process, which the starter keeps or has just given a place; empty if users need not know why."""

    reason: str = ""


Action = Send | Refused | HasLeft | Stays | Kill


class Step(Record, frozen=True, kw_only=True):
    """The state and actions after one event; `timer_s` is when `Late` is due, `None` never."""

    state: WorkerState
    actions: tuple[Action, ...] = ()
    timer_s: float | None = None
    same_timer: bool = False
    """Whether the timer stays as it is."""


def advance(state: WorkerState, event: Event) -> Step:
    """Return the state and actions after an event. Total, and without side effects."""
    match event:
        case Reported():
            return _reported(state, event)
        case LeaveWanted():
            return _ask(state, event)
        case PlaceGiven() if state.phase is Phase.KEPT:
            given = replace(state, phase=Phase.PLACED, round=event.round, idle_rounds=state.idle_rounds + 1, held="")
            return Step(state=given, timer_s=event.within_s)
        case PlaceRefused(reason=reason) if state.phase is Phase.KEPT:
            return Step(state=_ending(state), actions=(Kill(reason=reason),))
        case EndWanted() if state.phase is Phase.KEPT:
            return Step(state=_ending(state), actions=(Send(message={"kind": "end"}),), timer_s=END_S)
        case Late():
            return _late(state)
        case Disconnected():
            return _disconnected(state)
        case _:
            return _unchanged(state)


def _unchanged(state: WorkerState) -> Step:
    return Step(state=state, same_timer=True)


def _ending(state: WorkerState) -> WorkerState:
    return replace(state, phase=Phase.ENDING)


def _reported(state: WorkerState, event: Reported) -> Step:
    now = event.round == state.round
    match event.kind, state.phase:
        case "hello", Phase.OUTSIDE if event.version != VERSION:
            return Step(state=_ending(state))
        case ("entered", Phase.OUTSIDE | Phase.INSIDE | Phase.PLACED) if event.round >= state.round:
            return Step(state=replace(state, phase=Phase.INSIDE, round=event.round))
        case "taken", Phase.PLACED if now:
            return Step(state=replace(state, phase=Phase.INSIDE))
        case "stepped", Phase.INSIDE | Phase.ASKED if now:
            return Step(state=replace(state, stepped=True, idle_rounds=0), same_timer=True)
        case "held", Phase.INSIDE | Phase.ASKED if now:
            return Step(state=replace(state, held=event.error or "an error"), same_timer=True)
        case "left", Phase.ASKED if now:
            return Step(state=replace(state, phase=Phase.KEPT), actions=(HasLeft(),), timer_s=LONGEST_KEPT_S)
        case "stays", Phase.ASKED if now:
            return Step(state=_ending(state), actions=(Stays(reason=event.reason or "it gives no reason"),))
        case "returned", Phase.INSIDE if now:
            return Step(state=replace(state, phase=Phase.OUTSIDE))
        case "returned", Phase.ASKED if now:
            return Step(state=_ending(state), actions=(Stays(reason="its function has returned"),))
        case "entered" | "returned", Phase.KEPT:  # it runs without a round
            return Step(state=_ending(state), actions=(Kill(reason="it runs without a place"),))
        case _:
            return _unchanged(state)


def _ask(state: WorkerState, event: LeaveWanted) -> Step:
    reason = ""
    if state.phase is Phase.INSIDE and event.round == state.round:
        if not state.stepped:
            reason = "it has not completed a step"
        elif state.idle_rounds >= MOST_IDLE_ROUNDS:
            reason = f"it has completed no step in {state.idle_rounds} rounds"
        elif event.stopped:
            reason = "it is stopped by a signal"
        else:
            leave: dict[str, object] = {
                "kind": "leave",
                "round": event.round,
                "within_s": event.within_s,
                "planned": event.planned,
            }
            asked = replace(state, phase=Phase.ASKED)
            return Step(state=asked, actions=(Send(message=leave),), timer_s=event.within_s)
    elif state.phase is Phase.PLACED:
        reason = "it had not taken its place"
    return Step(state=_ending(state), actions=(Refused(reason=reason),))


def _late(state: WorkerState) -> Step:
    match state.phase:
        case Phase.ASKED:
            return Step(state=_ending(state), actions=(Stays(reason="it has not left in time"),))
        case Phase.KEPT:
            reason = f"no round has begun for {LONGEST_KEPT_S:g} s"
            return Step(state=_ending(state), actions=(Kill(reason=reason),))
        case Phase.PLACED:
            return Step(state=_ending(state), actions=(Kill(reason="it has not taken its place in time"),))
        case Phase.ENDING:
            return Step(state=state, actions=(Kill(),))
        case _:
            return Step(state=state)


def _disconnected(state: WorkerState) -> Step:
    match state.phase:
        case Phase.ASKED:
            return Step(state=_ending(state), actions=(Stays(reason="its connection has ended"),))
        case Phase.KEPT:
            return Step(state=_ending(state), actions=(Kill(),))  # its exit code says more
        case Phase.ENDING:
            return _unchanged(state)
        case _:
            return Step(state=_ending(state))
