"""A fresh interpreter on its way to be a function's worker, or the server that workers are forked from."""

import os
import pickle
from collections.abc import Callable
from multiprocessing import process, resource_tracker, spawn
from typing import Any

from elastic_core.errors import WorkerError
from elastic_core.multiprocessing.functions import inherited, main_module
from elastic_core.multiprocessing.functions.performing import perform

Orders = dict[str, Any]
"""`interpreter` and `main` for `multiprocessing.spawn.prepare`, `tracker_fd`, and `control_fd` for a server; for a
worker `result_fd`, `call_fd`, and in `fds` what the call refers to."""


def begin(orders: Orders) -> None:
    """Be what the orders say."""
    if orders["tracker_fd"] is not None:
        os.set_inheritable(orders["tracker_fd"], False)
        resource_tracker._resource_tracker._fd = orders["tracker_fd"]  # type: ignore[attr-defined]  # as spawn does
    if "control_fd" in orders:
        os.set_inheritable(orders["control_fd"], False)
        from elastic_core.multiprocessing.functions.server import serve_clean

        serve_clean(orders["control_fd"], lambda: import_main(orders["main"]))
    inherited.received[:] = orders["fds"]
    for fd in (orders["result_fd"], orders["call_fd"], *orders["fds"]):
        os.set_inheritable(fd, False)

    def load() -> tuple[Callable[..., Any], tuple[Any, ...]]:
        import_main(orders["main"])
        return load_call(orders["call_fd"])

    perform(load, orders["result_fd"])


def import_main(main: dict[str, str]) -> None:
    """Import the caller's main module, under another name, as multiprocessing's workers do."""
    if not main:
        return
    main_module.begin_import(next(iter(main.values())))
    current = process.current_process()
    current._inheriting = True  # type: ignore[attr-defined]  # so multiprocessing itself refuses to start processes
    try:
        spawn.prepare(main)
    finally:
        del current._inheriting  # type: ignore[attr-defined]  # as above
    main_module.end_import()


def load_call(fd: int) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """Return the function and its arguments from their file, and close it.

    Raises:
        WorkerError: they refer to something that this process does not find.
    """
    try:
        with open(fd, "rb") as file:
            fn, args = pickle.load(file)  # from our own caller, over a descriptor that nobody else has
    except AttributeError as error:
        what, found, _ = str(error).partition(" on <module ")
        if not found:
            raise
        raise WorkerError(
            f"the worker does not find its function, or what it is called with: {what}",
            hint='define both in a module, outside `if __name__ == "__main__":`, or start_method="fork"',
        ) from None
    return fn, args
