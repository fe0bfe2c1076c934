"""`EtcdServer`: a private etcd on this machine for tests and tools, with torch's interface."""

import atexit
import importlib
import os
from contextlib import suppress
from typing import IO, Any, Final, Self

from elastic_core.api import ConfigError, ElasticError, WaitBudget
from elastic_core.api.stores import BackendUnavailableError
from elastic_rdzv_etcd.errors import (
    EtcdServerError,
    EtcdServerSystemError,
    EtcdServerTimeoutError,
    NotAnsweringError,
)
from elastic_rdzv_etcd.hosting.kept_folder import KeptFolder
from elastic_rdzv_etcd.hosting.probe import LOOPBACK
from elastic_rdzv_etcd.hosting.process import PORT_TRIES, EtcdProcess, PortTakenError, free_port, make_folder
from elastic_rdzv_etcd.hosting.program import Program, examine, find_program

_UNSEEN: Final = (-1, -3)
"""`subprocess.PIPE`, whose other end would have no reader, and `subprocess.DEVNULL`."""
_NO_PORT: Final = -1
"""As in torch, before the first start."""


class EtcdServer:
    """A private etcd for tests and tools, with the methods of torch's class of this name.

        with EtcdServer() as server:
            print(server.get_endpoint())

    It listens on 127.0.0.1 only, and serves the v3 API, and v2 if the program has it (3.4 and 3.5). It ends, and its
    data are removed, with `stop`, with the block, or with this process in any way. A fork of this process has no effect
    on it.

    Threading: one thread at a time.
    """

    def __init__(self, data_dir: str | None = None) -> None:
        """Start nothing yet.

        Args:
            data_dir: The parent of a new directory for the data; default that for temporary files.
        """
        self._parent = data_dir
        self._owner = os.getpid()
        self._folder: KeptFolder | None = None
        self._process: EtcdProcess | None = None
        self._program: Program | None = None
        self._port = _NO_PORT

    def start(self, timeout: float = 60, num_retries: int = 3, stderr: int | IO[Any] | None = None) -> None:
        """Return when etcd responds; at once if it already does. A dead one is replaced by a new, empty one.

        Args:
            timeout: Seconds of each try.
            num_retries: The number of tries. A port that another process has taken does not count as a try.
            stderr: Destination of etcd's output, a file or a descriptor; default none, but errors have its last lines.

        Raises:
            EtcdMissingError: there is no etcd to run; a `FileNotFoundError`.
            EtcdServerTimeoutError: it does not respond in time; a `TimeoutError`.
            EtcdServerError: it can't be started; a `RuntimeError`.
        """
        if self._process is not None and self._process.alive:
            return
        self.stop()
        self._owner = os.getpid()
        output, wait = _descriptor(stderr), WaitBudget()
        self._program = examine(find_program(), wait=wait)
        for left in reversed(range(max(1, num_retries))):
            try:
                self._start(self._program, timeout, output, wait)
            except BackendUnavailableError as error:
                if not left:
                    raise _as_torchs(error)(error.what, hint=error.hint) from error
            else:
                atexit.register(self.stop)
                return

    def _start(self, program: Program, timeout_s: float, stderr: int | None, wait: WaitBudget) -> None:
        try:
            self._folder = make_folder(self._parent)
            for _ in range(PORT_TRIES):
                port = free_port()
                name = self._folder.path.name
                self._process = EtcdProcess(program, self._folder, name=name, port=port, v2=True)
                with suppress(PortTakenError):
                    self._process.start(timeout_s=timeout_s, wait=wait, stderr=stderr)
                    self._port = port
                    return
            raise BackendUnavailableError(f"all of {PORT_TRIES} ports were taken as etcd was to listen there")
        except BaseException:
            self._clear()
            raise

    def stop(self) -> None:
        """End etcd and remove its data; idempotent. Called: at this process's exit, too."""
        if os.getpid() == self._owner:
            self._clear()
            atexit.unregister(self.stop)

    def _clear(self) -> None:
        if self._process is not None:
            self._process.stop()
            self._process = None
        if self._folder is not None:
            self._folder.remove()
            self._folder = None

    def __enter__(self) -> Self:
        """Start."""
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Stop."""
        self.stop()

    @property
    def alive(self) -> bool:
        """Whether it was started and runs."""
        return self._process is not None and self._process.alive

    def _running(self) -> EtcdProcess:
        if self._process is None:
            raise ElasticError("this EtcdServer is not running", hint="start()")
        ending = "" if os.getpid() != self._owner else self._process.ending()
        if ending:
            raise BackendUnavailableError(
                f"etcd at {LOOPBACK}:{self._process.port} {ending}", hint="start() begins another one, empty"
            )
        return self._process

    def get_host(self) -> str:
        """Return the address on which it listens."""
        return LOOPBACK

    def get_port(self) -> int:
        """Return the port on which it listens, or did in its last run; -1 if it was never started."""
        return self._port

    def get_endpoint(self) -> str:
        """Return `HOST:PORT`, of `get_port`."""
        return f"{LOOPBACK}:{self._port}"

    def get_client(self) -> Any:  # noqa: ANN401  # python-etcd has no types
        """Return a client of its v2 API: python-etcd's, as in torch.

        Raises:
            ConfigError: python-etcd is not installed, or this etcd has no v2 API.
            BackendUnavailableError: it has died.
            ElasticError: it was not started, or was stopped.
        """
        process, program = self._running(), self._program
        if program is not None and not program.has_v2:
            raise ConfigError(
                f"etcd {program.version[0]}.{program.version[1]} ({program.path!r}) has no v2 API",
                hint="get_endpoint() with a client of the v3 API, or an etcd of 3.4 or 3.5",
            )
        try:
            client = importlib.import_module("etcd").Client
        except (ImportError, AttributeError) as error:
            raise ConfigError(
                f"clients of etcd's v2 API are made by python-etcd, which can't be imported ({error})",
                hint="pip install 'python-etcd>=0.4.5,<0.5'",
            ) from error
        return client(host=LOOPBACK, port=process.port, version_prefix="/v2", read_timeout=10)


def _as_torchs(error: BackendUnavailableError) -> type[EtcdServerError]:
    if isinstance(error, NotAnsweringError):
        return EtcdServerTimeoutError
    return EtcdServerSystemError if isinstance(error.__cause__, OSError) else EtcdServerError


def _descriptor(stderr: int | IO[Any] | None) -> int | None:
    if stderr is None or stderr in _UNSEEN:
        return None
    number = stderr if isinstance(stderr, int) else stderr.fileno()
    if number < 0:
        raise ConfigError(f"stderr={stderr} is no file and no descriptor", hint="a file that is open for writing")
    return number
