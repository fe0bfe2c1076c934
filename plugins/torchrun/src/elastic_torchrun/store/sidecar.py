"""The agent's side of its store: one process beside it hosts the workers' store, a new one each round."""

import os
import posix
import select
import signal
import socket
import sys
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from elastic_backend_net.hosted_server import hosted_environment
from elastic_core.api import SYSTEM_CLOCK, ElasticError
from elastic_core.api.starters import AgentLoop
from elastic_core.api.stores import BackendUnavailableError

_START_LIMIT = 3
_START_WINDOW_S = 60.0
_CHUNK_BYTES = 65536
_COLLECT_PAUSE_S = 0.005
_LAST_WAIT_S = 1.0

OnDone = Callable[[str], None]
"""Called once with the result of a command: empty for success, else the reason on one line."""
OnAnswer = Callable[[ElasticError | None], None]


class StoreSidecar:
    """Keeps the store of the round open.

    If the process dies while a store is open, it is replaced at once, with an empty store on the same port. Workers
    that no longer need the store train on, and those that still connect find one. Workers that need the old keys fail,
    and the failure policy decides. Stopping a healthy group would lose its progress without need.

    Args:
        loop: The agent's.
        incarnation: Marks this agent's processes for the guard, which ends the sidecar if its agent can't.
        log_file: File for the process's output; removed at the end if it is empty.
        argv: The command; tests run a smaller one without torch.
    """

    def __init__(
        self,
        loop: AgentLoop,
        *,
        incarnation: str,
        log_file: Path,
        argv: Sequence[str] | None = None,
    ) -> None:
        """Start nothing yet: `start` does, or the first `open_store`."""
        self._loop = loop
        self._incarnation = incarnation
        self._log_file = log_file
        self._argv = list(argv) if argv is not None else _sidecar_argv()
        self._starts: deque[float] = deque(maxlen=_START_LIMIT)
        self._pid: int | None = None
        self._talk: socket.socket | None = None
        self._partial = b""
        self._unanswered = 0
        self._port: int | None = None
        self._on_done: OnDone | None = None
        self._closed = False

    def pids(self) -> frozenset[int]:
        """Return the processes that sweeps must spare, and that only this object may reap."""
        return frozenset() if self._pid is None else frozenset({self._pid})

    def start(self) -> None:
        """Start the process, so that its import of torch overlaps with other work.

        An error is reported by the first `open_store`, which tries again.
        """
        with suppress(OSError):
            self._spawn()

    # --- for each round

    def open(self, port: int, done: OnAnswer) -> None:
        """Open an empty store, as `MasterServer.open`."""
        self.open_store(port, lambda reason: done(self._error(reason) if reason else None))

    def shut(self, done: OnAnswer) -> None:
        """Close the store, as `MasterServer.shut`."""
        self.close_store(lambda reason: done(self._error(reason) if reason else None))

    def _error(self, reason: str) -> BackendUnavailableError:
        what, _, hint = reason.partition(". Try: ")
        return BackendUnavailableError(f"the agent store can't be opened: {what}", hint=hint or self._hint())

    def _hint(self) -> str:
        wrote = self._log_file.is_file() and self._log_file.stat().st_size > 0
        return f"read {str(self._log_file)!r}, or run without --agent-store" if wrote else "run without --agent-store"

    # --- commands

    def open_store(self, port: int, on_done: OnDone) -> None:
        """Open an empty store on `port`, and report the result; never blocks. An earlier command gets no report."""
        self._port, self._on_done = port, on_done
        if self._pid is None:
            self._restart()
        else:
            self._send()

    def close_store(self, on_done: OnDone) -> None:
        """Close the store, and report the result; never blocks."""
        was_open, self._port, self._on_done = self._port is not None, None, on_done
        if was_open and self._pid is not None:
            self._send()
        else:
            self._done("")

    def _send(self) -> None:
        """Send the wanted state. While a dead process is being reaped, there is no process to receive it."""
        if self._talk is None:
            return
        line = "close" if self._port is None else f"open {self._port}"
        self._unanswered += 1
        try:
            self._talk.sendall(f"{line}\n".encode())
        except OSError:  # it just died, or does not read: after its end a new one gets the command
            self._kill()

    def _done(self, reason: str) -> None:
        """Report to the waiting caller. A response without one is about a store reopened after a death."""
        on_done, self._on_done = self._on_done, None
        if reason:
            self._port = None
        if on_done is not None:
            on_done(reason)
        elif reason:
            self._loop.notice(f"the agent store can't be opened again: {reason}; workers that need it will fail")

    # --- answers and ends

    def _on_readable(self) -> None:
        if self._talk is None:
            return
        try:
            chunk = self._talk.recv(_CHUNK_BYTES)
        except BlockingIOError:
            return
        except ConnectionResetError:
            chunk = b""
        if not chunk:
            self._hang_up()
            self._kill()
            self._collect()
            return
        *lines, self._partial = (self._partial + chunk).split(b"\n")
        for line in lines:
            self._unanswered -= 1
            if self._unanswered == 0:  # else what it answers is no longer wanted
                word, _, reason = line.decode(errors="replace").partition(" ")
                self._done(reason or "no reason given" if word == "failed" else "")

    def _hang_up(self) -> None:
        if self._talk is not None:
            self._loop.remove_reader(self._talk.fileno())
            self._talk.close()
            self._talk = None

    def _kill(self) -> None:
        if self._pid is not None:
            with suppress(ProcessLookupError):
                os.kill(self._pid, signal.SIGKILL)

    def _collect(self) -> None:
        """Reap the process, whose end of the pair is closed: it is ending, or blocked in the kernel."""
        how = self._reap()
        if self._closed:
            return
        if how is None:
            self._loop.call_later(_COLLECT_PAUSE_S, self._collect)
        elif self._port is None:
            if self._on_done is not None:  # a store was to be closed: it is
                self._done("")
        else:
            if self._on_done is None:
                self._loop.notice(
                    f"the process of the agent store {how}; another one opens an empty store on the same port: workers "
                    "that still need the old one will fail"
                )
            self._restart(after=f"its process {how}")

    def _reap(self) -> str | None:
        """Return how the process ended, or `None` while it runs."""
        if self._pid is None:
            return "ended"
        try:
            pid, status = os.waitpid(self._pid, os.WNOHANG)
        except ChildProcessError:  # other code in this process reaps every child
            pid, status = self._pid, 0
        if not pid:
            return None
        self._pid = None
        code = os.waitstatus_to_exitcode(status)
        return f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"

    # --- starts

    def _restart(self, after: str = "") -> None:
        """Start a process and send the wanted state. Give up on one that dies repeatedly."""
        now_s = SYSTEM_CLOCK.monotonic_s()
        if after and len(self._starts) == _START_LIMIT and now_s - self._starts[0] < _START_WINDOW_S:
            self._done(f"{after}, the last of {_START_LIMIT} within {_START_WINDOW_S:g} s")
            return
        try:
            self._spawn()
        except OSError as error:
            self._done(f"its process can't be started ({error})")
            return
        self._send()

    def _spawn(self) -> None:
        """Start the process in its own session with every signal blocked, like the guard.

        A signal to the agent's whole group or cgroup is for the workers, which may use the store until they end.
        """
        environment = _environment(self._incarnation)
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                self._pid = posix.posix_spawn(
                    self._argv[0],
                    self._argv,
                    environment,
                    file_actions=[
                        (os.POSIX_SPAWN_DUP2, theirs.fileno(), 0),
                        (os.POSIX_SPAWN_OPEN, 2, str(self._log_file), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600),
                        (os.POSIX_SPAWN_DUP2, 2, 1),
                    ],
                    setsid=True,
                    setsigmask=signal.valid_signals(),
                )
            except OSError:
                ours.close()
                raise
        ours.setblocking(False)
        self._talk, self._partial, self._unanswered = ours, b"", 0
        self._starts.append(SYSTEM_CLOCK.monotonic_s())
        self._loop.add_reader(ours.fileno(), self._on_readable)

    def close(self) -> None:
        """End the process, which has nothing to save; idempotent. Takes some milliseconds, to free its memory."""
        self._closed = True
        self._kill()
        self._wait_until_reaped()
        self._hang_up()
        with suppress(OSError):
            if self._log_file.stat().st_size == 0:
                self._log_file.unlink()

    def _wait_until_reaped(self) -> None:
        end_s = SYSTEM_CLOCK.monotonic_s() + _LAST_WAIT_S
        poll = select.poll()
        if self._talk is not None:
            poll.register(self._talk, 0)  # only its hanging up
            poll.poll(_LAST_WAIT_S * 1000)
        while self._reap() is None and SYSTEM_CLOCK.monotonic_s() < end_s:
            select.poll().poll(1)


def _environment(incarnation: str) -> Mapping[str, str]:
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("ELASTIC_")}
    # It has no business on any device, so that no device's extension of torch needs to be loaded.
    return inherited | hosted_environment(incarnation, inherited) | {"TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}


def _sidecar_argv() -> list[str]:
    # -P: a torch.py in the working directory is the script's business. The package need not be on the path otherwise.
    root = str(Path(__file__).absolute()).rpartition("/elastic_torchrun/")[0]
    code = f"import sys; sys.path.append({root!r}); from elastic_torchrun.store.process import main; main()"
    return [sys.executable, "-P", "-c", code, "elastic-store"]
