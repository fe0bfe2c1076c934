"""`--rdzv-conf embedded=true`: the run's own etcd for agents on one machine, beside the first of them."""

import hashlib
import os
import socket
from collections import deque
from collections.abc import Sequence
from typing import Final

from elastic_backend_net.endpoint import Endpoint, parse_endpoint
from elastic_core.api import SYSTEM_CLOCK, ConfigError, CoordinationStore, ElasticError, RendezvousSettings, WaitBudget
from elastic_core.api.stores import (
    BackendRefusedError,
    BackendUnavailableError,
    Revisions,
    Topic,
    WaitExpiredError,
    is_ip,
)
from elastic_rdzv_etcd.hosting.kept_folder import KeptFolder
from elastic_rdzv_etcd.hosting.probe import LOOPBACK, member_names
from elastic_rdzv_etcd.hosting.process import (
    PORT_TRIES,
    EtcdProcess,
    PortTakenError,
    empty_data,
    free_port,
    make_folder,
)
from elastic_rdzv_etcd.hosting.program import INSTALL_HINT, Program, examine, find_program
from elastic_rdzv_etcd.url import PORT

_START_LIMIT_S: Final = 30.0
_ANSWER_LIMIT_S: Final = 5.0
_OTHERS_GRACE_S: Final = 5.0
"""How long another process may have the port before this agent gives up: an earlier run's host may be about to end."""
_LINGER_S: Final = 3.0
_STARTS: Final = 3
_STARTS_WINDOW_S: Final = 60.0
_FORGET: Final = ("--auto-compaction-mode=revision", "--auto-compaction-retention=10000")
"""The compaction of old revisions: a run may last for weeks, and no client reads them."""


class EmbeddedEtcd:
    """Runs the run's etcd, or finds the one that another agent on this machine runs.

    An agent that finds no server at the endpoint's port runs it until the agent ends. The first successful `ensure`
    decides for good: an agent that has found another's etcd never starts a second. A single node without an endpoint
    uses any port. The etcd listens on 127.0.0.1, without users or TLS: every process of this machine can use it.

    If it dies while its agent lives, it is started again at its port, with its data, or without if it can't read them.

    Threading: one thread at a time; `pids` any.
    """

    def __init__(self, settings: RendezvousSettings, *, v2: bool = False) -> None:
        """Check this agent's options; nothing is started or connected.

        Args:
            settings: The store's settings. With the option `is_host` false, it only looks for one.
            v2: Whether the v2 API is needed.

        Raises:
            ConfigError: the endpoint is not one of this machine.
        """
        self._settings = settings
        self._v2 = v2
        self._endpoint = local_endpoint(settings)
        self._port = self._endpoint.port
        self._mark = f"elastic-{hashlib.sha256(os.fsencode(settings.run_id)).hexdigest()[:16]}-"
        self._may_host = settings.options.get("is_host") is not False
        self._guest = False
        self._folder: KeptFolder | None = None
        self._process: EtcdProcess | None = None
        self._program: Program | None = None
        self._others_since_s: float | None = None
        self._starts: deque[float] = deque(maxlen=_STARTS)
        self._death = ""
        """How the one before ended, while there is no other yet."""
        self._emptied = False
        self._notices: list[str] = []

    @property
    def hosting(self) -> bool:
        """Whether a process of this agent is the etcd."""
        return self._process is not None

    def pids(self) -> frozenset[int]:
        """Return the processes beside this one: sweeps of the agent spare them, and only this object may reap them."""
        process, folder = self._process, self._folder
        server = frozenset[int]() if process is None else process.pids()
        return server if folder is None else server | folder.pids()

    @property
    def notices(self) -> Sequence[str]:
        """Lines for people, oldest first; lines are only added."""
        return self._notices

    def ensure(self, wait: WaitBudget) -> str:
        """Return `127.0.0.1:PORT`, where the run's etcd responds, or did a moment ago; cheap after the first success.

        Raises:
            BackendUnavailableError: it could not be started, or is not there yet; a later call may succeed.
            BackendRefusedError: another process keeps the port.
            ConfigError: this agent must run it and has no suitable etcd.
            WaitCancelledError: the agent cancelled the call.
            WaitExpiredError: the budget's deadline has passed.
        """
        if self._process is not None and not self._process.ready:
            self._get_ready(self._process, wait)
        if self._process is None and not self._guest:
            self._settle(wait)
        return f"{LOOPBACK}:{self._port}"

    def _get_ready(self, process: EtcdProcess, wait: WaitBudget) -> None:
        """Continue a start that took longer than an earlier call, or restart after a death."""
        if self._starts:
            self._revive(process, wait)
            return
        try:
            self._await(process, wait)
        except PortTakenError:  # perhaps by another agent that was faster: the owner is open again
            self.close()
        except BackendUnavailableError:
            self.close()
            raise

    # --- the owner of the port

    def _settle(self, wait: WaitBudget) -> None:
        if self._may_host and (self._endpoint.port == 0 or is_free(self._port)) and self._host(wait):
            return
        answer = self._who_has_it(wait)
        if answer:
            raise self._taken(answer)
        self._guest = True

    def _who_has_it(self, wait: WaitBudget) -> str:
        """Return which server has the port, if it is not this run's etcd; empty if it is."""
        if self._port == 0:
            raise BackendUnavailableError(f"{self._where} is not there")
        try:
            names = member_names(self._port, timeout_s=_ANSWER_LIMIT_S, wait=wait)
        except BackendUnavailableError:
            self._others_since_s = None
            raise
        if names is None:
            return "something that is no etcd"
        if any(name.startswith(self._mark) for name in names):
            self._others_since_s = None
            return ""
        return "an etcd that is not this run's own"

    def _taken(self, answer: str) -> ElasticError:
        """Return the error for a port of another process: at first a temporary one, then a permanent one."""
        now_s = SYSTEM_CLOCK.monotonic_s()
        if self._others_since_s is None:
            self._others_since_s = now_s
        text = f"{self._where}: port {self._port} is in use by {answer}"
        if now_s - self._others_since_s < _OTHERS_GRACE_S:
            return BackendUnavailableError(text, hint="wait for it to end, or another port in --rdzv-endpoint")
        hint = "another port in --rdzv-endpoint localhost:PORT"
        if self._settings.max_nodes == 1:
            hint = "leave --rdzv-endpoint out for any free port"
        if "an etcd" in answer:
            hint += "; or leave embedded=true out to use that etcd"
        return BackendRefusedError(text, hint=hint)

    @property
    def _where(self) -> str:
        return f"the run's own etcd at {LOOPBACK}:{self._port}" if self._port else "the run's own etcd"

    # --- running it

    def _host(self, wait: WaitBudget) -> bool:
        """Start it. Return false if another process has taken the port first."""
        program = examine(find_program(), wait=wait)
        if self._v2 and not program.has_v2:
            raise ConfigError(
                f"etcd {program.version[0]}.{program.version[1]} ({program.path!r}) has no v2 API",
                hint=f"--rdzv-backend etcd, or an etcd of 3.4 or 3.5: {INSTALL_HINT}",
            )
        self._program = program
        self._folder = make_folder()
        try:
            if self._begin(program, self._folder, wait):
                return True
        except WaitExpiredError:
            raise  # the next call goes on
        except BaseException:
            self.close()
            raise
        self.close()
        return False

    def _begin(self, program: Program, folder: KeptFolder, wait: WaitBudget) -> bool:
        any_port = self._endpoint.port == 0
        for _ in range(PORT_TRIES if any_port else 1):
            self._port = free_port() if any_port else self._port
            try:
                self._await(self._made(program, folder), wait)
            except PortTakenError:
                continue
            return True
        if any_port:
            raise BackendUnavailableError(f"{self._where}: all of {PORT_TRIES} ports were taken as it was to listen")
        return False

    def _made(self, program: Program, folder: KeptFolder) -> EtcdProcess:
        self._process = EtcdProcess(
            program,
            folder,
            name=f"{self._mark}{folder.path.name.rpartition('-')[2]}",
            port=self._port,
            incarnation=self._settings.incarnation,
            v2=self._v2,
            arguments=_FORGET,
        )
        return self._process

    def _await(self, process: EtcdProcess, wait: WaitBudget) -> None:
        process.start(timeout_s=_START_LIMIT_S, wait=wait)
        self._starts.append(SYSTEM_CLOCK.monotonic_s())

    def _revive(self, process: EtcdProcess, wait: WaitBudget) -> None:
        """Restart it after its death, with its data, or without if it can't start with them."""
        program, folder = self._program, self._folder
        if program is None or folder is None:
            raise BackendUnavailableError(f"{self._where} was stopped")
        try:
            if not process.alive:
                process = self._follow(process, program, folder)
            try:
                self._await(process, wait)
            except BackendUnavailableError:
                empty_data(folder)
                self._emptied = True
                self._await(self._made(program, folder), wait)
        except PortTakenError as error:
            raise BackendUnavailableError(f"{self._where} {self._death}, and {error.what} since") from error
        kept = "empty, for it could not go on with its data" if self._emptied else "with its data"
        self._notices.append(f"{self._where} {self._death}; it was started again {kept}")
        self._death, self._emptied = "", False

    def _follow(self, dead: EtcdProcess, program: Program, folder: KeptFolder) -> EtcdProcess:
        if len(self._starts) == _STARTS and SYSTEM_CLOCK.monotonic_s() - self._starts[0] < _STARTS_WINDOW_S:
            raise BackendUnavailableError(
                f"{self._where} died {_STARTS} times within {_STARTS_WINDOW_S:g} s",
                hint="dmesg on this machine for what killed it (out of memory?)",
            )
        self._death = self._death or dead.ending() or "ended"
        dead.stop()
        return self._made(program, folder)

    def linger(self, store: CoordinationStore, wait: WaitBudget) -> None:
        """Wait until no member is left in the store on this etcd, 3 s at most; raises the store's errors."""
        end_s = SYSTEM_CLOCK.monotonic_s() + _LINGER_S
        seen = Revisions()
        while (left_s := end_s - SYSTEM_CLOCK.monotonic_s()) > 0 and store.members(wait=wait).members:
            seen = store.watch(seen, {Topic.DEPARTURES}, timeout_s=left_s, wait=wait).revisions

    def close(self) -> None:
        """End the etcd that this agent runs, and remove its data; idempotent, never raises."""
        if self._process is not None:
            self._process.stop()
            self._process = None
        if self._folder is not None:
            self._folder.remove()
            self._folder = None


def local_endpoint(settings: RendezvousSettings) -> Endpoint:
    """Return the endpoint of an embedded etcd on this machine; port 0 means any.

    Raises:
        ConfigError: it can't be on this machine.
    """
    text = settings.endpoint.strip()
    alone = settings.max_nodes == 1
    if not text:
        return Endpoint(host="localhost", port=0 if alone else PORT)
    hint = "leave --rdzv-endpoint out" if alone else f"--rdzv-endpoint localhost:{PORT}"
    scheme, separator, rest = text.partition("://")
    place = rest.rstrip("/") if separator else text
    if "@" in place or (separator and scheme.lower() != "http") or settings.options.get("protocol") == "https":
        raise ConfigError("--rdzv-conf embedded=true: the run's own etcd has neither users nor TLS", hint=hint)
    if "," in place:
        raise ConfigError("--rdzv-conf embedded=true: the run's own etcd has one endpoint, not several", hint=hint)
    endpoint = parse_endpoint(place, default_port=PORT, lowest_port=0)
    if not _is_here(endpoint.host):
        raise ConfigError(
            f"--rdzv-conf embedded=true: the run's own etcd is reached from its machine alone, and {endpoint.host!r} "
            "is not this one",
            hint=f"{hint}, or an etcd server that all nodes reach, without embedded=true",
        )
    if endpoint.port == 0 and not alone:
        raise ConfigError(
            f"--rdzv-endpoint {text!r} has port 0, which other agents could not know; expected a fixed port",
            hint=f"--rdzv-endpoint localhost:{PORT}",
        )
    return endpoint


def _is_here(host: str) -> bool:
    """Return whether a host is this machine by its text: no name is resolved, and no other name of it is known."""
    plain = host.rstrip(".").lower()
    if is_ip(plain):
        return plain == "::1" or plain.startswith("127.")
    own = socket.gethostname().lower()
    return plain in ("localhost", own, own.partition(".")[0])


def is_free(port: int) -> bool:
    """Return whether an etcd could listen on a port of 127.0.0.1 now.

    Raises:
        BackendRefusedError: it never can, for example because this user may not.
    """
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            sock.bind((LOOPBACK, port))
        except PermissionError as error:
            raise BackendRefusedError(
                f"port {port} of the run's own etcd can't be bound on {LOOPBACK} ({error.strerror})",
                hint="another port, from 1024 to 65535, in --rdzv-endpoint",
            ) from error
        except OSError:
            return False
    return True
