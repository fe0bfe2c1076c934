"""Binds workers to processors at their start."""

import os
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Protocol, runtime_checkable

from elastic_core.errors import ConfigError


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


@contextmanager
def bound_to(cpus: frozenset[int] | None) -> Iterator[None]:
    """Bind this thread meanwhile: what it starts inherits that, from its first instruction on. None: no change."""
    if cpus is None:
        yield
        return
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cpus)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)
