"""A forked or fresh process that becomes a function's worker: it receives the call and sends the result."""

from __future__ import annotations

import atexit
import io
import os
import pickle
import select
import signal
import sys
from contextlib import suppress
from multiprocessing import process, resource_tracker, spawn
from typing import TYPE_CHECKING, Any, NamedTuple

import elastic_core
from elastic_core.api import ElasticError
from elastic_core.api.workers import WorkerError
from elastic_ops import recording
from elastic_torchrun.functions.call import begin_import, end_import

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from types import TracebackType

    Load = Callable[[], tuple[Callable[..., Any], tuple[Any, ...]]]
    LoadOf = Callable[[int, int], tuple[Callable[..., Any], tuple[Any, ...]]]
    """Gives the call of the worker with this local rank; it may be in this file (-1: there is none)."""

LENGTH_BYTES = 8
_BEAT_MS = 1000
_MACHINERY = (
    os.path.dirname(os.path.abspath(__file__)),  # noqa: PTH100, PTH120  # pathlib is not ours to load
    os.path.join(os.path.dirname(os.path.abspath(elastic_core.__file__)), "processes"),  # noqa: PTH100, PTH118, PTH120  # likewise
    os.path.abspath(recording.__file__),  # noqa: PTH100  # likewise
    "<frozen runpy>",
    spawn.__file__,
)
_ERROR_FILE_VARIABLE = "TORCHELASTIC_ERROR_FILE"

Orders = dict[str, Any]
"""`interpreter` and `main` for `multiprocessing.spawn.prepare`, `tracker_fd`, and `control_fd` for a server. For a
worker `result_fd`, `call_fd`, and in `fds` the descriptors that the call refers to.
"""

received: list[int] = []
"""In a worker: the descriptors that came with its call."""


class Inherited:
    """The object that multiprocessing pickles in place of a descriptor; `detach` returns the worker's own."""

    def __init__(self, place: int) -> None:
        """Keep its place."""
        self.place = place

    def detach(self) -> int:
        """Return the descriptor, which the caller then owns."""
        return received[self.place]


MESSAGE_BYTES = 4096
MAX_FDS = 250
"""The kernel accepts 253 in one message."""


class WorkerOrders(NamedTuple):
    """The orders that a forked worker needs before its call."""

    local_rank: int
    env: dict[str, str]
    cpus: frozenset[int] | None


# --- forked


def be_worker(load: LoadOf, named: Mapping[str, int], fds: list[int], *, mask: set[int]) -> None:
    """Read the orders, make the call, and send the result.

    Args:
        load: Returns the call.
        named: The descriptors `orders` and `result`; `call` if it is not in memory; `out` and `err` if those streams
            are not the caller's.
        fds: The descriptors that the call refers to.
        mask: The signals to block from now on.

    Raises:
        SystemExit: as for a script that ends.
    """
    for name, fd, stream in (("out", 1, "stdout"), ("err", 2, "stderr")):
        if name in named:
            os.dup2(named[name], fd)
            os.close(named[name])
            setattr(sys, stream, _unbuffered(fd))
    received[:] = fds
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
    """Return an unbuffered text stream, as with `python -u`."""
    return io.TextIOWrapper(
        io.FileIO(fd, "wb", closefd=False),
        errors="backslashreplace" if fd == 2 else None,
        write_through=True,
    )


def _arm() -> None:
    """Do the same as the `.pth` file in a fresh interpreter."""
    if os.environ.get("ELASTIC_WORKER_HOOKS", "") == "1":
        from elastic_core.api.workers import arm_worker

        arm_worker()


# --- fresh


def begin(orders: Orders) -> None:
    """Become the worker that the orders describe."""
    take_tracker(orders)
    received[:] = orders["fds"]
    for fd in (orders["result_fd"], orders["call_fd"], *orders["fds"]):
        os.set_inheritable(fd, False)

    def load() -> tuple[Callable[..., Any], tuple[Any, ...]]:
        import_main(orders["main"])
        return load_call(orders["call_fd"])

    perform(load, orders["result_fd"])


def take_tracker(orders: Orders) -> None:
    """Use the caller's resource tracker."""
    if orders["tracker_fd"] is not None:
        os.set_inheritable(orders["tracker_fd"], False)
        resource_tracker._resource_tracker._fd = orders["tracker_fd"]  # type: ignore[attr-defined]  # as spawn does


def import_main(main: dict[str, str]) -> None:
    """Import the caller's main module, under another name, as multiprocessing's workers do."""
    if not main:
        return
    begin_import(next(iter(main.values())))
    current = process.current_process()
    current._inheriting = True  # type: ignore[attr-defined]  # so multiprocessing itself refuses to start processes
    try:
        spawn.prepare(main)
    finally:
        del current._inheriting  # type: ignore[attr-defined]  # as above
    end_import()


def load_call(fd: int) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """Return the function and its arguments from their file, and close it.

    Raises:
        WorkerError: they refer to an object that this process can't find.
    """
    try:
        with open(fd, "rb") as file:
            fn, args = pickle.load(file)  # from this process's own caller, over a private descriptor
    except AttributeError as error:
        what, found, _ = str(error).partition(" on <module ")
        if not found:
            raise
        raise WorkerError(
            f"the worker does not find its function, or what it is called with: {what}",
            hint='define both in a module, outside `if __name__ == "__main__":`, or start_method="fork"',
        ) from None
    return fn, args


# --- the call


def perform(load: Load, result_fd: int) -> None:
    """Call the function from `load`, send its result, and wait until the starter closes the connection.

    A failure ends the process as it ends a script.

    Raises:
        SystemExit: the function raised it, or another exception, which is then recorded and printed.
    """
    called = False
    try:
        fn, args = load()
        called = True
        value = _recorded(fn)(*args)
        called = False
        _send(result_fd, fn, value)
        _wait_for_others(result_fd)
    except SystemExit:
        raise
    except BaseException as error:  # noqa: BLE001  # as at the interpreter's top
        # What we have to say about the call itself needs no traceback of ours.
        trace = None if isinstance(error, ElasticError) and not called else users_part(error.__traceback__)
        sys.last_value = error.with_traceback(trace)  # as there: later code knows that the process ends
        sys.excepthook(type(error), error, trace)
        sys.exit(1)


def _recorded(fn: Callable[..., Any]) -> Callable[..., Any]:
    if not os.environ.get(_ERROR_FILE_VARIABLE):
        return fn
    # Not functools.wraps on whatever `fn` is: what was sent may be any callable.
    return recording.record(lambda *args: fn(*args))


def _send(fd: int, fn: Callable[..., Any], value: object) -> None:
    try:
        content = pickle.dumps(value, protocol=pickle.HIGHEST_PROTOCOL)
    except Exception as error:  # noqa: BLE001  # pickling runs foreign code; raised as WorkerError
        name = getattr(fn, "__qualname__", type(fn).__name__)
        raise WorkerError(
            f"function {name!r} returned a {type(value).__name__} that can't be pickled: {_first_line(error)}",
            hint="return numbers, strings, arrays or tensors on the CPU, or write it to a file and return its name",
        ) from None
    with suppress(BrokenPipeError, ConnectionResetError):  # it is no longer waited for
        for part in (len(content).to_bytes(LENGTH_BYTES, "little"), content):
            rest = memoryview(part)
            while rest:
                rest = rest[os.write(fd, rest) :]


def _wait_for_others(fd: int) -> None:
    """Block until the starter closes the connection: the node's other workers may need this process until they return.

    For example, rank 0 hosts the store of its process group. A worker with heartbeats continues to send them, so it is
    not a hang.
    """
    heartbeat = vars(sys.modules.get("elastic_core.worker", sys)).get("heartbeat")  # if the function has imported it
    ends = select.poll()
    ends.register(fd, select.POLLIN)
    with suppress(KeyboardInterrupt):  # the function has returned: nothing is interrupted
        while not ends.poll(_BEAT_MS if heartbeat is not None else None):
            if heartbeat is not None:
                heartbeat()
    os.close(fd)


def _first_line(error: Exception) -> str:
    text = str(error).partition("\n")[0]
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def users_part(trace: TracebackType | None) -> TracebackType | None:
    """Return the traceback from the user's first frame; elastic-core's own frames if there is none of the user's."""
    whole = trace
    while trace is not None and trace.tb_frame.f_code.co_filename.startswith(_MACHINERY):
        trace = trace.tb_next
    return whole if trace is None else trace
