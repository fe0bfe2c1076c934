"""The interface of a rendezvous: how agents find each other and agree on rounds."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar

from elastic_core.option_spec import OptionSpec
from elastic_core.system.clock import WaitBudget
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


class AgentServices:
    """An agent's services to its rendezvous handler. This base serves a handler without an agent: it does nothing.

    Every method may be called from any thread. Only `reserve_port` may block.
    """

    def reserve_port(self) -> int:
        """Hold a fresh port for the worker of rank 0, in place of the last one, and return it; 0: none is held.

        Called: in `next_rendezvous`, when no worker exists.
        """
        return 0

    def notice(self, text: str) -> None:
        """Print one line."""

    def ticked_s(self) -> float:
        """Return when the agent's loop last turned, in monotonic seconds, and have it turn again.

        A handler that keeps a lease on a thread of its own gives it up when the loop no longer turns.
        """
        return float("inf")


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
    """Bound by the agent anew, before its first call, to a handler with `Capability.CONTROL`: without a node id, unless
    the user chose one, for the handler then adds this node's address to the host's name."""
    services: AgentServices = AgentServices()
    """Bound by the agent before its first call."""

    def __init__(self, settings: RendezvousSettings | None = None) -> None:
        """Keep the settings; no connection is made before the first `next_rendezvous`.

        Classes with torch's methods have no settings and call it without any, or not at all; the agent then treats
        them as torch's own.
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

    # The next methods are for handlers with `Capability.CONTROL`: one decision, and one end, for the whole run. Every
    # call returns at once, on whatever thread; `watch` reports the result.

    def publish(self, decision: Restart | Stop, failure: Failure) -> None:
        """Publish this agent's decision about a failure on its node to all others; the first decision counts.

        `watch` then returns the decision that counts, as `Decided`.
        """
        return

    def request_restart(self, reason: str) -> None:
        """Publish a user's request to start all workers again; this agent has begun to stop its own.

        Nothing has failed, and no count or budget changes: `watch` of the other nodes returns a `Decided` without a
        failure. If a handler does not override this method, users of a run of several nodes get an error.
        """
        return

    def report_finishing(self) -> None:
        """Publish that the first worker of this node has ended well: from now on the run takes no more nodes."""
        return

    def report_done(self) -> None:
        """Publish that all workers of this node have ended well; `watch` returns a `Decided` when the run has ended."""
        return

    def announce_departure(self) -> None:
        """Publish that this agent was ordered to stop, and leaves when its workers have ended."""
        return

    def pids(self) -> frozenset[int]:
        """Return the processes that the handler keeps on this host: the agent neither ends nor reaps them.

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
    """Return whether a handler can publish a request for a restart to the other nodes."""
    return type(handler).request_restart is not RendezvousHandler.request_restart
