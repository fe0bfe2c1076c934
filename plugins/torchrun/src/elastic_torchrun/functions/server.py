"""The process that forks function workers. It has one thread, and only forks, reaps and waits.

With `fork` it is a copy of the caller from before elastic-core started any thread; with `forkserver`, a clean
interpreter. Its orders come over a socket. If the socket closes, its caller has ended: it stops the workers and exits.

Each forked process first waits for its orders over a socket of its own. The caller can therefore have processes forked
in advance, and need not wait for a fork when it starts a worker.

The workers are children of this process, which reaps them on order. Until then a worker's pid is not reused, so a
signal to it reaches no other process. (A clone with the caller as parent would skip the bookkeeping of Python and the C
library for forks.) The kernel notifies the caller of a worker's end by a pidfd.
"""

import os
import pickle
import signal
import socket
import sys
import traceback
from collections.abc import Callable
from contextlib import suppress
from multiprocessing import connection, get_context, process
from multiprocessing.context import ForkProcess
from typing import TYPE_CHECKING, NoReturn

from elastic_core.api import SYSTEM_CLOCK, ElasticError
from elastic_torchrun.functions.call import FunctionCall
from elastic_torchrun.functions.child import (
    MAX_FDS,
    MESSAGE_BYTES,
    Orders,
    be_worker,
    import_main,
    load_call,
    take_tracker,
    users_part,
)

if TYPE_CHECKING:
    from elastic_torchrun.functions.child import LoadOf

BLOCKED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
"""Signals to a whole job. A server that they ended could not report how its workers ended. They are blocked and not
ignored: a signal to a worker between its fork and its first own line then stays pending.
"""
_LEAVE_S = 2.0
_DEFECT_CODE = 70


def serve_copy(control: socket.socket, call: FunctionCall, mask: set[int]) -> NoReturn:
    """Serve as a copy of the caller; workers have the call in memory. Called: right after the fork.

    `mask` is what the caller blocked before it blocked `BLOCKED` for the fork.
    """
    try:
        signal.set_wakeup_fd(-1)  # the caller's loop must not hear of our signals
        os.setsid()
        _Server(control, lambda rank, _: (call.fn, call.args_of(rank)), mask).serve()
    except BaseException:  # noqa: BLE001  # nothing may return into the caller's code in this process
        traceback.print_exc()
    finally:
        os._exit(_DEFECT_CODE)


def begin(orders: Orders) -> NoReturn:
    """Become the clean server that the orders describe."""
    take_tracker(orders)
    os.set_inheritable(orders["control_fd"], False)
    _serve_clean(orders["control_fd"], lambda: import_main(orders["main"]))


def _serve_clean(control_fd: int, prepare: Callable[[], None]) -> NoReturn:
    """Serve from a clean interpreter after its preparation; calls come with the orders."""
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, BLOCKED)
    control = socket.socket(fileno=control_fd)
    try:
        prepare()
    except BaseException as error:  # noqa: BLE001  # sent to the caller, which waits for the first response
        if isinstance(error, ElasticError):
            _answer(control, "failed", str(error))
        else:
            traceback.print_exception(type(error), error, users_part(error.__traceback__))
            _answer(control, "failed", f"{type(error).__name__}: {str(error).partition(chr(10))[0]}")
        sys.stderr.flush()
        os._exit(1)
    _answer(control, "ready", None)
    _Server(control, lambda _, fd: load_call(fd), mask).serve()


def _answer(control: socket.socket, kind: str, value: object) -> None:
    with suppress(BrokenPipeError, ConnectionResetError):  # the next read tells that the caller is gone
        control.send(pickle.dumps((kind, value)))


class _Server:
    def __init__(self, control: socket.socket, load: "LoadOf", mask: set[int]) -> None:
        self._control = control
        self._load = load
        self._mask = mask
        self._workers: dict[int, ForkProcess] = {}

    def serve(self) -> NoReturn:
        while True:
            try:
                data, fds, _, _ = socket.recv_fds(self._control, MESSAGE_BYTES, MAX_FDS)
            except ConnectionResetError:
                data, fds = b"", []
            if not data:
                self._leave()
            kind, value = pickle.loads(data)
            if kind == "leave":
                self._leave()
            if kind == "reap":
                _answer(self._control, "code", (value, self._reap(value)))
                continue
            try:
                _answer(self._control, "pid", self._fork(fds[0]))
            except (OSError, AssertionError) as error:  # the latter: a daemonic process may have no children
                known = isinstance(error, OSError) and error.errno
                _answer(self._control, "failed", error if known else f"{type(error).__name__}: {error}")
            finally:
                for fd in fds:
                    os.close(fd)

    def _fork(self, orders_fd: int) -> int:
        began, begins = os.pipe()
        try:
            worker = get_context("fork").Process(target=self._become, args=(orders_fd, began, begins))
            worker.start()
        finally:
            os.close(begins)
            # Its process group must exist before its pid is sent.
            os.read(began, 1)
            os.close(began)
        assert worker.pid is not None
        process._children.discard(worker)  # type: ignore[attr-defined]  # the next start would reap what has ended
        self._workers[worker.pid] = worker
        return worker.pid

    def _become(self, orders_fd: int, began: int, begins: int) -> None:
        os.setsid()
        os.close(began)
        os.close(begins)
        self._control.close()
        with socket.socket(fileno=orders_fd) as orders:
            data, fds, _, _ = socket.recv_fds(orders, MESSAGE_BYTES, MAX_FDS)
        if not data:
            os._exit(0)  # no worker is wanted any more
        names: tuple[str, ...] = pickle.loads(data)
        be_worker(self._load, dict(zip(names, fds, strict=False)), fds[len(names) :], mask=self._mask)

    def _reap(self, pid: int) -> int | None:
        worker = self._workers.get(pid)
        code = None if worker is None else worker.exitcode
        if worker is not None and code is not None:
            del self._workers[pid]
            worker.close()
        return code

    def _leave(self) -> NoReturn:
        """End the remaining workers, since the caller can't any more, and exit."""
        until_s = SYSTEM_CLOCK.monotonic_s() + _LEAVE_S
        for signum in (signal.SIGTERM, signal.SIGKILL):
            for pid in [pid for pid in list(self._workers) if self._reap(pid) is None]:
                with suppress(ProcessLookupError, PermissionError):
                    os.killpg(pid, signum)
            while self._workers and (left_s := until_s - SYSTEM_CLOCK.monotonic_s()) > 0:
                connection.wait([worker.sentinel for worker in self._workers.values()], left_s)
                for pid in list(self._workers):
                    self._reap(pid)
        sys.stdout.flush()
        os._exit(0)
