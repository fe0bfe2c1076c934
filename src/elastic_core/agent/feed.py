"""The feed of an agent: each step of its machine with the event and the completed phases, and all other moments."""

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
        """The duration of the last rendezvous, in seconds."""
        self.formed_s = 0.0
        """When the last round was formed, on the clock of the caller of `enter`."""
        self.stop_s: float | None = None
        """How long the workers of this round took to stop, in seconds; `None` if they have not stopped."""

    def enter(self, state: s.AgentState, at_s: float) -> Iterator[Phase]:
        """Record a change to a state of another type; yield the phases that it completes."""
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
        """Complete the phases that lead to running workers, as far as they were begun."""
        for name, since_s in (("start", self._formed_s), ("initialize", self._joined_s), ("restart", self._restart_s)):
            if since_s is not None:
                yield Phase(name=name, took_s=at_s - since_s, well=well)
        self._formed_s = self._joined_s = self._restart_s = None


class StepTaken(Record, frozen=True, kw_only=True):
    """A step of the machine, and the event that caused it.

    `entered` means that its state is of another type than the previous one; `phases` are those that it completed.
    """

    event: AgentEvent
    step: Step
    at_s: float
    entered: bool
    phases: tuple[Phase, ...] = ()


Observation = StepTaken | Moment | FeedMoment | LeftOut
Observer = Callable[[Observation], None]


class Feed:
    """Passes each observation to every observer, in the order of their subscriptions.

    Threading: the supervisor's thread; an observer must neither block nor raise.
    """

    def __init__(self) -> None:
        self._observers: list[Observer] = []

    def subscribe(self, observer: Observer) -> None:
        """Pass all later observations to `observer`."""
        self._observers.append(observer)

    def publish(self, what: Observation) -> None:
        """Pass an observation to each observer."""
        for observer in self._observers:
            observer(what)


def described(what: Observation) -> tuple[str, dict[str, object]]:
    """Return name and values of an observation for hooks: of a step, those of its event and of the new state."""
    if not isinstance(what, StepTaken):
        return _snake_case(type(what).__name__), asdict(what)
    state = what.step.state
    values: dict[str, object] = {**asdict(what.event), "event": type(what.event).__name__}
    values.pop("members", None)  # up to a thousand nodes, which `round_joined` has
    values |= {"state": type(state).__name__.lower(), "entered": what.entered, "phases": what.phases}
    values |= {"state_reason": what.step.reason, "restart_count": state.ledger.restart_count}
    values |= {"membership_changes": state.ledger.membership_changes}
    for name in ("round", "absence"):
        value: object = getattr(state, name, None)
        if value is not None:
            values[name] = value
    return "step", values


def _snake_case(name: str) -> str:
    return "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in name).lstrip("_")
