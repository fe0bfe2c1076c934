"""The processors of a library call's workers, from torch's `numa_options`."""

from collections.abc import Collection, Mapping
from typing import Protocol, runtime_checkable

from elastic_core.api import ConfigError


@runtime_checkable
class Binding(Protocol):
    """Assigns processors to workers; `elastic_numa.NumaOptions` is one."""

    def cpus_for(self, local_rank: int, nproc: int) -> Collection[int] | None:
        """Return the processors of one worker. `None` means all that are allowed."""
        ...


def cpus_for(options: object, local_rank: int, nproc: int) -> frozenset[int] | None:
    """Return the processors of this worker from a caller's `numa_options`.

    Raises:
        ConfigError: they are not elastic-core's options.
    """
    if options is None:
        return None
    if not isinstance(options, Binding):
        raise ConfigError(f"numa_options {options!r} can't bind workers", hint="elastic_numa.NumaOptions")
    cpus = options.cpus_for(local_rank, nproc)
    return None if cpus is None else frozenset(cpus)


def inherited_nproc(env: Mapping[str, str], local_rank: int) -> int:
    """Return the number of workers in a worker's environment, at least its local rank plus 1."""
    text = env.get("LOCAL_WORLD_SIZE", "")
    return max(int(text) if text.isdecimal() else 1, local_rank + 1)
