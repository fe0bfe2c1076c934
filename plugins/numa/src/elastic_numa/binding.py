"""How workers are bound to processors: torch's names, and what they mean here."""

import enum
import logging
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from elastic_core.api import ConfigError
from elastic_numa.cpu_sets import place
from elastic_numa.gpus import visible_gpus
from elastic_numa.topology import SYSFS, Topology

_LOG = logging.getLogger(__name__)


class AffinityMode(str, enum.Enum):  # noqa: UP042  # torch's base: str(mode) must be as there
    """What a worker shares with others; `elastic run --numa-binding` takes the values.

    Each worker belongs to the NUMA node of the GPU that its local rank indexes among the visible ones. Without a GPU
    for each worker the workers are split evenly over the nodes. Only processors that may be used (taskset, cpusets)
    are given out.
    """

    NODE = "node"
    """All processors of its NUMA node. If in doubt, this one."""
    SOCKET = "socket"
    """All processors of all NUMA nodes of its socket."""
    EXCLUSIVE = "exclusive"
    """Physical cores of its NUMA node that are nobody else's: the node's are divided among its GPUs."""
    CORE_COMPLEX = "core-complex"
    """The processors of its NUMA node that share one last-level cache, another one for each worker if possible."""


@dataclass(frozen=True)
class NumaOptions:
    """How to bind workers, for `LaunchConfig`, `WorkerSpec` and `start_processes`.

    Args:
        affinity_mode: What to bind to.
        should_fall_back_if_binding_fails: Where it can't be done, say so and leave the workers unbound.
    """

    affinity_mode: AffinityMode
    should_fall_back_if_binding_fails: bool = False

    def cpus_for(self, local_rank: int, nproc: int) -> frozenset[int] | None:
        """Return the processors of one worker of several; None: all that may be used.

        Raises:
            ConfigError: it can't be done here, and must be.
        """
        try:
            return bound_cpus(AffinityMode(self.affinity_mode), nproc, environ=os.environ)[local_rank]
        except ConfigError as error:
            if not self.should_fall_back_if_binding_fails:
                raise
            _LOG.warning("workers are not bound to processors: %s", error)
            return None


def bound_cpus(
    mode: AffinityMode,
    nproc: int,
    *,
    environ: Mapping[str, str],
    devices: Sequence[str] = (),
    sysfs: Path = SYSFS,
) -> tuple[frozenset[int], ...]:
    """Return the processors of each worker of this node, by local rank.

    Args:
        mode: What to bind to.
        nproc: How many workers there are.
        environ: Environment variables that workers inherit.
        devices: `--devices` as entries of the visible-devices variable.
        sysfs: Where the kernel's files are.

    Raises:
        ConfigError: it can't be done here.
    """
    topology = Topology(sysfs)
    nodes = [topology.node_of_pci(address) for address in visible_gpus(environ, devices=devices, sysfs=sysfs)]
    return place(mode.value, topology, nproc, nodes)
