"""The interface of a rendezvous: how agents find each other and agree on rounds."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar, Protocol

from elastic_core.clock import WaitBudget
from elastic_core.option_spec import OptionSpec
from elastic_core.reports import NodeReport, NodeSteps, RunSteps
from elastic_core.types import (
    Capability,
    Failure,
    NodesWaiting,
    RendezvousClosed,
    RendezvousInfo,
    RendezvousSettings,
    Restart,
    RoundChange,
    Stop,
)


class AgentServices(Protocol):
    """What an agent does for its rendezvous handler. Every method may be called from any thread, and never blocks."""

    def reserve_port(self) -> int:
        """Hold a fresh port for the worker of rank 0, in place of the last one, and return it.

        Called: in `next_rendezvous`, when no worker exists.
        """
        ...

    def say(self, text: str) -> None:
        """Show people one line."""
        ...

    def ticked_s(self) -> float:
        """Return when the agent's loop last turned, in monotonic seconds, and ask it to turn again."""
        ...

    def fence(self, until_s: float) -> None:
        """See to it that the workers are dead at this monotonic time, also if the agent is not alive to do it.

        A later word replaces an earlier one.
        """
        ...

    def set_last_act(self, store: str, seat: bytes) -> None:
        """Leave with the guard what to do when the agent has died and its workers are gone: give the seat back.

        `store` is the class of the store (`module:Class`), `seat` its seat as JSON; empty: nothing to do any more.
        """
        ...

    def decide(self, reports: Sequence[NodeReport], history: Sequence[Failure], *, question: str = "") -> None:
        """Have the failure policy decide for the whole run; what it says comes through the handler's `answer`.

        `history` has the run's failures before, with their decisions. `question` comes back with the answer, which may
        take its time: by then another round may be the one that is asked about.
        """
        ...

    def tell_steps(self, serial: int) -> None:
        """Say how far the workers are, through the handler's `report_steps`, and write down where they stand.

        Called: when workers of some node may hang.
        """
        ...

    def hear_steps(self, seen: RunSteps) -> None:
        """Hear how far the workers of all nodes are."""
        ...


class NoServices:
    """Stands in where there is no agent: in tests, or a handler used by itself."""

    def reserve_port(self) -> int:
        """Return 0: none is held."""
        return 0

    def say(self, text: str) -> None:
        """Show nothing."""

    def ticked_s(self) -> float:
        """Return a time that is never too long ago."""
        return float("inf")

    def fence(self, until_s: float) -> None:
        """Guard nothing."""

    def set_last_act(self, store: str, seat: bytes) -> None:
        """Leave nothing."""

    def decide(self, reports: Sequence[NodeReport], history: Sequence[Failure], *, question: str = "") -> None:
        """Leave it to others."""

    def tell_steps(self, serial: int) -> None:
        """Say nothing: there are no workers."""

    def hear_steps(self, seen: RunSteps) -> None:
        """Make nothing of it."""


class RendezvousHandler(ABC):
    """Forms rounds. Subclass it, override `next_rendezvous`, and register the class under `elastic_core.rendezvous`.

    Built once per run as `cls(settings)`, after options are validated and before any worker exists; the default
    constructor keeps the settings. The agent binds `wait` before each blocking call: check it, sleep through it, and
    let its errors pass.

    Threading: every method but `set_closed` and `shutdown` is called on the agent's rendezvous thread, one at a time.
    """

    api_version: ClassVar[int]
    capabilities: ClassVar[frozenset[Capability]] = frozenset()
    options: ClassVar[Sequence[OptionSpec]] = ()
    """The `--rdzv-conf` keys that this backend takes."""

    wait: WaitBudget
    settings: RendezvousSettings
    services: AgentServices = NoServices()
    """Bound by the agent before its first call."""

    def __init__(self, settings: RendezvousSettings | None = None) -> None:
        """Keep the settings; no connection is made before the first `next_rendezvous`.

        Classes with torch's methods, which know of no settings, call it without any, or not at all; agents then do for
        them what they do for torch's own.
        """
        if settings is not None:
            self.settings = settings
        self.wait = WaitBudget()

    @abstractmethod
    def next_rendezvous(self) -> RendezvousInfo | tuple[object, int, int]:
        """Block until a round forms and return this node's place in it; `(store, rank, world_size)` is accepted too.

        Raises:
            RendezvousClosedError: the run is over.
            RendezvousTimeoutError: not enough nodes came in time.
            RendezvousConnectionError: the backend can't be reached.
            RendezvousGracefulExitError: this node is not needed.
        """

    def watch(self, timeout_s: float) -> RoundChange | None:
        """Block until something that the agent must react to, at most `timeout_s`; None when nothing happened.

        The default polls `num_nodes_waiting` and `is_closed` every `settings.monitor_interval_s`. A backend whose
        rounds never change overrides it to sleep through `self.wait`.
        """
        budget_s = timeout_s
        while budget_s > 0:
            count = self.num_nodes_waiting()
            if count > 0:
                return NodesWaiting(count=count)
            if self.is_closed():
                return RendezvousClosed()
            step_s = min(self.settings.monitor_interval_s, budget_s)
            self.wait.sleep(step_s)
            budget_s -= step_s
        return None

    def num_nodes_waiting(self) -> int:
        """Return how many nodes wait for a new round."""
        return 0

    def is_closed(self) -> bool:
        """Return whether the run's rendezvous was closed."""
        return False

    def set_closed(self) -> None:
        """Close the rendezvous for all nodes. Threading: the rendezvous thread, after the last round."""
        return

    def shutdown(self) -> bool:
        """Release what this object holds on this host; idempotent, never raises. Return whether all went well."""
        return True

    # What follows is for handlers with `Capability.CONTROL`: one decision, and one end, for the whole run. Every call
    # returns at once, on whatever thread; what came of it is heard through `watch`.

    def publish(self, decision: Restart | Stop, failure: Failure) -> None:
        """Take what this agent decided about a failure on its node to all others; the first such word stands.

        `watch` then tells what stands, as `Decided`.
        """
        return

    def request_restart(self, reason: str) -> None:
        """Take to all others that a user wants all workers started again; this agent stops its own already.

        Nothing has failed, and no count or budget changes: `watch` tells the others of a `Decided` without a failure.
        A handler that does not override it can't, and users of a run of several nodes are told so.
        """
        return

    # With `Capability.EVIDENCE`, too.

    def order_stop(self, reason: str, report: NodeReport) -> None:
        """Have all nodes of the round stop their workers, for a failure on this one; others hear `StopOrdered`."""
        return

    def report_stopped(self, report: NodeReport) -> None:
        """Take what this node has seen to whoever decides; `watch` tells what was decided, or that nobody could."""
        return

    def answer(self, decision: Restart | Stop, failure: Failure, evidence: str, *, question: str = "") -> None:
        """Take the answer to `services.decide` to all nodes, with what is known from all of them.

        `question` is the one that was given there: an answer that comes too late is of no use, and must not be taken
        for one about a later round.
        """
        return

    def ask_steps(self) -> None:
        """Ask all nodes how far their workers are, as some of this one may hang: each hears `services.tell_steps`."""
        return

    def report_steps(self, steps: NodeSteps) -> None:
        """Take the answer to `services.tell_steps` to all nodes; they hear `services.hear_steps`."""
        return

    # With `Capability.CONTROL` again.

    def report_finishing(self) -> None:
        """Hear that the first worker of this node has ended well: nodes that come now have come too late."""
        return

    def report_done(self) -> None:
        """Hear that all workers of this node have ended well; `watch` tells when the run has, as `Decided`."""
        return

    def announce_departure(self) -> None:
        """Hear that this agent was told to stop and will leave when its workers have ended."""
        return

    def pids(self) -> frozenset[int]:
        """Return the processes that the handler keeps on this host: they are no workers, and not the agent's to reap.

        Threading: the agent's.
        """
        return frozenset()

    def get_run_id(self) -> str:
        """Return the run's id."""
        return self.settings.run_id

    def get_backend(self) -> str:
        """Return the backend's name, as users type it."""
        return self.settings.backend

    @property
    def use_agent_store(self) -> bool:
        """Whether workers shall use a store that the agent hosts (exported as TORCHELASTIC_USE_AGENT_STORE)."""
        return False


def takes_restarts(handler: RendezvousHandler) -> bool:
    """Return whether a handler can tell the other nodes of a restart that is asked for."""
    return type(handler).request_restart is not RendezvousHandler.request_restart
