"""The interface of a rendezvous backend: how agents find each other and agree on rounds."""

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
    """An agent's services to its rendezvous handler. This base class, for use without an agent, does nothing.

    Every method may be called from any thread. Only `reserve_port` may block.
    """

    def reserve_port(self) -> int:
        """Return a new reserved port for the worker of rank 0, in place of the previous one; 0 means none.

        Called: in `next_rendezvous`, when no worker exists.
        """
        return 0

    def notice(self, text: str) -> None:
        """Print one line."""

    def ticked_s(self) -> float:
        """Return when the agent's loop last ran, in monotonic seconds, and make it run again.

        A handler that renews a lease on its own thread must give the lease up when the loop no longer runs.
        """
        return float("inf")


class RendezvousHandler(ABC):
    """Forms rounds. Subclass it, override `next_rendezvous`, and register the class under `elastic_core.rendezvous`.

    The agent creates it once per run as `cls(settings)`, after options are validated and before any worker exists. The
    default constructor keeps the settings. The agent sets `wait` before each blocking call: check it, sleep through it,
    and let its errors pass.

    Threading: every method but `set_closed` and `shutdown` is called on the agent's rendezvous thread, one at a time.
    """

    api_version: ClassVar[int]
    capabilities: ClassVar[frozenset[Capability]] = frozenset()
    options: ClassVar[Sequence[OptionSpec]] = ()
    """The `--rdzv-conf` keys that this backend accepts."""

    wait: WaitBudget
    settings: RendezvousSettings
    """The run's settings. The agent sets them again before its first call if the handler has `Capability.CONTROL`. They
    have no node id then unless the user chose one: the handler adds this node's address to the host's name."""
    services: AgentServices = AgentServices()
    """The agent's services; the agent sets them before its first call."""

    def __init__(self, settings: RendezvousSettings | None = None) -> None:
        """Keep the settings; no connection is made before the first `next_rendezvous`.

        Classes with torch's methods have no settings: they call this constructor without settings, or not at all. The
        agent then treats them as torch's own handlers.
        """
        if settings is not None:
            self.settings = settings
        self.wait = WaitBudget()

    @abstractmethod
    def next_rendezvous(self) -> RendezvousInfo | tuple[object, int, int]:
        """Block until a round forms and return this node's place in it; `(store, rank, world_size)` is accepted too.

        Raises:
            RendezvousClosedError: the run is over.
            RendezvousTimeoutError: too few nodes joined in time.
            RendezvousConnectionError: the backend can't be reached.
            RendezvousGracefulExitError: the run does not need this node.
        """

    def watch(self, timeout_s: float) -> RoundChange | None:
        """Return a change that the agent must react to, or `None` if none occurred in `timeout_s`. Blocks until then.

        The default polls `num_nodes_waiting` and `is_closed` every `settings.monitor_interval_s`. A backend with rounds
        that never change overrides it to sleep through `self.wait`.
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
        """Release this object's resources on this host; return whether that succeeded. Idempotent, never raises."""
        return True

    # The next methods are for handlers with `Capability.CONTROL`: one decision and one result for the whole run. Each
    # call must return immediately, on any thread; `watch` reports the result.

    def publish(self, decision: Restart | Stop, failure: Failure) -> None:
        """Publish this agent's decision about a failure on its node to all other nodes; the first one counts.

        `watch` then returns the decision that counts, as `Decided`.
        """
        return

    def request_restart(self, reason: str) -> None:
        """Publish a user's request to restart all workers; this agent has already begun to stop its own.

        No worker has failed, and no count or budget changes: `watch` of the other nodes returns a `Decided` without a
        failure. If a handler does not override this method, users of a run of several nodes get an error.
        """
        return

    def report_finishing(self) -> None:
        """Publish that the first worker of this node exited with 0: the run admits no more nodes from now on."""
        return

    def report_done(self) -> None:
        """Publish that all workers of this node exited with 0; `watch` returns a `Decided` when the run has ended."""
        return

    def announce_departure(self) -> None:
        """Publish that this agent was ordered to stop and will leave when its workers have ended."""
        return

    def pids(self) -> frozenset[int]:
        """Return the process ids that the handler keeps on this host: the agent neither ends nor reaps these processes.

        Threading: the agent's.
        """
        return frozenset()

    def get_run_id(self) -> str:
        """Return the run's id."""
        return self.settings.run_id

    def get_backend(self) -> str:
        """Return the backend's name as users type it."""
        return self.settings.backend

    @property
    def use_agent_store(self) -> bool:
        """Whether workers must use a store that the agent hosts (exported as TORCHELASTIC_USE_AGENT_STORE)."""
        return False


def takes_restarts(handler: RendezvousHandler) -> bool:
    """Return whether a handler can publish a restart request to the other nodes."""
    return type(handler).request_restart is not RendezvousHandler.request_restart
