"""The assignment of processors to workers, from the topology and the GPUs. Pure."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence

from elastic_core.api import ConfigError
from elastic_numa.topology import Topology, write_ranges

Cpus = frozenset[int]


def place(mode: str, topology: Topology, nproc: int, gpu_nodes: Sequence[int] = ()) -> tuple[Cpus, ...]:
    """Return each worker's processors, by local rank.

    Args:
        mode: `node`, `socket`, `exclusive` or `core-complex`; see `AffinityMode`.
        topology: This machine's topology.
        nproc: The number of workers.
        gpu_nodes: The NUMA node of each visible GPU, in order. With at least one for each worker, the GPUs decide. With
            fewer, the workers are divided evenly among the nodes.

    Raises:
        ConfigError: binding is impossible here.
    """
    by_gpu = len(gpu_nodes) >= nproc
    places = list(gpu_nodes) if by_gpu else _evenly(topology, nproc, mode)
    for rank in range(nproc):
        if not topology.cpus_of_node(places[rank]):
            what = f"the worker with local rank {rank} belongs to NUMA node {places[rank]}"
            raise ConfigError(
                f"{what}, of whose processors none may be used here (allowed: {write_ranges(topology.allowed)})",
                hint="wider limits (taskset, cpuset), other --devices, or no --numa-binding",
            )
    choose: dict[str, Callable[[int], Cpus]] = {
        "node": lambda rank: topology.cpus_of_node(places[rank]),
        "socket": lambda rank: _socket(topology, places[rank]),
        "exclusive": lambda rank: _share(topology, places, rank),
        "core-complex": lambda rank: _complex(topology, places, rank),
    }
    return tuple(choose[mode](rank) for rank in range(nproc))


def _evenly(topology: Topology, nproc: int, mode: str) -> list[int]:
    """Return a node for each worker: neighbours together, and the same number on each node, or socket."""
    nodes = topology.nodes
    if mode == "socket":
        firsts = {topology.socket_of_node(node): node for node in reversed(nodes)}
        nodes = tuple(sorted(firsts.values()))
    return [nodes[rank * len(nodes) // nproc] for rank in range(nproc)]


def _socket(topology: Topology, node: int) -> Cpus:
    socket = topology.socket_of_node(node)
    same = (other for other in topology.nodes if topology.socket_of_node(other) == socket)
    return frozenset().union(*(topology.cpus_of_node(other) for other in same))


def _share(topology: Topology, places: Sequence[int], rank: int) -> Cpus:
    """Return this worker's part of the physical cores of its node. The first workers get the remaining ones."""
    index, count = _among(places, rank)
    cores = list(_grouped(topology.cpus_of_node(places[rank]), topology.core_of).values())
    if len(cores) < count:
        users = f"{count} workers or GPUs"
        raise ConfigError(
            f"NUMA node {places[rank]} has {len(cores)} physical cores that may be used, for {users} that want their "
            "own",
            hint="--numa-binding node, or fewer workers",
        )
    each, extra = divmod(len(cores), count)
    start = index * each + min(index, extra)
    return frozenset().union(*cores[start : start + each + (index < extra)])


def _complex(topology: Topology, places: Sequence[int], rank: int) -> Cpus:
    """Return the core complex of this worker, a different one for each while there are enough, the largest first."""
    index, _ = _among(places, rank)
    groups = _grouped(topology.cpus_of_node(places[rank]), topology.complex_of)
    complexes = sorted(groups.items(), key=lambda item: (-len(item[1]), item[0]))
    return complexes[index % len(complexes)][1]


def _among(places: Sequence[int], rank: int) -> tuple[int, int]:
    """Return this worker's index on its node, and the number of workers there."""
    same = [other for other, node in enumerate(places) if node == places[rank]]
    return same.index(rank), len(same)


def _grouped(cpus: Iterable[int], key: Callable[[int], int]) -> dict[int, Cpus]:
    groups: defaultdict[int, set[int]] = defaultdict(set)
    for cpu in cpus:
        groups[key(cpu)].add(cpu)
    return {first: frozenset(groups[first]) for first in sorted(groups)}
