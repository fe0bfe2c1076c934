"""Binds workers to processors at their start."""

import os
from collections.abc import Iterator
from contextlib import contextmanager


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
