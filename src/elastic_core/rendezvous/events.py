"""The interface between a rendezvous and its agent: requests go in, events come out, both on the agent's loop.

Every backend has this form. The core's protocol on a store and `local` implement it directly. `HandlerThread` adapts a
`RendezvousHandler`, which has blocking calls.
"""

from collections.abc import Callable
from typing import Protocol

from elastic_core.errors import ElasticError, NodesRefusedError, RendezvousError
from elastic_core.messages import RendezvousEvent, RendezvousFailed, RendezvousLeft, RendezvousRequest, RoundFormed
from elastic_core.plugin_faults import Fault, PluginLabel
from elastic_core.reports import AgentChannel
from elastic_core.system.reactor import Timer
from elastic_core.types import Decided, RendezvousInfo

JoinOutcome = RoundFormed | ElasticError
"""The result of a join: the round, or the error."""


class AgentSide(Protocol):
    """The agent as seen by its rendezvous. Threading: the agent's loop, unless stated otherwise; nothing blocks."""

    def post(self, callback: Callable[[], None]) -> None:
        """Call `callback` on the loop. Threading: any."""

    def call_later(self, delay_s: float, callback: Callable[[], None]) -> Timer:
        """Call `callback` on the loop after `delay_s`, unless the timer is cancelled before."""

    def take(self, event: RendezvousEvent) -> None:
        """Deliver an event to the agent."""

    def raised(self, operation: str, error: BaseException, fate: str = "") -> Fault:
        """Record an error that the backend raised; return the line about it, which ends with `fate`. Threading: any."""

    @property
    def backend(self) -> PluginLabel:
        """The backend as messages name it."""

    def turned_s(self) -> float:
        """Return when the loop last ran, in monotonic seconds. Threading: any."""

    def reserve_port(self, done: Callable[[int | ElasticError], None]) -> None:
        """Reserve a new port for the worker of rank 0, in place of the previous one, and call `done` with it."""

    def form(self, info: RendezvousInfo, done: Callable[[JoinOutcome], None]) -> None:
        """Build the round for a place, which may lack the master's address and port, and call `done` with it."""


class Rendezvous:
    """Base class of every rendezvous. At most one join runs at a time; a cancelled join produces no event.

    Threading: the agent's loop; nothing blocks.
    """

    control: bool = False
    """Whether one decision and one result apply to the whole run."""
    gathers: bool = False
    """Whether that decision uses the evidence of all nodes, and nodes can exchange numbers, questions and answers."""
    takes_requests: bool = False
    """Whether a user's request for a restart reaches all nodes."""
    stands_aside: bool = False
    """Whether this node can wait in the rendezvous without a place while the other nodes form rounds."""

    def __init__(self, agent: AgentSide) -> None:
        self._agent = agent
        self._joins = 0
        self._joining = self._left = False
        self.error: ElasticError | None = None
        """The error of the last failed join."""

    def post(self, request: RendezvousRequest) -> None:
        """Start a request of the agent; the results are events."""
        raise NotImplementedError

    @property
    def channel(self) -> AgentChannel | None:
        """The secret by which the run's agents identify each other; `None` if it is not known. Threading: any."""
        return None

    def measure_store(self) -> None:
        """Report each store call as a `StoreCall`. Called: before the first request, if a hook uses these reports."""

    def close(self) -> None:
        """End the rendezvous on this node; idempotent. Called: when the agent's loop has ended."""
        self._cancel()
        self._left = True

    def _begin(self) -> int:
        """Start a join; return its number."""
        self._joins += 1
        self._joining = True
        return self._joins

    def _cancel(self) -> None:
        self._joins += 1
        self._joining = False

    def _joined(self, join: int, outcome: JoinOutcome | RendezvousFailed, decided: Decided | None = None) -> None:
        """Report the result of a join unless it was cancelled; `decided` is the run's result if that ended the join."""
        if self._left or join != self._joins:
            return
        self._joining = False
        if isinstance(outcome, ElasticError):
            self.error = outcome
            code = outcome.exit_code if isinstance(outcome, RendezvousError) else max(outcome.exit_code, 1)
            refused = isinstance(outcome, NodesRefusedError)
            outcome = RendezvousFailed(summary=str(outcome), exit_code=code, refused=refused, decided=decided)
        self._agent.take(outcome)

    def _leave(self) -> None:
        """Report, once, that this node has left; no event follows."""
        if not self._left:
            self._left = True
            self._agent.take(RendezvousLeft())
