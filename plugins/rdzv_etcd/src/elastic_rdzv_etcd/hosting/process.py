"""One etcd process on this machine: a single member on a loopback port, with its data in a folder removed with it."""

import json
import os
import shutil
import socket
from collections.abc import Sequence
from contextlib import suppress
from typing import Final

from elastic_backend_net.hosted_server import HostedProcess, hosted_environment
from elastic_core.api import SYSTEM_CLOCK, ElasticError, WaitBudget
from elastic_core.api.stores import BackendUnavailableError, WaitExpiredError
from elastic_rdzv_etcd.errors import NotAnsweringError
from elastic_rdzv_etcd.hosting.kept_folder import KeptFolder
from elastic_rdzv_etcd.hosting.probe import LOOPBACK, member_names
from elastic_rdzv_etcd.hosting.program import Program

PORT_TRIES: Final = 20

_FOLDER_PREFIX: Final = "elastic-etcd-"
_LOOK_S: Final = 0.02
_ANSWER_LIMIT_S: Final = 0.3
"""The time limit of one request: the server on the port may be another program that never responds."""
_TAKEN: Final = "address already in use"
_LOWEST_PORT: Final = 11_000
_HIGHEST_PORT: Final = 32_000
"""Below the ports that Linux assigns to outgoing connections."""
_FREE_PORT_LOOKS: Final = 200
_LOG: Final = "etcd.log"
_SHOWN: Final = 300


class PortTakenError(ElasticError):
    """Another process listens on the port."""


class EtcdProcess:
    """One etcd, from its start to its end; never started again. It runs as described in `HostedProcess`.

    Only processes of this host can reach it. The kernel chooses its peers' port, which a single member does not need.
    Its data need not outlive the machine.

    Threading: one thread at a time; `pids` any.
    """

    def __init__(
        self,
        program: Program,
        folder: KeptFolder,
        *,
        name: str,
        port: int,
        incarnation: str = "",
        v2: bool = False,
        arguments: Sequence[str] = (),
    ) -> None:
        """Start nothing yet.

        Args:
            program: The etcd to run.
            folder: Folder of its data, which a later process may use, and its log.
            name: Its member's name, by which it is identified.
            port: The port for clients.
            incarnation: The mark of the agent's processes; empty if it is not one of them.
            v2: Whether the v2 API is served, if the program has it.
            arguments: More arguments for its command line.
        """
        self.name = name
        self.port = port
        self._program = program
        self._log = folder.path / _LOG
        self._arguments = [*self._options(folder), *arguments]
        if v2 and program.has_v2:
            self._arguments.append("--enable-v2=true")
        self._process: HostedProcess | None = None
        self._began_s = 0.0
        self._ready = False
        self._environment = hosted_environment(incarnation) | folder.mark
        # One that a worker starts is the worker's, and ends with it. 3.4 wants the other one on arm64.
        for inherited in ("ELASTIC_INCARNATION", "ETCD_UNSUPPORTED_ARCH"):
            if inherited in os.environ:
                self._environment.setdefault(inherited, os.environ[inherited])

    def _options(self, folder: KeptFolder) -> list[str]:
        client, peer = f"http://{LOOPBACK}:{self.port}", f"http://{LOOPBACK}:0"
        options = {
            "name": self.name,
            "data-dir": str(folder.path / "data"),
            "listen-client-urls": client,
            "advertise-client-urls": client,
            "listen-peer-urls": peer,
            "initial-advertise-peer-urls": peer,
            "initial-cluster": f"{self.name}={peer}",
            "election-timeout": "500",  # a single member needs no vote: it starts sooner, and grants leases of a second
            "logger": "zap",
            "log-level": "error",
        }
        fast = ["--unsafe-no-fsync"] if self._program.may_skip_fsync else []
        return [f"--{key}={value}" for key, value in options.items()] + fast

    def pids(self) -> frozenset[int]:
        """Return the process until it is reaped: sweeps spare it, and only this object may reap it."""
        process = self._process
        return frozenset() if process is None else process.pids()

    @property
    def alive(self) -> bool:
        """Whether it was started and has not ended."""
        return self._process is not None and self._process.alive

    @property
    def ready(self) -> bool:
        """Whether it has responded, and has not ended since."""
        return self._ready and self.alive

    def start(self, *, timeout_s: float, wait: WaitBudget, stderr: int | None = None) -> None:
        """Return when it responds.

        If `wait` ends before, it continues to start, and another call continues to wait.

        Args:
            timeout_s: Time limit.
            wait: May be cancelled meanwhile.
            stderr: The descriptor for its output, in addition to its log. `None` means the log only.

        Raises:
            PortTakenError: another process listens there.
            BackendUnavailableError: it can't be started.
            WaitCancelledError: the agent cancelled the call.
            WaitExpiredError: the budget's deadline has passed.
        """
        try:
            process = self._process or self._spawn(stderr)
            self._until_ready(process, timeout_s, wait)
        except WaitExpiredError:
            raise
        except BaseException:
            self.stop()
            raise
        self._ready = True

    def _spawn(self, stderr: int | None) -> HostedProcess:
        self._began_s = SYSTEM_CLOCK.monotonic_s()
        try:
            log = os.open(self._log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC, 0o600)
            outputs = "stderr" if stderr is None else f"stderr,{self._log}"
            argv = [self._program.path, *self._arguments, f"--log-outputs={outputs}"]
            self._process = HostedProcess(argv, self._environment)  # known before it is: sweeps must spare it
            try:
                self._process.start(output=log if stderr is None else stderr)
            finally:
                os.close(log)
        except OSError as error:
            raise self._failed(error.strerror or str(error)) from error
        return self._process

    def _until_ready(self, process: HostedProcess, timeout_s: float, wait: WaitBudget) -> None:
        while True:
            wait.check()
            ending = process.ending(within_s=_LOOK_S)
            if ending:
                raise self._why(ending)
            if self._answers(wait):
                return
            if SYSTEM_CLOCK.monotonic_s() - self._began_s > timeout_s:
                raise self._failed(f"it does not answer within {timeout_s:g} s", NotAnsweringError)

    def _answers(self, wait: WaitBudget) -> bool:
        try:  # its own name, for another etcd may have the port: then ours is about to end
            return member_names(self.port, timeout_s=_ANSWER_LIMIT_S, wait=wait) == (self.name,)
        except BackendUnavailableError:
            return False

    def _why(self, ending: str) -> ElasticError:
        words = self.last_words()
        if _TAKEN in words:
            return PortTakenError(f"port {self.port} is in use on this host")
        return self._failed(words if words and "killed" not in ending else f"it {ending}")

    def _failed(
        self, reason: str, kind: type[BackendUnavailableError] = BackendUnavailableError
    ) -> BackendUnavailableError:
        return kind(f"etcd, {self._program.path!r}, can't be started: {reason}")

    def ending(self) -> str:
        """Return how it ended (`was killed by SIGKILL`); empty if it runs, or was never started."""
        return "" if self._process is None else self._process.ending(within_s=0)

    def last_words(self) -> str:
        """Return the last error line of its log, else its first line; empty if there is none."""
        try:
            return last_words(self._log.read_text(errors="replace"))
        except OSError:
            return ""

    def stop(self) -> None:
        """End it now; idempotent, never raises. Takes some milliseconds."""
        if self._process is not None:
            self._process.stop()


def last_words(log: str) -> str:
    """Return the reason of etcd's end in one line, from its log: `listen tcp 127.0.0.1:80: bind: permission denied`."""
    lines = [line.strip() for line in log.split("\n") if line.strip()]
    for line in reversed(lines):
        with suppress(ValueError, AttributeError):
            entry = json.loads(line)
            told = ": ".join(str(entry[key]) for key in ("msg", "error") if entry.get(key))
            if told:
                return " ".join(told.split())[:_SHOWN]
    # Flags that it does not know are followed by all that it knows; a panic by the stacks of all that ran.
    return lines[0][:_SHOWN] if lines else ""


def free_port() -> int:
    """Return a loopback port that is free now. If it is in use when a server needs it, another one is tried.

    Raises:
        BackendUnavailableError: there is none.
    """
    for _ in range(_FREE_PORT_LOOKS):
        port = _LOWEST_PORT + int.from_bytes(os.urandom(4), "big") % (_HIGHEST_PORT - _LOWEST_PORT)
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as sock, suppress(OSError):
            sock.bind((LOOPBACK, port))
            return port
    raise BackendUnavailableError(f"no port from {_LOWEST_PORT} to {_HIGHEST_PORT} is free on this host")


def make_folder(parent: str | None = None) -> KeptFolder:
    """Return a new folder for an etcd's data.

    Raises:
        BackendUnavailableError: it can't be made.
    """
    folder = KeptFolder(_FOLDER_PREFIX, parent=parent)
    try:
        folder.make()
    except OSError as error:
        raise BackendUnavailableError(
            f"the folder {str(folder.path)!r} for etcd's data can't be made ({error.strerror or error})",
            hint="TMPDIR=DIRECTORY with room for 130 MB",
        ) from error
    return folder


def empty_data(folder: KeptFolder) -> None:
    """Remove the data of an ended etcd, for a new one that can't use them."""
    shutil.rmtree(folder.path / "data", ignore_errors=True)
