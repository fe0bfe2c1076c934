"""The core's own rendezvous: nodes meet in a store, and decide together for the whole run."""

from typing import TYPE_CHECKING, ClassVar

from elastic_core.rendezvous.handler import RendezvousHandler
from elastic_core.rendezvous.store import CoordinationStore
from elastic_core.system.clock import SYSTEM_CLOCK, Clock
from elastic_core.types import Capability, RendezvousSettings

if TYPE_CHECKING:
    from elastic_core.rendezvous.events import AgentSide
    from elastic_core.rendezvous.shell.member_rounds import MemberRounds


class CoordinatedRendezvous:
    """A `CoordinationStore`, and the settings with which nodes meet in it.

    An agent calls nothing of it that blocks: its rounds are requests and events.
    """

    capabilities: ClassVar[frozenset[Capability]] = frozenset({Capability.CONTROL, Capability.MEMBERSHIP})
    use_agent_store: ClassVar[bool] = False

    def __init__(self, store: CoordinationStore, settings: RendezvousSettings, *, clock: Clock = SYSTEM_CLOCK) -> None:
        self.store = store
        """While there are rounds, only they call it."""
        self.settings = settings
        self._clock = clock

    def attach(self, agent: "AgentSide") -> "MemberRounds":
        """Return the rounds; no connection is made before the first join."""
        from elastic_core.rendezvous.shell.member_rounds import MemberRounds  # the algorithm: only a run needs it

        return MemberRounds(self.store, self.settings, agent, clock=self._clock)

    def pids(self) -> frozenset[int]:
        """Return the processes that the store keeps on this host (a server of its own)."""
        return self.store.pids()


Backend = RendezvousHandler | CoordinatedRendezvous
"""A backend of a run: its authors' own handler, or the core's rendezvous on their store."""
