"""The process that workers are forked from, as its starter uses it: pickled tuples over a socket of their own.

`("fork", names)` with the descriptors `names` tells of, then those of the call: `orders` is a file that holds
`WorkerOrders`, behind them the call unless the server has it. Answer: `("pid", number)` or `("failed", text)`.
`("reap", pid)`, answered by `("code", exit code or None)`; `("leave", None)`, not answered. A clean server first says
`("ready", None)` or `failed`.
"""

import os
import pickle
import select
import signal
import socket
import subprocess
import sys
import warnings
from contextlib import suppress
from pathlib import Path
from typing import Any
from weakref import WeakSet

from elastic_core.api import WorkerError
from elastic_torchrun.functions.call import FunctionCall
from elastic_torchrun.functions.child import MAX_FDS, MESSAGE_BYTES

STATUS_LOST = 1
"""The code of a worker whose server is gone, and with it how the worker ended."""
_ANSWER_S = 60.0
"""A fork of a process with much memory takes long, on a machine that is short of it longer."""
_END_S = 5.0
_open_controls: "WeakSet[socket.socket]" = WeakSet()
"""Our ends of the sockets of all servers: a copy of this process must not keep another's open."""


class ForkServer:
    """One server process. Threading: one thread at a time."""

    def __init__(self, control: socket.socket, process: "_Process", *, greets: bool) -> None:
        """Take one that was started; `greets`: it first says that it is ready."""
        control.settimeout(_ANSWER_S)
        _open_controls.add(control)
        self._control = control
        self._process = process
        self._greets = greets
        self._gone = ""

    @property
    def pid(self) -> int:
        """Its process."""
        return self._process.pid

    def fork(self, names: tuple[str, ...], fds: list[int]) -> "ForkedChild":
        """Have a worker forked that gets these descriptors.

        Raises:
            OSError: it could not be; the text says why.
        """
        if self._greets:
            self._greets = False
            self._expect("ready")
        if len(fds) > MAX_FDS:
            raise OSError(f"its arguments hold {len(fds)} descriptors, at most {MAX_FDS} can be handed over")
        pid = self._ask(("fork", names), "pid", fds)
        return ForkedChild(pid, self)

    def reap(self, pid: int) -> int | None:
        """Return a worker's exit code, -N for death by signal N, None while it runs."""
        try:
            code: int | None = self._ask(("reap", pid), "code", [])
        except OSError:
            return _code_of_orphan(pid)
        return code

    def _ask(self, message: tuple[str, object], kind: str, fds: list[int]) -> Any:  # noqa: ANN401  # by kind
        if self._gone:
            raise OSError(self._gone)
        try:
            socket.send_fds(self._control, [pickle.dumps(message)], fds)
        except OSError as error:
            raise self._lost(f"the process that workers are forked from is gone ({error})") from error
        return self._expect(kind)

    def _expect(self, kind: str) -> Any:  # noqa: ANN401  # by kind
        try:
            data = self._control.recv(MESSAGE_BYTES)
        except TimeoutError as error:
            raise self._lost("the process that workers are forked from does not answer") from error
        except OSError:
            data = b""
        if not data:
            raise self._lost("the process that workers are forked from is gone")
        answer, value = pickle.loads(data)
        if answer != kind:
            raise value if isinstance(value, OSError) else OSError(value)
        return value

    def _lost(self, text: str) -> OSError:
        self._gone = text
        return OSError(text)

    def close(self) -> None:
        """End it, and with it the workers that are left; idempotent."""
        with suppress(OSError):  # it is gone, or was told before
            self._control.send(pickle.dumps(("leave", None)))  # somebody whom this process has forked may hold it open
        self._control.close()
        self._process.end()


class ForkedChild:
    """A forked worker, as whoever started it sees it."""

    signals_end = False
    """No SIGCHLD comes to us at its end: the server is its parent."""

    def __init__(self, pid: int, server: ForkServer) -> None:
        """Take one that runs."""
        self.pid = pid
        self.returncode: int | None = None
        self._server = server

    def poll(self) -> int | None:
        """Return the exit code, None while it runs. Never blocks for long."""
        if self.returncode is None:
            self.returncode = self._server.reap(self.pid)
        return self.returncode


def _code_of_orphan(pid: int) -> int | None:
    """Return the exit code of a worker whose server is gone, None while it runs."""
    with suppress(ChildProcessError):  # it is ours only where this process takes orphans in: an init, a subreaper
        reaped, status = os.waitpid(pid, os.WNOHANG)
        return os.waitstatus_to_exitcode(status) if reaped else None
    return None if _is_alive(pid) else STATUS_LOST  # nobody may ever reap it


def _is_alive(pid: int) -> bool:
    try:
        text = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return False
    return text.rpartition(b")")[2].split()[0] not in (b"Z", b"X")


# --- the two kinds of servers


class _Process:
    """A server's process, to be ended by whoever started it."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._ended = False

    def end(self) -> None:
        """Wait until it has left, as it does without its socket; KILL it if it does not."""
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
            with suppress(ChildProcessError):  # somebody else has reaped it
                return os.waitpid(self.pid, os.WNOHANG if pidfd >= 0 else 0)[0] != 0
        finally:
            if pidfd >= 0:
                os.close(pidfd)
        return True


def fork_server(call: FunctionCall) -> ForkServer:
    """Fork a server off this process: its workers are copies of what this process is now.

    Raises:
        WorkerError: it could not be forked.
    """
    from elastic_torchrun.functions.server import BLOCKED, serve_copy  # before the fork: locks

    ours, its = _sockets()
    for stream in (sys.stdout, sys.stderr):
        with suppress(AttributeError, OSError, ValueError):  # none, or closed
            stream.flush()  # or each worker would write what we have buffered
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, BLOCKED)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of threads: told by ourselves, in our own words
            pid = os.fork()
        if pid == 0:
            for control in (ours, *_open_controls):
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
    return ForkServer(ours, _Process(pid), greets=False)


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
    return ForkServer(ours, _Process(pid), greets=True)


def _sockets() -> tuple[socket.socket, socket.socket]:
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
