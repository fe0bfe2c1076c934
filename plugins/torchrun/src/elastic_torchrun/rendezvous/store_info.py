"""The result of `next_rendezvous` in torch's form, with the address at which workers meet."""

import socket
from dataclasses import dataclass
from typing import Any, ClassVar

from msgspec.structs import force_setattr

from elastic_core import api


@dataclass
class RendezvousStoreInfo:
    """Address and port of rank 0's worker."""

    MASTER_ADDR_KEY: ClassVar[str] = "MASTER_ADDR"
    MASTER_PORT_KEY: ClassVar[str] = "MASTER_PORT"
    master_addr: str
    master_port: int

    @staticmethod
    def build(rank: int, store: Any, local_addr: str | None, server_port: int | None = None) -> "RendezvousStoreInfo":  # noqa: ANN401  # torch's
        """Agree with the other nodes through a store: rank 0 writes its address and a port, the others read them.

        Args:
            rank: This node's.
            store: A store of torch's for this round only. With keys of the last round, a node would read old addresses.
            local_addr: This node's address. `None` means its full host name.
            server_port: The port. `None` or 0 means one that is free now.
        """
        if rank == 0:
            from elastic_torchrun.rendezvous.tcp_store import get_free_port

            address = local_addr or socket.getfqdn()
            store.set(RendezvousStoreInfo.MASTER_ADDR_KEY, address.encode())
            store.set(RendezvousStoreInfo.MASTER_PORT_KEY, str(server_port or get_free_port()).encode())
        address = store.get(RendezvousStoreInfo.MASTER_ADDR_KEY).decode()
        return RendezvousStoreInfo(address, int(store.get(RendezvousStoreInfo.MASTER_PORT_KEY)))


class RendezvousInfo(api.RendezvousInfo, frozen=True, kw_only=False):
    """This node's place in a round: `elastic_core.api.RendezvousInfo` with torch's order of arguments."""

    store: Any
    rank: int
    world_size: int
    bootstrap_store_info: RendezvousStoreInfo | None = None

    def __post_init__(self) -> None:
        """Set the address at which workers meet, for the agent."""
        if self.bootstrap_store_info is not None and self.master_addr is None:
            force_setattr(self, "master_addr", self.bootstrap_store_info.master_addr)
            force_setattr(self, "master_port", int(self.bootstrap_store_info.master_port))
