"""Torch's static rendezvous by name: a TCPStore on the node of rank 0, for library users.

`elastic run --rdzv-backend static` does not use it. Torch is named in strings so that the type checker needs no torch.
"""

from datetime import timedelta
from typing import Any, ClassVar, Final

from elastic_core.api import API_VERSION, RendezvousHandler, RendezvousSettings
from elastic_core.api.rendezvous import RendezvousConnectionError, RendezvousTimeoutError
from elastic_torchrun.rendezvous.endpoint import parse_rendezvous_endpoint
from elastic_torchrun.rendezvous.parameters import RendezvousParameters
from elastic_torchrun.rendezvous.store_info import RendezvousInfo, RendezvousStoreInfo
from elastic_torchrun.torch_import import torch_distributed

_TIMEOUT_S: Final = 600


class StaticTCPRendezvous(RendezvousHandler):
    """One round with assigned ranks, and torch's TCPStore on rank 0's node, which workers may use.

    Args:
        master_addr: Address of rank 0's node.
        master_port: The port of the store.
        rank: This node's rank.
        world_size: The number of nodes.
        run_id: The run's id.
        timeout: Seconds for the nodes to join.
    """

    api_version: ClassVar[int] = API_VERSION

    def __init__(
        self, master_addr: str, master_port: int, rank: int, world_size: int, run_id: str, timeout: int
    ) -> None:
        """Connect to nothing yet."""
        super().__init__(
            RendezvousSettings(
                backend="static",
                run_id=run_id,
                endpoint=f"{master_addr}:{master_port}",
                min_nodes=world_size,
                max_nodes=world_size,
                local_world_size=1,
                node_rank=rank,
                master_addr=master_addr,
                master_port=master_port,
            )
        )
        self.master_addr = master_addr
        self.master_port = master_port
        self.rank = rank
        self.world_size = world_size
        self.run_id = run_id
        self.timeout = timedelta(seconds=timeout)
        self._store: Any = None

    @property
    def use_agent_store(self) -> bool:
        """Return that workers share the store."""
        return True

    def next_rendezvous(self) -> RendezvousInfo:
        """Return this node's place after all nodes have joined.

        Raises:
            RendezvousTimeoutError: not all joined in time.
            RendezvousConnectionError: the store can't be made or reached.
        """
        distributed = torch_distributed("StaticTCPRendezvous")
        if self._store is None:
            self._store = self._open(distributed)
        place = RendezvousStoreInfo(self.master_addr, self.master_port)
        return RendezvousInfo(distributed.PrefixStore(self.run_id, self._store), self.rank, self.world_size, place)

    def _open(self, distributed: Any) -> Any:  # noqa: ANN401  # torch's
        try:
            return distributed.TCPStore(
                self.master_addr,
                self.master_port,
                self.world_size,
                self.rank == 0,
                self.timeout,
                multi_tenant=True,
            )
        except RuntimeError as error:  # torch's are kinds of it
            where = f"{self.master_addr}:{self.master_port}"
            told = " ".join(str(error).split("\n", 1)[0].split())
            late = isinstance(error, TimeoutError) or "time" in told.lower()
            kind = RendezvousTimeoutError if late else RendezvousConnectionError
            raise kind(f"run {self.run_id!r}: not all {self.world_size} nodes met at {where}: {told}") from error

    def watch(self, timeout_s: float) -> None:
        """Sleep: a static round never changes."""
        self.wait.sleep(timeout_s)


def create_rdzv_handler(params: RendezvousParameters) -> StaticTCPRendezvous:
    """Return a handler for the node whose rank is the option `rank`; `timeout` is in seconds, by default 600.

    Raises:
        ValueError: the rank, the endpoint or its port is missing.
    """
    if "rank" not in params.config:
        raise ValueError("static rendezvous without the option rank; expected this node's rank (--node-rank)")
    if not params.endpoint.strip():
        raise ValueError("static rendezvous without an endpoint; expected HOST:PORT (--master-addr and --master-port)")
    address, port = parse_rendezvous_endpoint(params.endpoint, -1)
    if port == -1:
        raise ValueError(f"static rendezvous at {params.endpoint!r}; expected a port, too (--master-port)")
    rank = int(params.config["rank"])
    timeout_s = int(params.config.get("timeout", _TIMEOUT_S))
    return StaticTCPRendezvous(address, port, rank, params.max_nodes, params.run_id, timeout_s)
