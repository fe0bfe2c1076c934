"""The store that torch's agents share in a round; the agent of rank 0 hosts a new one for each round.

Torch is named in strings so that the type checker needs no torch.
"""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

from elastic_core.api import SYSTEM_CLOCK, Clock, RendezvousInfo, WaitBudget
from elastic_core.api.rendezvous import RendezvousConnectionError, RendezvousError
from elastic_core.embedding import HeldPort
from elastic_torchrun.torch_errors import one_line
from elastic_torchrun.torch_import import torch_distributed

OPERATION_S = 60.0
"""How long an agent waits for another agent's key, as in torch's c10d."""
CONNECT_S = 60.0
CONNECT_TRY_S = 3.0
"""Limit of one try, which can't be interrupted."""
PAUSE_S = 0.02

_HERE, _ALL, _WORKER_PORT = "elastic/here", "elastic/all", "elastic/worker_port"


class RoundStores:
    """Offers a store of this node before each round, and opens that of the node with rank 0.

    Torch's own backends keep one store for the whole run, in which workers of a new round find addresses of ended ones.
    A new store for each round has no old keys. It ends with the next round, or with the process: agents that finish
    notify each other through it.

    Threading: one thread.
    """

    def __init__(self, *, clock: Clock = SYSTEM_CLOCK) -> None:
        """Listen on nothing yet."""
        self._torch = torch_distributed("the store of a round")
        self._clock = clock
        self._offered: Any = None
        self._current: Any = None
        self._held: HeldPort | None = None

    def offer(self) -> int:
        """Listen for the agents of the next round, and return the port. The last round's store stays open.

        Raises:
            RendezvousError: no port is free.
        """
        try:
            self._offered = self._torch.TCPStore(
                "127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=timedelta(seconds=OPERATION_S)
            )
        except Exception as error:
            raise RendezvousError(
                f"this node can't host a store for the agents of a round: {one_line(error)}",
                hint="look for exhausted ports (ss -s) or descriptors (ulimit -n) on this host",
            ) from error
        return int(self._offered.port)

    def meet(self, info: RendezvousInfo, over: Callable[[], bool]) -> tuple[Any, int] | None:
        """Return the round's store, and the port for the worker of rank 0, when all agents of the round are connected.

        Args:
            info: The round: rank 0 listens on its master address and port.
            over: Returns whether the round has ended.

        Returns:
            `None` if the round has ended before all were connected.

        Raises:
            RendezvousConnectionError: the agent of rank 0 can't be reached.
        """
        store = self._open(info, over)
        if store is None:
            return None
        try:
            return self._gather(store, info, over)
        except RuntimeError as error:  # torch's are kinds of it; the host of the store is gone, or the way to it
            if over():
                return None
            raise _unreachable(info, one_line(error)) from error

    def close(self) -> None:
        """Release the held port. The store stays open, as other agents may still read from it."""
        if self._held is not None:
            self._held.close()
            self._held = None

    def _open(self, info: RendezvousInfo, over: Callable[[], bool]) -> Any:  # noqa: ANN401  # a store of torch's
        prefix = f"elastic/{info.round_token}"
        self.close()  # the workers that listened on it are gone
        if info.rank == 0:
            self._current, self._offered = self._offered, None
            self._held = HeldPort.reserve()
            store = self._torch.PrefixStore(prefix, self._current)
            store.set(_WORKER_PORT, str(self._held.port))
            return store
        self._offered = None
        self._current = self._connect(info, over)
        return None if self._current is None else self._torch.PrefixStore(prefix, self._current)

    def _connect(self, info: RendezvousInfo, over: Callable[[], bool]) -> Any:  # noqa: ANN401  # a store of torch's
        end_s = self._clock.monotonic_s() + CONNECT_S
        while True:
            try:
                store = self._torch.TCPStore(
                    info.master_addr, info.master_port, is_master=False, timeout=timedelta(seconds=CONNECT_TRY_S)
                )
            except RuntimeError as error:
                if over():
                    return None
                if self._clock.monotonic_s() >= end_s:
                    raise _unreachable(info, one_line(error)) from error
                WaitBudget().sleep(PAUSE_S)
                continue
            store.set_timeout(timedelta(seconds=OPERATION_S))
            return store

    def _gather(self, store: Any, info: RendezvousInfo, over: Callable[[], bool]) -> tuple[Any, int] | None:  # noqa: ANN401
        """Wait for all. Torch's agents, which read each other's keys next, would wait in vain for one that has died."""
        if store.add(_HERE, 1) == info.world_size:
            store.set(_ALL, "1")
        while not store.check([_ALL]):
            if over():
                return None
            WaitBudget().sleep(PAUSE_S)
        return store, int(store.get(_WORKER_PORT))


def _unreachable(info: RendezvousInfo, why: str) -> RendezvousConnectionError:
    return RendezvousConnectionError(
        f"the agent of rank 0 at {info.master_addr}:{info.master_port} could not be reached: {why}",
        hint="--local-addr on that node, with an address by which the others come to it",
    )


class GivenStore:
    """A given store, with separate keys for each round, and a port of this node for the worker of rank 0.

    Threading: one thread.
    """

    def __init__(self, store: Any, run_id: str) -> None:  # noqa: ANN401  # one of torch's
        """Hold no port yet."""
        self._torch = torch_distributed("the store of a round")
        self._store = store
        self._run_id = run_id
        self._held: HeldPort | None = None

    def offer(self) -> int:
        """Hold a new port in place of the last one, and return it."""
        self.close()
        self._held = HeldPort.reserve()
        return self._held.port

    def meet(self, info: RendezvousInfo, over: Callable[[], bool]) -> tuple[Any, int]:
        """Return the store with a prefix for the round, and the port that rank 0 offered."""
        prefix = f"torch.rendezvous.{self._run_id}.{info.round_token}"
        return self._torch.PrefixStore(prefix, self._store), info.master_port or 0

    def close(self) -> None:
        """Release the held port."""
        if self._held is not None:
            self._held.close()
            self._held = None
