"""A forked process on its way to be a function's worker."""

import atexit
import io
import os
import pickle
import signal
import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

from elastic_core.multiprocessing.functions import inherited
from elastic_core.multiprocessing.functions.performing import perform
from elastic_core.multiprocessing.functions.wire import WorkerOrders

Load = Callable[[int, int], tuple[Callable[..., Any], tuple[Any, ...]]]
"""Gives the call of the worker with this local rank; it may be in this file (-1: there is none)."""


def be_worker(load: Load, named: Mapping[str, int], fds: list[int], *, mask: set[int]) -> None:
    """Take the orders, make the call, and send what it returns.

    Args:
        load: Gives the call.
        named: The descriptors `orders` and `result`, `call` where that is not in memory, and `out` and `err` where
            those streams are not the caller's.
        fds: The descriptors that the call refers to.
        mask: The signals to block from now on.

    Raises:
        SystemExit: as of a script that ends.
    """
    for name, fd, stream in (("out", 1, "stdout"), ("err", 2, "stderr")):
        if name in named:
            os.dup2(named[name], fd)
            os.close(named[name])
            setattr(sys, stream, _unbuffered(fd))
    inherited.received[:] = fds
    with open(named["orders"], "rb") as file:  # noqa: PTH123  # a descriptor, not a path
        orders: WorkerOrders = pickle.load(file)
    os.environ.clear()
    os.environ.update(orders.env)
    if orders.cpus is not None:
        os.sched_setaffinity(0, orders.cpus)
    atexit._clear()  # the caller's are not for its workers
    _arm()
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    try:
        perform(lambda: load(orders.local_rank, named.get("call", -1)), named["result"])
    finally:
        atexit._run_exitfuncs()  # as for a script; multiprocessing does so from Python 3.13 on


def _unbuffered(fd: int) -> io.TextIOWrapper:
    """Return a text stream as `python -u` has it."""
    return io.TextIOWrapper(
        io.FileIO(fd, "wb", closefd=False),
        errors="backslashreplace" if fd == 2 else None,
        write_through=True,
    )


def _arm() -> None:
    """Do what the `.pth` file does in a fresh interpreter."""
    if os.environ.get("ELASTIC_WORKER_HOOKS", "") == "1":
        # By name, as in that file: it is the worker's side of the product, which nothing here may know.
        import_module("elastic_core.worker.startup").arm()
