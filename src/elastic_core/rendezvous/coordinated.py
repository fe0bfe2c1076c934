"""The core's own rendezvous: nodes meet in a `CoordinationStore` and make one decision for the whole run."""

from typing import TYPE_CHECKING, ClassVar

from elastic_core.rendezvous.handler import RendezvousHandler
from elastic_core.rendezvous.store import CoordinationStore
from elastic_core.system.clock import SYSTEM_CLOCK, Clock
from elastic_core.types import Capability, RendezvousSettings

if TYPE_CHECKING:
    from elastic_core.rendezvous.events import AgentSide
    from elastic_core.rendezvous.shell.member_rounds import MemberRounds


class CoordinatedRendezvous:
    """A `CoordinationStore` with the settings of the nodes that meet in it.

    The agent makes no blocking call to it: it sends requests and receives events.
    """

    capabilities: ClassVar[frozenset[Capability]] = frozenset({Capability.CONTROL, Capability.MEMBERSHIP})
    use_agent_store: ClassVar[bool] = False

    def __init__(self, store: CoordinationStore, settings: RendezvousSettings, *, clock: Clock = SYSTEM_CLOCK) -> None:
        self.store = store
        """The store. Only the rounds call it while they exist."""
        self.settings = settings
        self._clock = clock

    def attach(self, agent: "AgentSide") -> "MemberRounds":
        """Return the rounds of this rendezvous; no connection is made before the first join."""
        from elastic_core.rendezvous.shell.member_rounds import MemberRounds  # the protocol: only a run needs it

        return MemberRounds(self.store, self.settings, agent, clock=self._clock)

    def pids(self) -> frozenset[int]:
        """Return the process ids that the store keeps on this host, for example of a server that it started."""
        return self.store.pids()


Backend = RendezvousHandler | CoordinatedRendezvous
"""The backend of a run: a plugin's own handler, or the core's rendezvous on a plugin's store."""
