"""Binds workers to processors at their start."""

import os
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import Protocol, runtime_checkable

from elastic_core.errors import ConfigError


@runtime_checkable
class Binding(Protocol):
    """Says which worker runs where; `elastic_core.numa.NumaOptions` is one."""

    def cpus_for(self, local_rank: int) -> Collection[int] | None:
        """Return the processors of this worker, None for all that are allowed."""
        ...


def cpus_for(options: object, local_rank: int) -> frozenset[int] | None:
    """Return what a caller's `numa_options` say about this worker.

    Raises:
        ConfigError: they are no options of ours.
    """
    if options is None:
        return None
    if not isinstance(options, Binding):
        raise ConfigError(f"numa_options {options!r} can't bind workers", hint="elastic_core.numa.NumaOptions")
    cpus = options.cpus_for(local_rank)
    return None if cpus is None else frozenset(cpus)


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
