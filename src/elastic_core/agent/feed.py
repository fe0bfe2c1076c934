"""The feed of an agent: each step of its machine with its event and the phases that it ended, and what else happens."""

from collections.abc import Callable, Iterator

from msgspec.structs import asdict

from elastic_core.agent.machine import states as s
from elastic_core.agent.machine.states import Step
from elastic_core.messages import AgentEvent, LeftOut
from elastic_core.moments import FeedMoment, Moment
from elastic_core.reports import Phase
from elastic_core.types import Record


class Phases:
    """The phases of an agent: `rendezvous`, `start`, `stop`, `initialize` (the first two) and `restart`.

    Threading: one thread.
    """

    def __init__(self) -> None:
        self._state: type[s.AgentState] = s.Created
        self._since_s = 0.0
        self._joined_s: float | None = None
        self._formed_s: float | None = None
        self._restart_s: float | None = None
        self.rendezvous_s = 0.0
        """How long the last rendezvous took."""
        self.formed_s = 0.0
        """When the last round was formed, on the clock of the caller of `enter`."""
        self.stop_s: float | None = None
        """How long the workers of this round took to stop; None: they have not."""

    def enter(self, state: s.AgentState, at_s: float) -> Iterator[Phase]:
        """Take a state of another type than the last; yield what has ended by it."""
        before, self._state = self._state, type(state)
        took_s = at_s - self._since_s
        self._since_s = at_s
        if before is s.Joining:
            formed = isinstance(state, (s.Preparing, s.Starting, s.Running))
            self._formed_s = at_s if formed else None
            if formed:
                self.rendezvous_s, self.formed_s, self.stop_s = took_s, at_s, None
            yield Phase(name="rendezvous", took_s=took_s, well=formed)
        elif before is s.Stopping:
            self.stop_s = took_s
            yield Phase(name="stop", took_s=took_s, well=True)
        if isinstance(state, s.Joining):
            self._joined_s = at_s
        elif isinstance(state, s.Stopping) and not isinstance(state.then, s.End):
            self._restart_s = at_s
        elif isinstance(state, s.Running):
            yield from self._running(at_s, well=True)
        elif not isinstance(state, (s.Preparing, s.Starting, s.Gating, s.Waiting, s.Awaiting)):
            yield from self._running(at_s, well=False)

    def _running(self, at_s: float, *, well: bool) -> Iterator[Phase]:
        """End what leads to running workers, if any of it was begun."""
        for name, since_s in (("start", self._formed_s), ("initialize", self._joined_s), ("restart", self._restart_s)):
            if since_s is not None:
                yield Phase(name=name, took_s=at_s - since_s, well=well)
        self._formed_s = self._joined_s = self._restart_s = None


class StepTaken(Record, frozen=True, kw_only=True):
    """A step of the machine, and the event that led to it.

    `entered`: its state is of another kind than the one before; `phases` are those that ended by it.
    """

    event: AgentEvent
    step: Step
    at_s: float
    entered: bool
    phases: tuple[Phase, ...] = ()


Observation = StepTaken | Moment | FeedMoment | LeftOut
Observer = Callable[[Observation], None]


class Feed:
    """Hands each observation to every observer, in the order in which they subscribed.

    Threading: the supervisor's thread; an observer neither blocks nor raises.
    """

    def __init__(self) -> None:
        self._observers: list[Observer] = []

    def subscribe(self, observer: Observer) -> None:
        """Have `observer` get all that is published from now on."""
        self._observers.append(observer)

    def publish(self, what: Observation) -> None:
        """Pass an observation to each observer."""
        for observer in self._observers:
            observer(what)


def described(what: Observation) -> tuple[str, dict[str, object]]:
    """Return name and values of an observation as hooks get them: of a step, its event's, and what it led to."""
    if not isinstance(what, StepTaken):
        return _snake_case(type(what).__name__), asdict(what)
    state = what.step.state
    values: dict[str, object] = {**asdict(what.event), "event": type(what.event).__name__}
    values |= {"state": type(state).__name__.lower(), "entered": what.entered, "phases": what.phases}
    ledger = state.running.ledger if isinstance(state, s.Settling) else state.ledger
    values |= {"state_reason": what.step.reason, "restart_count": ledger.restart_count}
    values |= {"membership_changes": ledger.membership_changes}
    for name in ("round", "absence"):
        value: object = getattr(state, name, None)
        if value is not None:
            values[name] = value
    return "step", values


def _snake_case(name: str) -> str:
    return "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in name).lstrip("_")
