"""Modes of binding workers to processors, under torch's names."""

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
    """The processors that a worker may use; `elastic run --numa-binding` accepts the values.

    Each worker belongs to the NUMA node of the GPU with its local rank among the visible ones. If there is not a GPU
    for each worker, the workers are divided evenly among the nodes. Only allowed processors (taskset, cpusets) are
    used.
    """

    NODE = "node"
    """All processors of its NUMA node. The recommended mode."""
    SOCKET = "socket"
    """All processors of all NUMA nodes of its socket."""
    EXCLUSIVE = "exclusive"
    """Physical cores of its NUMA node for it alone: the node's cores are divided among its GPUs."""
    CORE_COMPLEX = "core-complex"
    """The processors of its NUMA node with one common last-level cache, a different one for each worker if possible."""


@dataclass(frozen=True)
class NumaOptions:
    """The binding of workers, for `LaunchConfig`, `WorkerSpec` and `start_processes`.

    Args:
        affinity_mode: The mode.
        should_fall_back_if_binding_fails: If binding is impossible, log that and leave the workers unbound.
    """

    affinity_mode: AffinityMode
    should_fall_back_if_binding_fails: bool = False

    def cpus_for(self, local_rank: int, nproc: int) -> frozenset[int] | None:
        """Return the processors of one worker. `None` means all that are allowed.

        Raises:
            ConfigError: binding is impossible here, and there is no fallback.
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
        mode: The mode.
        nproc: The number of workers.
        environ: Environment variables that workers inherit.
        devices: `--devices` as entries of the visible-devices variable.
        sysfs: Directory of the kernel's files.

    Raises:
        ConfigError: binding is impossible here.
    """
    topology = Topology(sysfs)
    nodes = [topology.node_of_pci(address) for address in visible_gpus(environ, devices=devices, sysfs=sysfs)]
    return place(mode.value, topology, nproc, nodes)
