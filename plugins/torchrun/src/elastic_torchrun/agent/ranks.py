"""The ranks of this node's workers in a round, and the address of rank 0's worker.

If a handler returns only the round's nodes, agents agree through the round's store under torch's keys, so that an agent
of torch's may be among them.
"""

import json
import os
import socket
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from elastic_core.api import Record
from elastic_core.api.rendezvous import RendezvousStateError
from elastic_torchrun.agent.worker_group import Worker
from elastic_torchrun.agent.worker_spec import WorkerSpec

IDENTICAL_VARIABLE: Final = "TORCH_ELASTIC_WORKER_IDENTICAL"
_ROLE_KEY: Final = "torchelastic/role_info/"
_RANKS_KEY: Final = "torchelastic/assigned_ranks/"
_ADDRESS_KEY: Final = "MASTER_ADDR"
_PORT_KEY: Final = "MASTER_PORT"


class Node(Record, frozen=True, kw_only=True):
    """The workers of one node."""

    role: str
    local_world_size: int


class Place(Record, frozen=True, kw_only=True):
    """A round, from any kind of handler. `nodes` are in rank order; empty means that the handler returned none."""

    store: Any
    rank: int
    world_size: int
    nodes: tuple[Node, ...] = ()
    master_addr: str | None = None
    master_port: int | None = None


def place_of(info: Any, backend: str) -> Place:  # noqa: ANN401  # ours, torch's, or a tuple
    """Return the result of a handler's `next_rendezvous`.

    Raises:
        RendezvousStateError: the result is not a round.
    """
    if isinstance(info, tuple) and len(info) == 3:
        store, rank, world_size = info
        return Place(store=store, rank=rank, world_size=world_size)
    try:
        store, rank, world_size = info.store, info.rank, info.world_size
    except AttributeError as error:
        what = f"rendezvous {backend!r} returned {type(info).__name__}; expected a RendezvousInfo or a tuple"
        raise RendezvousStateError(what, hint="report it to the backend's authors") from error
    bootstrap = getattr(info, "bootstrap_store_info", None)
    where = info if bootstrap is None else bootstrap
    return Place(
        store=store,
        rank=rank,
        world_size=world_size,
        nodes=tuple(
            Node(role=each.role, local_world_size=each.local_world_size) for each in getattr(info, "members", ())
        ),
        master_addr=getattr(where, "master_addr", None),
        master_port=getattr(where, "master_port", None),
    )


def assign_ranks(place: Place, spec: WorkerSpec, environ: Mapping[str, str] = os.environ) -> list[Worker]:
    """Return this node's workers with their ranks. May wait for the other nodes through the store."""
    own = Node(role=spec.role, local_world_size=spec.local_world_size)
    if place.nodes:
        ranks = _ranks_of(place.nodes)[place.rank]
    elif place.world_size == 1 or environ.get(IDENTICAL_VARIABLE) == "1":
        ranks = _ranks_of((own,) * place.world_size)[place.rank]
    else:
        ranks = _agreed(place, own)
    base, world_size, role_base, role_world_size = ranks
    return [
        Worker(
            local_rank=rank,
            global_rank=base + rank,
            role_rank=role_base + rank,
            world_size=world_size,
            role_world_size=role_world_size,
        )
        for rank in range(spec.local_world_size)
    ]


def meet(place: Place, spec: WorkerSpec, reserve_port: Callable[[], int]) -> tuple[str, int]:
    """Return the address of rank 0's worker: the user's choice, the handler's, or what node 0 publishes."""
    address, port = spec.master_addr or place.master_addr, spec.master_port or place.master_port
    if address and port:
        return address, port
    store = place.store
    if place.rank > 0:
        return address or _text(store.get(_ADDRESS_KEY)), port or int(_text(store.get(_PORT_KEY)))
    own = "127.0.0.1" if place.world_size == 1 else socket.getfqdn()
    address, port = address or spec.local_addr or own, port or reserve_port()
    if place.world_size > 1:
        store.set(_ADDRESS_KEY, address)
        store.set(_PORT_KEY, str(port))
    return address, port


def _agreed(place: Place, own: Node) -> tuple[int, int, int, int]:
    store = place.store
    told = {"role": own.role, "rank": place.rank, "local_world_size": own.local_world_size}
    store.set(f"{_ROLE_KEY}{place.rank}", json.dumps(told))
    if place.rank == 0:
        nodes = [_node(store.get(f"{_ROLE_KEY}{rank}")) for rank in range(place.world_size)]
        for rank, ranks in enumerate(_ranks_of(nodes)):
            store.set(f"{_RANKS_KEY}{rank}", json.dumps(ranks))
    base, world_size, role_base, role_world_size = json.loads(store.get(f"{_RANKS_KEY}{place.rank}"))
    return int(base), int(world_size), int(role_base), int(role_world_size)


def _ranks_of(nodes: Sequence[Node]) -> list[tuple[int, int, int, int]]:
    """Return each node's first global rank, number of workers, first rank in its role, and number in that role."""
    total = sum(node.local_world_size for node in nodes)
    role_sizes: dict[str, int] = {}
    for node in nodes:
        role_sizes[node.role] = role_sizes.get(node.role, 0) + node.local_world_size
    base, role_base, ranks = 0, dict.fromkeys(role_sizes, 0), []
    for node in nodes:
        ranks.append((base, total, role_base[node.role], role_sizes[node.role]))
        base += node.local_world_size
        role_base[node.role] += node.local_world_size
    return ranks


def _node(told: bytes | str) -> Node:
    fields = json.loads(told)
    return Node(role=str(fields["role"]), local_world_size=int(fields["local_world_size"]))


def _text(value: bytes | str) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)
