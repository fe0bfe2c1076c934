"""A rendezvous of its own: nodes take their places from options; no server."""

from collections.abc import Sequence
from typing import ClassVar

from elastic_core.api import (
    AgentServices,
    Capability,
    ConfigError,
    NodesWaiting,
    OptionSpec,
    RendezvousClosedError,
    RendezvousHandler,
    RendezvousInfo,
    RendezvousSettings,
    RosterMember,
    RoundChange,
)


class PlacedRendezvous(RendezvousHandler):
    """Forms the round that its options describe, again after each failure."""

    api_version: ClassVar[int] = 1
    capabilities: ClassVar[frozenset[Capability]] = frozenset()
    options: ClassVar[Sequence[OptionSpec]] = (
        OptionSpec(name="place", type="int", default=0, help="this node's rank"),
        OptionSpec(name="nodes", type="int", required=True, help="how many nodes there are"),
        OptionSpec(name="port", type="int", default=29500, help="a free port of node 0"),
        OptionSpec(name="pause", type="float", default=0.0, unit="seconds", help="wait before each round"),
        OptionSpec(name="named", type="bool", default=False, help="name the nodes of the round"),
        OptionSpec(name="address", help="of node 0; default localhost"),
    )

    def __init__(self, settings: RendezvousSettings) -> None:
        """Check what was asked for."""
        super().__init__(settings)
        self._place = int(settings.options["place"] or 0)
        self._nodes = int(settings.options["nodes"] or 0)
        if not 0 <= self._place < self._nodes:
            raise ConfigError(f"place {self._place} is none of {self._nodes} nodes", hint="--rdzv-conf nodes=2,place=1")
        self._token = 0
        self._closed = False

    def next_rendezvous(self) -> RendezvousInfo:
        """Return this node's place, after a pause."""
        if self._closed:
            raise RendezvousClosedError(f"run {self.settings.run_id!r} is closed")
        self.wait.sleep(float(self.settings.options["pause"] or 0))
        self.wait.check()
        self._token += 1
        members: tuple[RosterMember, ...] = ()
        if self.settings.options["named"]:
            members = tuple(
                RosterMember(node_id=f"n{at}", local_world_size=self.settings.local_world_size)
                for at in range(self._nodes)
            )
        return RendezvousInfo(
            rank=self._place,
            world_size=self._nodes,
            round_token=self._token,
            nonce=f"{self.settings.run_id}-{self._token}",
            members=members,
            master_addr=str(self.settings.options["address"] or "localhost"),
            master_port=int(self.settings.options["port"] or 0),
        )

    def watch(self, timeout_s: float) -> RoundChange | None:
        """Wait: nobody ever comes."""
        self.wait.sleep(timeout_s)
        waiting = self.num_nodes_waiting()
        return NodesWaiting(count=waiting) if waiting else None

    def num_nodes_waiting(self) -> int:
        """Return that nobody waits."""
        return 0

    def is_closed(self) -> bool:
        """Return whether the run was ended."""
        return self._closed

    def set_closed(self) -> None:
        """End the run for this node."""
        self._closed = True

    def get_backend(self) -> str:
        """Return the name."""
        return "frozen-handler"

    def get_run_id(self) -> str:
        """Return the run."""
        return self.settings.run_id

    def shutdown(self) -> bool:
        """Give nothing back."""
        services: AgentServices | None = getattr(self, "services", None)
        return services is None or True
