"""Start of a function's workers, with each of the three start methods."""

import os
import signal
import subprocess
import threading
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

from elastic_core.api import RunTimer
from elastic_core.api.starters import AgentLoop, StartedProcess, WorkerStart
from elastic_core.api.workers import bound_to
from elastic_core.embedding import CallStarter
from elastic_torchrun.functions.call import FunctionCall, refuse_while_importing
from elastic_torchrun.functions.ends import code_of
from elastic_torchrun.functions.result import ResultPipe, open_result_pipe

if TYPE_CHECKING:
    from elastic_torchrun.functions.server_client import ForkServer

LINGER_S: Final = 30.0
"""How long workers may take to end after all have returned before a line is logged. A long upload may be the cause;
only `--hang-timeout` ends them.
"""
SETTLE_S: Final = 0.1
"""How long workers wait after all have returned. Threads of C++ libraries still release the objects of the last
collective, and abort the process if the interpreter is at its end.
"""
_FAULTS: Final = frozenset({signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGSEGV})
_WORKERS_OWN: Final = frozenset({"LOCAL_RANK", "ELASTIC_INCARNATION"})
"""Variables that a server must not have, in addition to those that a round changes: orders have them for workers."""


class Started(NamedTuple):
    """A worker's process, and the starter's end of its result pipe."""

    process: StartedProcess
    result_fd: int


class FunctionStarter:
    """Starts the workers of one function, round after round, for a caller with an event loop.

    With `fork`, build it before elastic-core starts any thread: workers of every round are forked from a copy of the
    process that is made here. `warnings` has lines for people.

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
            from elastic_torchrun.functions.server_client import fork_server

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
        """Return this starter's processes that are not workers."""
        return frozenset() if self._server is None else frozenset({self._server.pid})

    def on(self, loop: AgentLoop) -> "FunctionWorkers":
        """Return the starter of workers for an agent with this loop."""
        return FunctionWorkers(self, self._call.name, loop)

    def prepare(self, loop: AgentLoop, count: int, done: Callable[[], None]) -> None:
        """Prepare in advance what takes long for this many workers, and call `done`. Never blocks."""
        if self._server is None:
            done()
        else:
            self._server.prepare(loop, count, done)

    def start(self, worker: WorkerStart) -> Started:
        """Start one worker.

        Raises:
            OSError, ValueError: it could not be started.
            WorkerError: its call can't be sent to it.
        """
        read_fd, write_fd = open_result_pipe()
        with ExitStack() as ours, ExitStack() as its:
            ours.callback(os.close, read_fd)
            its.callback(os.close, write_fd)
            if self._call.start_method == "spawn":
                process = self._spawn(worker, write_fd, its)
            else:
                process = self._fork(worker, write_fd, its)
            ours.pop_all()
        return Started(process, read_fd)

    def _spawn(self, worker: WorkerStart, result_fd: int, its: ExitStack) -> StartedProcess:
        from elastic_torchrun.functions.payload import fresh_command, pickle_call, write_orders

        call, fds = pickle_call(self._call, worker.local_rank)
        its.callback(call.close)
        orders, more = write_orders(self._call, result_fd=result_fd, call_fd=call.fd, fds=fds)
        its.callback(orders.close)
        with bound_to(worker.processors):
            process = subprocess.Popen(
                fresh_command(worker.argv[0], orders.fd, self._call.name),
                env=worker.environment,
                stdout=worker.stdout,
                stderr=worker.stderr,
                pass_fds=(orders.fd, call.fd, result_fd, *fds, *more),
                start_new_session=not worker.terminal,
            )
        process.returncode = 0  # the agent's to reap, and Popen must not warn
        return StartedProcess(pid=process.pid)

    def _fork(self, worker: WorkerStart, result_fd: int, its: ExitStack) -> StartedProcess:
        from elastic_torchrun.functions.child import WorkerOrders
        from elastic_torchrun.functions.payload import MemoryFile, pickle_call

        orders = MemoryFile()
        its.callback(orders.close)
        orders.write(WorkerOrders(worker.local_rank, dict(worker.environment), worker.processors))
        named = {"orders": orders.fd, "result": result_fd, "out": worker.stdout, "err": worker.stderr}
        more: Sequence[int] = ()
        if self._call.start_method == "forkserver":
            call, more = pickle_call(self._call, worker.local_rank)
            its.callback(call.close)
            named["call"] = call.fd
        given = {name: fd for name, fd in named.items() if fd is not None}
        child = self._running_server(worker).fork(tuple(given), [*given.values(), *more])
        return StartedProcess(pid=child.pid, reap=child.poll)

    def _running_server(self, worker: WorkerStart) -> "ForkServer":
        if self._server is None:
            from elastic_torchrun.functions.server_client import clean_server

            own = _WORKERS_OWN | worker.round_variables
            env = {name: value for name, value in worker.environment.items() if name not in own}
            self._server = clean_server(self._call, worker.argv[0], env)
        return self._server

    def close(self) -> None:
        """End the server with its remaining workers; idempotent."""
        if self._server is not None:
            self._server.close()


class FunctionWorkers(CallStarter):
    """Starts the workers of one function for one agent, and collects their results.

    Args:
        starter: Starts them. The code that made it closes it.
        name: The function, for people.
        loop: The agent's.
    """

    def __init__(self, starter: FunctionStarter, name: str, loop: AgentLoop) -> None:
        """Start nothing yet."""
        self._starter = starter
        self._name = name
        self._loop = loop
        self._running: dict[int, int] = {}
        """The local rank of each that has not ended, by pid."""
        self._results: dict[int, ResultPipe] = {}
        """Of the last worker of each local rank."""
        self._all_started = False
        self._stopping = False
        self._settling: RunTimer | None = None
        self._lingering: RunTimer | None = None

    def prepare(self, count: int, done: Callable[[], None]) -> None:
        """Have processes forked in advance: with much memory each fork takes long."""
        self._starter.prepare(self._loop, count, done)

    def start(self, worker: WorkerStart) -> StartedProcess:
        """Start a worker as `FunctionStarter` does. The workers of a round end after all of them have returned."""
        self._all_started = self._stopping = False
        started = self._starter.start(worker)
        rank = worker.local_rank
        # A worker of the round before that could not be ended is ignored.
        self._running = {pid: own for pid, own in self._running.items() if own != rank}
        if rank in self._results:
            self._results[rank].close()
        self._results[rank] = pipe = ResultPipe(self._loop, started.result_fd, on_complete=self._on_returned)
        self._running[started.process.pid] = rank
        return StartedProcess(pid=started.process.pid, reap=partial(self._reap, started.process, rank, pipe))

    def _reap(self, process: StartedProcess, rank: int, pipe: ResultPipe) -> int | None:
        """Return a worker's exit code, `None` while it runs. 0 if a fault ended it after its result was complete."""
        code = code_of(process.pid) if process.reap is None else process.reap()
        if code is None or -code not in _FAULTS:
            return code
        pipe.drain()
        if not pipe.complete:
            return code
        self._loop.notice(
            f"worker with local rank {rank} (pid {process.pid}): {signal.Signals(-code).name} while its process ended, "
            "after its function had returned; the result counts. Try: torch.distributed.destroy_process_group() at the "
            "function's end"
        )
        return 0

    def round_started(self) -> None:
        """Let workers end from now on: all workers of this round are started."""
        self._all_started = True
        self._on_returned()

    def round_stopping(self) -> None:
        """Let workers that have returned end before they are signalled, and those that return later as well."""
        self._stopping = True
        self._release()

    def worker_ended(self, pid: int) -> None:
        """Receive its result."""
        rank = self._running.pop(pid, None)
        if rank is not None:
            self._results[rank].drain()
            self._results[rank].close()
        if self._running:
            self._on_returned()
        else:
            self._forget_timers()

    def _on_returned(self) -> None:
        if self._stopping:
            self._release()
        elif not self._all_started or self._settling is not None:
            return
        elif self._running and all(self._results[rank].complete for rank in self._running.values()):
            self._settling = self._loop.call_later(SETTLE_S, self._release)
            self._lingering = self._loop.call_later(LINGER_S, self._tell_lingering)

    def _release(self) -> None:
        for rank in self._running.values():
            if self._results[rank].complete:
                self._results[rank].close()

    def _tell_lingering(self) -> None:
        for pid, rank in sorted(self._running.items(), key=lambda each: each[1]):
            self._loop.notice(
                f"worker with local rank {rank} (pid {pid}) returned {LINGER_S:g} s ago, as all others, and has not "
                "ended: it waits in its exit handlers or for its threads"
            )

    def _forget_timers(self) -> None:
        for timer in (self._settling, self._lingering):
            if timer is not None:
                timer.cancel()
        self._settling = self._lingering = None

    def complete(self, local_rank: int) -> bool:
        """Return whether the last worker of a local rank has returned."""
        return local_rank in self._results and self._results[local_rank].complete

    def value(self, local_rank: int) -> object:
        """Return the result of the last worker with a local rank. `None` if it did not return, or none was started.

        Raises:
            WorkerError: the result can't be loaded in this process.
        """
        pipe = self._results.get(local_rank)
        return None if pipe is None else pipe.value(self._name)

    def pids(self) -> frozenset[int]:
        """Return the server's pid, if there is a server."""
        return self._starter.pids()

    def close(self) -> None:
        """Release all descriptors; received results are kept. Idempotent."""
        self._forget_timers()
        for pipe in self._results.values():
            pipe.close()
