"""Servers of a rendezvous backend that an agent runs beside itself, with one process each.

The backend adds the configuration of its server, and the check that it is ready.
"""

import os
import posix
import select
import signal
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Final

from elastic_core.api import SYSTEM_CLOCK, WaitBudget

_INHERITED: Final = ("PATH", "LD_LIBRARY_PATH", "TZ")
_LOOK_S: Final = 0.05
_END_LIMIT_S: Final = 2.0
_CHUNK_BYTES: Final = 65536


def hosted_environment(incarnation: str, environ: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return a small environment for a server of an agent.

    It has `ELASTIC_INCARNATION`, by which the agent's guard finds and ends the process if the agent can't. It also has
    `ELASTIC_SIDECAR`, for which the guard spares the process when it ends only the workers of a live agent.

    Args:
        incarnation: The mark of the agent's processes; empty if there is no agent.
        environ: Source of the few inherited variables; default `os.environ`.
    """
    source = os.environ if environ is None else environ
    environment = {name: source[name] for name in _INHERITED if name in source}
    if incarnation:
        environment |= {"ELASTIC_INCARNATION": incarnation, "ELASTIC_SIDECAR": "1"}
    return environment | {"LC_ALL": "C"}


class HostedProcess:
    """One process beside this one, from its start to its end; never started again.

    It runs in a session of its own with every signal blocked: a signal to the agent's group, or Ctrl-C, is for the
    workers. Programs in Go unblock signals again, and may therefore end when all processes of a cgroup are signalled.
    (PR_SET_PDEATHSIG would also fire at the end of the thread that started it, so the guard is used.)

    Threading: one thread at a time; `pids` any.
    """

    def __init__(self, argv: Sequence[str], environment: Mapping[str, str]) -> None:
        """Start nothing yet.

        Args:
            argv: The program's path and arguments. Every user of this host can read them.
            environment: All variables; see `hosted_environment`.
        """
        self.said = b""
        """The output that `hear` has read so far."""
        self._argv = list(argv)
        self._environment = dict(environment)
        self._pid: int | None = None
        self._pidfd = -1
        self._voice = -1

    def pids(self) -> frozenset[int]:
        """Return the process until it is reaped: sweeps spare it, and only this object may reap it."""
        return frozenset() if self._pid is None else frozenset({self._pid})

    @property
    def alive(self) -> bool:
        """Whether it was started and has not ended."""
        return self._pidfd >= 0 and not _readable(self._pidfd, 0)

    def start(self, *, stdin: int | None = None, output: int | None = None) -> None:
        """Start it.

        Args:
            stdin: The descriptor that it reads. `None` means no input.
            output: The descriptor that it writes to. `None` means a pipe for `hear`.

        Raises:
            OSError: it can't be started.
        """
        reading, writing = (-1, output) if output is not None else os.pipe()
        source = (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0)
        try:
            self._pid = posix.posix_spawn(
                self._argv[0],
                self._argv,
                self._environment,
                file_actions=[
                    source if stdin is None else (os.POSIX_SPAWN_DUP2, stdin, 0),
                    (os.POSIX_SPAWN_DUP2, writing, 1),
                    (os.POSIX_SPAWN_DUP2, writing, 2),
                ],
                setsid=True,
                setsigmask=signal.valid_signals(),
            )
            self._voice, reading = reading, -1
            self._pidfd = os.pidfd_open(self._pid)
        finally:
            if output is None:
                os.close(writing)
            if reading >= 0:
                os.close(reading)

    def hear(self, word: bytes, *, timeout_s: float, wait: WaitBudget) -> bool:
        """Wait for a text in its output. Return whether it was written before the process's end or `timeout_s`.

        Raises:
            WaitCancelledError: the agent cancelled the call.
            WaitExpiredError: the budget's deadline has passed.
        """
        end_s = SYSTEM_CLOCK.monotonic_s() + timeout_s
        while word not in self.said:
            wait.check()
            if SYSTEM_CLOCK.monotonic_s() > end_s:
                return False
            if not _readable(self._voice, _LOOK_S):  # short looks: `wait` may be cancelled meanwhile
                continue
            chunk = os.read(self._voice, _CHUNK_BYTES)
            if not chunk:
                return False
            self.said += chunk
        return True

    def ignore(self) -> None:
        """Discard all further output."""
        if self._voice >= 0:
            os.close(self._voice)
            self._voice = -1

    def ending(self, *, within_s: float = _END_LIMIT_S) -> str:
        """Return how it ended (`was killed by SIGKILL`, `ended with code 1`); empty if it has not.

        The process is not reaped.
        """
        if self._pidfd < 0 or not _readable(self._pidfd, within_s):
            return ""
        with suppress(ChildProcessError):  # other code in this process reaps every child
            ended = os.waitid(os.P_PIDFD, self._pidfd, os.WEXITED | os.WNOWAIT | os.WNOHANG)
            if ended is not None:
                killed = ended.si_code in (os.CLD_KILLED, os.CLD_DUMPED)
                return f"was killed by {_name(ended.si_status)}" if killed else f"ended with code {ended.si_status}"
        return "ended"

    def stop(self) -> None:
        """End it now, and its children in its session's first group; idempotent, never raises.

        Takes the milliseconds that the kernel needs to end it.
        """
        if self._pid is not None:
            with suppress(OSError):
                os.killpg(self._pid, signal.SIGKILL)  # it leads its group: the number is its own until it is reaped
        if self._pidfd >= 0:
            with suppress(OSError):
                signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)
            _readable(self._pidfd, _END_LIMIT_S)
            os.close(self._pidfd)
            self._pidfd = -1
        if self._pid is not None:
            with suppress(ChildProcessError):  # other code in this process reaps every child
                os.waitpid(self._pid, os.WNOHANG)
            self._pid = None
        self.ignore()


def _name(signum: int) -> str:
    try:
        return signal.Signals(signum).name
    except ValueError:  # most of the real-time ones have no name
        return f"signal {signum}"


def _readable(fd: int, timeout_s: float) -> bool:
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    return bool(poll.poll(timeout_s * 1000))
