"""The interface of a rendezvous: how agents find each other and agree on rounds."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar

from elastic_core.clock import WaitBudget
from elastic_core.types import (
    Capability,
    NodesWaiting,
    OptionSpec,
    RendezvousClosed,
    RendezvousInfo,
    RendezvousSettings,
    RoundChange,
)


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

    def __init__(self, settings: RendezvousSettings) -> None:
        """Keep the settings; no connection is made before the first `next_rendezvous`."""
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
