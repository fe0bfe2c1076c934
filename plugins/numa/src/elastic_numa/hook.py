"""The hook behind `--numa-binding`."""

import os
from collections.abc import Sequence
from typing import ClassVar

from elastic_core.api import AgentHook, HookSettings, LaunchChange, Launches, OptionSpec, Power, WorkersStarting
from elastic_numa.binding import AffinityMode, bound_cpus
from elastic_numa.options import NUMA_BINDING


class NumaBinding(AgentHook):
    """Binds each worker to its processors, the same in every round."""

    api_version: ClassVar[int] = 1
    powers: ClassVar[frozenset[Power]] = frozenset({Power.LAUNCHES})
    options: ClassVar[Sequence[OptionSpec]] = (NUMA_BINDING,)

    def __init__(self, settings: HookSettings) -> None:
        """Choose the processors.

        Raises:
            ConfigError: binding is impossible here.
        """
        super().__init__(settings)
        mode = AffinityMode(settings.options["numa_binding"])
        cpus = bound_cpus(mode, settings.local_world_size, environ=os.environ, devices=settings.devices)
        self._launches = Launches(workers={rank: LaunchChange(processors=own) for rank, own in enumerate(cpus)})

    def on_workers_starting(self, event: WorkersStarting) -> Launches:
        """Bind the workers."""
        return self._launches
