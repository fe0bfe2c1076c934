"""The starter's side of the process that forks workers: pickled tuples over a socket.

`("fork", None)` with one end of a socket: the response is `("pid", number)` or `("failed", text)`. Over that socket,
the new process gets its orders: the names of descriptors, and these, followed by those of the call. `orders` is a file
with `WorkerOrders`; `call` is missing if the server has the call. `("reap", pid)`: the response is `("code", (pid, exit
code or None))`. `("leave", None)` has no response. A clean server first sends `("ready", None)` or `failed`.
"""

import os
import pickle
import select
import signal
import socket
import subprocess
import sys
import warnings
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from weakref import WeakSet

from elastic_core.api import SYSTEM_CLOCK, RunTimer
from elastic_core.api.starters import AgentLoop
from elastic_core.api.workers import WorkerError
from elastic_torchrun.functions.call import FunctionCall
from elastic_torchrun.functions.child import MAX_FDS, MESSAGE_BYTES
from elastic_torchrun.functions.ends import code_lost, code_of

_ANSWER_S = 60.0
"""A fork of a process with much memory takes long, and longer if memory is short."""
_REAP_S = 0.1
"""How long an ended worker's pid may take to be free. Until then its process group can't be distinguished from it."""
_END_S = 5.0
_SILENT = "the process that workers are forked from does not answer"
_open_sockets: "WeakSet[socket.socket]" = WeakSet()
"""The starter's ends of the sockets of all servers and their forks: a copy of this process must close the others."""


class ForkServer:
    """One server process. Threading: one thread at a time."""

    def __init__(self, control: socket.socket, process: "_Process") -> None:
        """Use a server that was started."""
        control.settimeout(_ANSWER_S)
        _open_sockets.add(control)
        self._control = control
        self._process = process
        self._gone = ""
        self._asked: deque[socket.socket] = deque()
        """For each process that is to be forked: where it will take its orders."""
        self._waiting: deque[tuple[int, socket.socket]] = deque()
        """The processes that were forked and have no orders yet."""
        self._failure: OSError | None = None
        self._codes: dict[int, int | None] = {}
        self._limit: RunTimer | None = None

    @property
    def pid(self) -> int:
        """Its process."""
        return self._process.pid

    def prepare(self, loop: AgentLoop, count: int, done: Callable[[], None]) -> None:
        """Have processes forked in advance for this many workers. `done` is called when they wait, or can't be forked.

        `fork` then returns at once, or raises the error. Never blocks; a second call replaces the first.
        """
        self._stop_watching(loop)
        while len(self._waiting) + len(self._asked) < count and not self._gone and self._failure is None:
            self._request()

        def look() -> None:
            if self._asked and not self._gone and self._failure is None:
                return
            self._stop_watching(loop)
            done()

        def receive() -> None:
            self._receive()
            self._set_limit(loop, give_up)
            look()

        def give_up() -> None:
            self._gone = _SILENT
            look()

        loop.add_reader(self._control.fileno(), receive)
        self._set_limit(loop, give_up)
        look()

    def _set_limit(self, loop: AgentLoop, give_up: Callable[[], None]) -> None:
        if self._limit is not None:
            self._limit.cancel()
        self._limit = loop.call_later(_ANSWER_S, give_up)

    def _stop_watching(self, loop: AgentLoop) -> None:
        loop.remove_reader(self._control.fileno())
        if self._limit is not None:
            self._limit.cancel()
            self._limit = None

    def fork(self, names: tuple[str, ...], fds: list[int]) -> "ForkedChild":
        """Make a forked process a worker with these descriptors. Waits for the fork if none was made in advance.

        Raises:
            OSError: the fork failed; the text has the reason.
        """
        if len(fds) > MAX_FDS:
            raise OSError(f"its arguments hold {len(fds)} descriptors, at most {MAX_FDS} can be handed over")
        for _ in range(len(self._waiting) + 1):
            pid, orders = self._next_waiting()
            with orders:
                try:
                    socket.send_fds(orders, [pickle.dumps(names)], fds)
                except OSError:  # it was killed while it waited
                    self._reap(pid, within_s=_REAP_S)
                    continue
            return ForkedChild(pid, self)
        raise OSError("the process that was to be the worker has ended")

    def _next_waiting(self) -> tuple[int, socket.socket]:
        if not self._waiting and not self._asked and self._failure is None:
            self._request()
        while not self._waiting and self._failure is None and not self._gone:
            self._receive()
        if self._waiting and not self._gone:
            return self._waiting.popleft()
        error, self._failure = self._failure, None
        raise error or OSError(self._gone)

    def _request(self) -> None:
        if self._gone:
            return
        try:
            ours, its = _sockets()
        except OSError as error:
            self._failure = error
            return
        _open_sockets.add(ours)
        self._asked.append(ours)
        with its:
            try:
                socket.send_fds(self._control, [pickle.dumps(("fork", None))], [its.fileno()])
            except OSError as error:
                self._gone = f"the process that workers are forked from is gone ({error})"

    def code(self, pid: int) -> int | None:
        """Return a worker's exit code, -N for death by signal N, `None` while it runs. Reaps a worker that has ended.

        The kernel returns the code, since the server may be stopped, or be in the middle of a long fork.
        """
        try:
            code = code_of(pid)
        except PermissionError:  # the worker has become another user
            asked = self._reap(pid, within_s=_ANSWER_S)
            return code_lost(pid) if asked is None else asked
        if code is not None:
            self._reap(pid, within_s=_REAP_S)
        return code

    def _reap(self, pid: int, *, within_s: float) -> int | None:
        """Have an ended process reaped. Return its exit code, or `None` if there is no response in time."""
        self._codes.pop(pid, None)
        end_s = SYSTEM_CLOCK.monotonic_s() + within_s
        answer = select.poll()  # unlike `select.select`, it takes descriptors above 1023
        answer.register(self._control, select.POLLIN)
        with suppress(OSError):  # the server is gone, or takes nothing: it reaps what is left when it leaves
            os.write(self._control.fileno(), pickle.dumps(("reap", pid)))
            while pid not in self._codes and not self._gone:
                if not answer.poll(max(0.0, end_s - SYSTEM_CLOCK.monotonic_s()) * 1000):
                    break
                self._receive()
        return self._codes.get(pid)

    def _receive(self) -> None:
        """Receive one response."""
        try:
            data = self._control.recv(MESSAGE_BYTES)
        except TimeoutError:
            self._gone = _SILENT
            return
        except OSError:
            data = b""
        if not data:
            self._gone = self._gone or "the process that workers are forked from is gone"
            return
        answer, value = pickle.loads(data)
        if answer == "pid":
            self._waiting.append((value, self._asked.popleft()))
        elif answer == "code":
            pid, self._codes[pid] = value
        elif answer == "failed":
            self._failure = value if isinstance(value, OSError) else OSError(value)
            if self._asked:
                self._asked.popleft().close()

    def close(self) -> None:
        """End the server with its remaining workers; idempotent."""
        with suppress(OSError):  # it is gone, or got the message before
            self._control.send(pickle.dumps(("leave", None)))  # a fork of this process may hold it open
        self._control.close()
        for orders in (*self._asked, *(own for _, own in self._waiting)):
            orders.close()
        self._process.end()


class ForkedChild:
    """A forked worker in its starter."""

    signals_end = False
    """This process gets no SIGCHLD at its end: the server is its parent."""

    def __init__(self, pid: int, server: ForkServer) -> None:
        """Use a running worker."""
        self.pid = pid
        self.returncode: int | None = None
        self._server = server

    def poll(self) -> int | None:
        """Return the exit code, or `None` while it runs."""
        if self.returncode is None:
            self.returncode = self._server.code(self.pid)
        return self.returncode


# --- the two kinds of servers


class _Process:
    """A server's process."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._ended = False

    def end(self) -> None:
        """Wait until it has exited, as it does after its socket closes. Otherwise kill it."""
        if self._ended:
            return
        self._ended = True
        for signum in (None, signal.SIGKILL):
            if signum is not None:
                with suppress(ProcessLookupError):
                    os.kill(self.pid, signum)
            if self._wait():
                return

    def _wait(self) -> bool:
        try:
            pidfd = os.pidfd_open(self.pid)
        except OSError:
            pidfd = -1
        try:
            if pidfd >= 0:
                poll = select.poll()  # unlike `select.select`, it takes descriptors above 1023
                poll.register(pidfd, select.POLLIN)
                poll.poll(_END_S * 1000)
            with suppress(ChildProcessError):  # other code has reaped it
                return os.waitpid(self.pid, os.WNOHANG if pidfd >= 0 else 0)[0] != 0
        finally:
            if pidfd >= 0:
                os.close(pidfd)
        return True


def fork_server(call: FunctionCall) -> ForkServer:
    """Fork a server off this process. Its workers are copies of this process's current state.

    Raises:
        WorkerError: the fork failed.
    """
    from elastic_torchrun.functions.server import BLOCKED, serve_copy  # before the fork: locks

    ours, its = _sockets()
    for stream in (sys.stdout, sys.stderr):
        with suppress(AttributeError, OSError, ValueError):  # none, or closed
            stream.flush()  # or each worker would write what we have buffered
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, BLOCKED)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # about threads: this module logs its own line
            pid = os.fork()
        if pid == 0:
            for control in (ours, *_open_sockets):
                control.close()
            serve_copy(its, call, mask)
    except OSError as error:
        ours.close()
        its.close()
        raise WorkerError(
            f"the process that workers of function {call.name!r} are forked from can't be started: {error}",
            hint="raise the limit on processes, or free some memory",
        ) from error
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    its.close()
    return ForkServer(ours, _Process(pid))


def clean_server(call: FunctionCall, python: str, env: dict[str, str]) -> ForkServer:
    """Start a server in a fresh interpreter, prepared to be like this one.

    Raises:
        OSError: it could not be started.
    """
    from elastic_torchrun.functions.payload import fresh_command, write_orders

    ours, its = _sockets()
    orders, fds = write_orders(call, control_fd=its.fileno())
    try:
        process = subprocess.Popen(
            fresh_command(python, orders.fd, call.name),
            env=env,
            pass_fds=(orders.fd, its.fileno(), *fds),
            start_new_session=True,
        )
    except BaseException:
        ours.close()
        raise
    finally:
        orders.close()
        its.close()
    pid, process.returncode = process.pid, 0  # ours to wait for, and Popen must not warn
    return ForkServer(ours, _Process(pid))


def _sockets() -> tuple[socket.socket, socket.socket]:
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
