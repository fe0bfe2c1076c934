"""A rendezvous as the agent has it: requests go in, events come out, both on the agent's loop.

Every backend is brought into this one form: the core's algorithm on a store and `local` are events by themselves, a
`RendezvousHandler` of somebody else, whose calls block, is by `HandlerThread`.
"""

from collections.abc import Callable
from typing import Protocol

from elastic_core.errors import ElasticError, NodesRefusedError, RendezvousError
from elastic_core.messages import (
    RendezvousEvent,
    RendezvousFailed,
    RendezvousLeft,
    RendezvousRequest,
    RoundFormed,
)
from elastic_core.plugin_faults import Fault, PluginLabel
from elastic_core.reports import AgentChannel
from elastic_core.types import Decided, RendezvousInfo, Round

JoinOutcome = Round | ElasticError
"""What becomes of a place: its round, or why there can't be one."""


class AgentSide(Protocol):
    """What a rendezvous has of its agent. Threading: the agent's loop, unless said otherwise; nothing blocks."""

    def post(self, callback: Callable[[], None]) -> None:
        """Call `callback` on the loop. Threading: any."""
        ...

    def call_later(self, delay_s: float, callback: Callable[[], None]) -> object:
        """Call `callback` on the loop after `delay_s`."""
        ...

    def take(self, event: RendezvousEvent) -> None:
        """Take an event."""
        ...

    def notice(self, text: str) -> None:
        """Show people one line that is not the rendezvous' own."""
        ...

    def raised(self, operation: str, error: BaseException, fate: str = "") -> Fault:
        """Keep what the backend raised in a call, and return the line about it, with what follows. Threading: any."""
        ...

    @property
    def backend(self) -> PluginLabel:
        """What the backend is called."""
        ...

    def turned_s(self) -> float:
        """Return when the loop last turned, in monotonic seconds, and have it turn again. Threading: any."""
        ...

    def reserve_port(self, done: Callable[[int | ElasticError], None]) -> None:
        """Hold a fresh port for the worker of rank 0, in place of the last one, and call back with it."""
        ...

    def form(self, info: RendezvousInfo, done: Callable[[JoinOutcome], None]) -> None:
        """Make the round of a place that says all but the master's port, perhaps, and call back with it."""
        ...


class Rendezvous:
    """The base of all forms. At most one round is joined at a time; of one that was cancelled nothing is said.

    Threading: the agent's loop; nothing blocks.
    """

    control: bool = False
    """Whether it takes one decision, and one end, for the whole run."""
    gathers: bool = False
    """Whether that decision is taken on the evidence of all nodes, when all workers are gone."""
    takes_requests: bool = False
    """Whether it takes a user's request to all nodes."""
    agrees: bool = False
    """Whether its nodes can agree about a number."""
    stands_aside: bool = False
    """Whether this node can wait in it without a place, while the others form rounds."""

    def __init__(self, agent: AgentSide) -> None:
        self._agent = agent
        self._joins = 0
        self._joining = self._left = False
        self.error: ElasticError | None = None
        """What the last join ended with, if it failed."""

    def post(self, request: RendezvousRequest) -> None:
        """Take a request; what comes of it are events."""
        raise NotImplementedError

    @property
    def channel(self) -> AgentChannel | None:
        """How its nodes' agents know each other; None: not yet, or they don't. Threading: any."""
        return None

    def measure_store(self) -> None:
        """Report each call to the store as a `StoreCall`. Called: before the first request, if a hook takes them."""

    def close(self) -> None:
        """Take no part any more; idempotent. Called: when no event will be taken."""
        self._cancel()
        self._left = True

    def _begin(self) -> int:
        """Begin a join; return what names it."""
        self._joins += 1
        self._joining = True
        return self._joins

    def _cancel(self) -> None:
        self._joins += 1
        self._joining = False

    def _joined(self, join: int, outcome: JoinOutcome | RendezvousFailed, decided: Decided | None = None) -> None:
        """Say how a join has ended, unless it is no longer wanted; `decided`: the end of the run, if that is why."""
        if self._left or join != self._joins:
            return
        self._joining = False
        if isinstance(outcome, ElasticError):
            self.error = outcome
            code = outcome.exit_code if isinstance(outcome, RendezvousError) else max(outcome.exit_code, 1)
            refused = isinstance(outcome, NodesRefusedError)
            outcome = RendezvousFailed(summary=str(outcome), exit_code=code, refused=refused, decided=decided)
        self._agent.take(RoundFormed(round=outcome) if isinstance(outcome, Round) else outcome)

    def _leave(self) -> None:
        """Say, once, that this node has left: nothing more comes."""
        if not self._left:
            self._left = True
            self._agent.take(RendezvousLeft())
