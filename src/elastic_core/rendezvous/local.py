"""The rendezvous backend `local`, for a run on one node: no other node is contacted."""

import os
from typing import ClassVar

from elastic_core import messages as m
from elastic_core.errors import ConfigError
from elastic_core.rendezvous.events import AgentSide, Rendezvous
from elastic_core.rendezvous.handler import RendezvousHandler
from elastic_core.types import RendezvousInfo, RendezvousSettings, RosterMember


class LocalRendezvous(RendezvousHandler):
    """Forms a round of this node alone, immediately.

    The round uses a master address or port that the user gave. Otherwise the agent chooses it and reserves the port.

    Raises:
        ConfigError: the run needs more than one node.
    """

    api_version: ClassVar[int] = 1

    def __init__(self, settings: RendezvousSettings) -> None:
        """Reject a run of several nodes."""
        super().__init__(settings)
        if settings.min_nodes != 1 or settings.max_nodes != 1:
            nodes = f"{settings.min_nodes}:{settings.max_nodes}"
            raise ConfigError(
                f"--nnodes: {nodes}; expected 1 with rendezvous backend 'local'",
                hint="--nnodes 1, or a backend for several nodes: --rdzv-backend redis, etcd or c10d with "
                "--rdzv-endpoint HOST:PORT, or static with --node-rank, --master-addr and --master-port",
            )
        self._token = 0

    def next_rendezvous(self) -> RendezvousInfo:
        """Return a new round of this node, with a higher token than the previous round."""
        self.wait.check()
        self._token += 1
        settings = self.settings
        member = RosterMember(
            node_id=settings.node_id,
            local_world_size=settings.local_world_size,
            role=settings.role,
            address=settings.local_addr or "",
        )
        return RendezvousInfo(
            rank=0,
            world_size=1,
            round_token=self._token,
            nonce=os.urandom(8).hex(),
            members=(member,),
            master_addr=settings.master_addr,
            master_port=settings.master_port,
        )

    def watch(self, timeout_s: float) -> None:
        """Sleep for `timeout_s`: the round of one node never changes."""
        self.wait.sleep(timeout_s)


class LocalRounds(Rendezvous):
    """The rounds of `local` as events, without a thread and without other nodes."""

    def __init__(self, handler: LocalRendezvous, agent: AgentSide) -> None:
        super().__init__(agent)
        self._handler = handler

    def post(self, request: m.RendezvousRequest) -> None:
        """Form a round, or leave."""
        match request:
            case m.JoinRendezvous():
                join = self._begin()
                self._agent.form(self._handler.next_rendezvous(), lambda outcome: self._joined(join, outcome))
            case m.CancelRendezvous():
                self._cancel()
            case m.LeaveRendezvous():
                self._leave()
            case _:
                pass  # requests that concern only other nodes
