"""Starts the workers of a function, in each of the three ways."""

import os
import subprocess
import threading
from collections.abc import Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, NamedTuple

from elastic_core.errors import WorkerError
from elastic_core.processes.affinity import bound_to
from elastic_core.processes.environment import ROUND_VARIABLES
from elastic_core.processes.functions.call import FunctionCall, refuse_while_importing
from elastic_core.processes.functions.result import open_result_pipe
from elastic_core.processes.spec import WorkerLaunch

if TYPE_CHECKING:
    from elastic_core.processes.functions.server_client import ForkedChild, ForkServer

_WORKERS_OWN = frozenset({"LOCAL_RANK", "ELASTIC_INCARNATION"}) | ROUND_VARIABLES
"""What a server's environment must not have: its workers get theirs with their orders."""


class Started(NamedTuple):
    """A worker's process, and the end of its result pipe that is ours to read."""

    child: "subprocess.Popen[bytes] | ForkedChild"
    result_fd: int


class FunctionStarter:
    """Starts the workers of one function, round after round.

    With `fork` it is to be built before any thread of ours starts: a copy of the process as it is then is what workers
    are forked from, in every round. `warnings` has lines for people.

    Raises:
        ConfigError: this is a worker that imports its caller's main module, which has no guard.
        WorkerError: with `fork`, the copy could not be made.
    """

    def __init__(self, call: FunctionCall) -> None:
        """Fork if need be."""
        refuse_while_importing(call.name)
        self.warnings: list[str] = []
        self._call = call
        self._server: ForkServer | None = None
        if call.start_method == "fork":
            from elastic_core.processes.functions.server_client import fork_server

            self._warn_of_threads()
            self._server = fork_server(call)

    def _warn_of_threads(self) -> None:
        others = [t.name for t in threading.enumerate() if t is not threading.current_thread()]
        if others:
            shown = ", ".join(others[:3]) + (", …" if len(others) > 3 else "")
            self.warnings.append(
                f"function {self._call.name!r} is started with fork while {len(others)} other thread(s) run ({shown}): "
                "workers may hang on locks that these hold; Try: start_method='spawn', or start threads later"
            )

    def pids(self) -> frozenset[int]:
        """Return processes of ours that are no workers."""
        return frozenset() if self._server is None else frozenset({self._server.pid})

    def start(self, launch: WorkerLaunch, out_fd: int | None, err_fd: int | None) -> Started:
        """Start one worker with these streams (None: our own).

        Raises:
            OSError, ValueError: it could not be started.
            WorkerError: its call can't be sent to it.
        """
        read_fd, write_fd = open_result_pipe()
        with ExitStack() as ours, ExitStack() as its:
            ours.callback(os.close, read_fd)
            its.callback(os.close, write_fd)
            if self._call.start_method == "spawn":
                child: subprocess.Popen[bytes] | ForkedChild = self._spawn(launch, write_fd, out_fd, err_fd, its)
            else:
                child = self._fork(launch, write_fd, out_fd, err_fd, its)
            ours.pop_all()
        return Started(child, read_fd)

    def _spawn(
        self, launch: WorkerLaunch, result_fd: int, out_fd: int | None, err_fd: int | None, its: ExitStack
    ) -> "subprocess.Popen[bytes]":
        from elastic_core.processes.functions.payload import fresh_command, pickle_call, write_orders

        call, fds = pickle_call(self._call, launch.local_rank)
        its.callback(call.close)
        orders, more = write_orders(self._call, result_fd=result_fd, call_fd=call.fd, fds=fds)
        its.callback(orders.close)
        with bound_to(launch.cpus):
            return subprocess.Popen(
                fresh_command(launch.argv[0], orders.fd, self._call.name),
                env=launch.env,
                stdout=out_fd,
                stderr=err_fd,
                pass_fds=(orders.fd, call.fd, result_fd, *fds, *more),
                start_new_session=not launch.foreground,
            )

    def _fork(
        self, launch: WorkerLaunch, result_fd: int, out_fd: int | None, err_fd: int | None, its: ExitStack
    ) -> "ForkedChild":
        from elastic_core.processes.functions.child import WorkerOrders
        from elastic_core.processes.functions.payload import MemoryFile, pickle_call

        orders = MemoryFile()
        its.callback(orders.close)
        orders.write(WorkerOrders(launch.local_rank, launch.env, launch.cpus))
        named = {"orders": orders.fd, "result": result_fd, "out": out_fd, "err": err_fd}
        more: Sequence[int] = ()
        if self._call.start_method == "forkserver":
            call, more = pickle_call(self._call, launch.local_rank)
            its.callback(call.close)
            named["call"] = call.fd
        given = {name: fd for name, fd in named.items() if fd is not None}
        return self._running_server(launch).fork(tuple(given), [*given.values(), *more])

    def _running_server(self, launch: WorkerLaunch) -> "ForkServer":
        if self._server is None:
            from elastic_core.processes.functions.server_client import clean_server

            env = {name: value for name, value in launch.env.items() if name not in _WORKERS_OWN}
            self._server = clean_server(self._call, launch.argv[0], env)
        return self._server

    def close(self) -> None:
        """End the server, and with it what workers it has; idempotent."""
        if self._server is not None:
            self._server.close()


def start_failed(call: FunctionCall, reason: str) -> WorkerError:
    """Return the error for a worker that its server could not fork."""
    return WorkerError(f"worker of function {call.name!r} can't be started ({call.start_method}): {reason}")
