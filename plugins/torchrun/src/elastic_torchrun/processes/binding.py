"""Which processors the workers of a library call have, by torch's `numa_options`."""

from collections.abc import Collection, Mapping
from typing import Protocol, runtime_checkable

from elastic_core.api import ConfigError


@runtime_checkable
class Binding(Protocol):
    """Says which worker runs where; `elastic_numa.NumaOptions` is one."""

    def cpus_for(self, local_rank: int, nproc: int) -> Collection[int] | None:
        """Return the processors of one worker of several, None for all that are allowed."""
        ...


def cpus_for(options: object, local_rank: int, nproc: int) -> frozenset[int] | None:
    """Return what a caller's `numa_options` say about this worker.

    Raises:
        ConfigError: they are no options of ours.
    """
    if options is None:
        return None
    if not isinstance(options, Binding):
        raise ConfigError(f"numa_options {options!r} can't bind workers", hint="elastic_numa.NumaOptions")
    cpus = options.cpus_for(local_rank, nproc)
    return None if cpus is None else frozenset(cpus)


def inherited_nproc(env: Mapping[str, str], local_rank: int) -> int:
    """Return how many workers the environment of one says there are, at least those up to it."""
    text = env.get("LOCAL_WORLD_SIZE", "")
    return max(int(text) if text.isdecimal() else 1, local_rank + 1)
