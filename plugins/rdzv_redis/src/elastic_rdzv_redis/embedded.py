"""The backend `c10d`: a store that the endpoint's node hosts itself, for runs without a separate server.

The protocol, the scripts and the guarantees are those of `RedisStore`. This module adds the choice of the host, and its
lifetime. Torch's names of options are accepted.
"""

import os
from collections import deque
from collections.abc import Collection, Sequence
from contextlib import suppress
from functools import partial
from typing import ClassVar, Final

import msgspec

from elastic_backend_net.endpoint import Endpoint, parse_endpoint
from elastic_core.api import (
    API_VERSION,
    SYSTEM_CLOCK,
    ConfigError,
    CoordinationStore,
    ElasticError,
    OptionSpec,
    RendezvousSettings,
    WaitBudget,
)
from elastic_core.api.stores import (
    BackendRefusedError,
    BackendUnavailableError,
    Document,
    Members,
    Renewal,
    Revisions,
    Seat,
    Survey,
    Swapped,
    Topic,
    WaitExpiredError,
    Watched,
)
from elastic_rdzv_redis.credentials import FOLDER_VARIABLE, TOKEN_VARIABLE, Credentials
from elastic_rdzv_redis.place import EVERYWHERE, UNSPECIFIED, Own, find_own, free_port, is_free, is_own_name
from elastic_rdzv_redis.probe import Answer, who_answers
from elastic_rdzv_redis.public import USER, write_public
from elastic_rdzv_redis.server import EmbeddedServer, PortTakenError, find_program
from elastic_rdzv_redis.store import RedisStore

DEFAULT_PORT: Final = 29400
"""As in torch."""

_LINGER_S: Final = 3.0
_OTHERS_GRACE_S: Final = 5.0
"""How long another process may have the port before this node gives up: an earlier run's host stays for `_LINGER_S`."""
_ANSWER_LIMIT_S: Final = 5.0
_FREE_PORT_TRIES: Final = 5
_REVIVALS: Final = 3
_REVIVAL_WINDOW_S: Final = 60.0
_LOOPBACK: Final = "127.0.0.1"


class EmbeddedStore(CoordinationStore):
    """Hosts the run's store, or uses the store that another node hosts.

    The node in the endpoint hosts the store, if the endpoint's host is an address of this node and the port is free;
    `is_host` overrides the former. Among several agents on that node, the first to bind hosts. The first successful
    `connect` decides for good: a node that has been a guest never starts a second store.

    The server listens on the endpoint's address only, keeps nothing on disk, and needs a password. The password is
    derived from the run id and a token, or from a secret that the host makes (`Credentials`). Without either, it only
    keeps other runs out. Traffic is not encrypted. If the server dies while its agent lives, it is started again,
    empty, on the same port.

    Threading: as the base class; `pids` from any thread.
    """

    api_version: ClassVar[int] = API_VERSION
    hosted_by_member = True
    """One of the run's nodes hosts the store: if that node is lost, so is the run."""
    options: ClassVar[Sequence[OptionSpec]] = (
        OptionSpec(name="is_host", type="bool", help="whether this node hosts the store; default: detected"),
        OptionSpec(name="store_type", type="str", default="tcp", help="kind of store; only tcp, torch's default"),
        OptionSpec(
            name="read_timeout",
            type="duration",
            default=60.0,
            unit="seconds",
            help="time limit of the host's response to a new connection, at most 5",
        ),
        OptionSpec(
            name="token_file", type="str", help=f"file with a token that all nodes share; default: ${TOKEN_VARIABLE}"
        ),
        OptionSpec(
            name="make_secret",
            type="bool",
            help="whether the host makes a secret for this run if there is no token; default: true in a step of Slurm",
        ),
    )

    def __init__(self, settings: RendezvousSettings) -> None:
        """Check this node's options; nothing is started or connected.

        Raises:
            ConfigError: the endpoint or an option can't be used.
        """
        super().__init__(settings)
        _check_store_type(settings)
        self._read_timeout_s = _read_timeout_s(settings)
        self._endpoint = _endpoint(settings)
        self._any_port = self._endpoint.port == 0
        self._moves = not settings.endpoint.strip()  # a default that no other node needs to know
        self._credentials = Credentials(settings, os.environ)
        is_host = settings.options.get("is_host")
        self._is_host = None if is_host is None else bool(is_host)
        self._own: Own | None = None
        self._server: EmbeddedServer | None = None
        self._store: RedisStore | None = None
        self._others_since_s: float | None = None
        self._difference = ""
        self._starts: deque[float] = deque(maxlen=_REVIVALS)

    @property
    def where(self) -> str:
        """Return the endpoint: `c10d at gpu-017:29400`."""
        return f"{self.settings.backend} at {self._endpoint}"

    @property
    def hosting(self) -> bool:
        """Whether a process of this agent hosts the store."""
        return self._server is not None

    def pids(self) -> frozenset[int]:
        """Return the processes of this store: sweeps of the agent must spare them, and only the store may reap them."""
        server = self._server
        return frozenset() if server is None else server.pids()

    @property
    def notices(self) -> Sequence[str]:
        """Lines that an agent should log once, as in `RedisStore`."""
        lines = (*self._credentials.notices, *(() if self._store is None else self._store.notices))
        if not (self.hosting and self._own and self._own.unresolved):
            return lines
        line = (
            f"{self.where}: {self._own.unresolved}; this node hosts the store on all its addresses and reaches it at "
            f"{_LOOPBACK}, but other nodes must resolve the name"
        )
        return (line, *lines)

    # --- the host

    def connect(self, *, wait: WaitBudget) -> str:
        """Host the store or find it, and return this host's address on the connection to it.

        Raises:
            BackendUnavailableError: no node hosts it yet, or the host does not respond.
            BackendRefusedError: the port belongs to another store for longer than an earlier run's host would keep it;
                or this node may not bind the port.
            ConfigError: this node must host the store and has no server to run.
        """
        self._revive(wait)
        if self._store is None:
            self._settle(wait)
        elif self._server is None:
            before = self._credentials.password
            if (answer := self._ask(wait)) is not Answer.OURS:
                raise self._taken(answer)
            if self._credentials.password != before:  # the host is another process, and has made another secret
                self._store.close()
                self._store = self._driver()
        return self._inner.connect(wait=wait)

    def _settle(self, wait: WaitBudget) -> None:
        """Become host or guest."""
        if self._own is None:
            self._own = self._find_own(wait)
        bind = self._bind
        if bind and (self._any_port or is_free(bind, self._endpoint.port)) and self._host(bind, wait):
            return
        answer = self._ask(wait)
        if answer is Answer.OURS:
            self._store = self._driver()
        elif self._moves and bind:
            self._any_port = True  # this is the only node: any port will do
            self._host(bind, wait)
        else:
            raise self._taken(answer)

    def _find_own(self, wait: WaitBudget) -> Own:
        host = self._endpoint.host
        if self._is_host is not False:
            return find_own(host, is_host=bool(self._is_host), wait=wait)
        return Own((), find_own(host, wait=wait).unresolved) if is_own_name(host) else Own()

    @property
    def _bind(self) -> tuple[str, ...]:
        return self._own.addresses if self._own else ()

    @property
    def _reached(self) -> str:
        """The address at which this node reaches the store.

        A server on all addresses needs no name, which may lead elsewhere.
        """
        host = self._endpoint.host
        is_local = self._bind == EVERYWHERE or host in UNSPECIFIED or (self._own is not None and self._own.unresolved)
        return _LOOPBACK if is_local else host

    def _host(self, bind: tuple[str, ...], wait: WaitBudget) -> bool:
        """Start the server. Return false if another process has taken the port first."""
        program = find_program()
        for _ in range(_FREE_PORT_TRIES):
            if self._any_port:
                self._endpoint = Endpoint(host=self._endpoint.host, port=free_port(bind))
            try:
                self._start(program, bind, wait)
            except PortTakenError:
                if self._any_port:
                    continue
                return False
            self._any_port = False
            self._store = self._driver()
            return True
        raise BackendUnavailableError(f"{self.where}: no free port was left in {_FREE_PORT_TRIES} tries")

    def _start(self, program: str, bind: tuple[str, ...], wait: WaitBudget) -> None:
        server = EmbeddedServer(
            program,
            bind=bind,
            port=self._endpoint.port,
            password=self._credentials.begin(self._endpoint.port),
            incarnation=self.settings.incarnation,
        )
        self._server = server  # before it is started: sweeps must spare it from its first moment
        try:
            server.start(wait=wait)
            self._publish(bind, wait)
        except BaseException:
            self._server = None
            server.stop()
            self._credentials.remove()
            raise
        self._starts.append(SYSTEM_CLOCK.monotonic_s())

    def _publish(self, bind: tuple[str, ...], wait: WaitBudget) -> None:
        """Publish how the store is protected.

        The port belongs to this server, so no password goes to another process.
        """
        host = _LOOPBACK if set(bind) & {*EVERYWHERE} else bind[0]
        password, shown = self._credentials.password, self._credentials.publish()
        write_public(host, self._endpoint.port, password, shown, timeout_s=_ANSWER_LIMIT_S, wait=wait)

    def _revive(self, wait: WaitBudget) -> None:
        """Start the server again if it has died; the members restore its content."""
        if self._server is None or self._server.alive:
            return
        if len(self._starts) == _REVIVALS and SYSTEM_CLOCK.monotonic_s() - self._starts[0] < _REVIVAL_WINDOW_S:
            raise BackendUnavailableError(
                f"{self.where}: its server died {_REVIVALS} times within {_REVIVAL_WINDOW_S:g} s",
                hint="dmesg on this node for what killed it (out of memory?)",
            )
        dead = self._server
        dead.stop()
        try:
            self._start(find_program(), self._bind, wait)
        except ElasticError as error:
            self._server = dead  # still the host: tried again by the next call
            if isinstance(error, PortTakenError):
                raise BackendUnavailableError(f"{self.where}: its server died, and {error.what} since") from error
            raise

    def _ask(self, wait: WaitBudget) -> Answer:
        """Return the kind of store at the endpoint. Raises `BackendUnavailableError` if there is none."""
        limit_s = min(_ANSWER_LIMIT_S, self._read_timeout_s)
        try:
            answer = self._tried(limit_s, wait)
        except (BackendUnavailableError, WaitExpiredError) as error:
            self._others_since_s = None
            if self._store is None and self._bind and not is_free(self._bind, self._endpoint.port):
                port = self._endpoint.port
                raise BackendUnavailableError(
                    f"{self.where}: port {port} of this node is in use by something that does not answer",
                    hint=f"another port in --rdzv-endpoint {self._endpoint.host}:PORT, the same on every node",
                ) from error
            if self._store is not None or self.settings.max_nodes == 1 or isinstance(error, WaitExpiredError):
                raise
            raise BackendUnavailableError(
                f"{error.what}; no node hosts the store there yet",
                hint="start the node that the endpoint names, or --rdzv-conf is_host=true on it",
            ) from error
        if answer is Answer.OURS:
            self._others_since_s = None
        return answer

    def _tried(self, limit_s: float, wait: WaitBudget) -> Answer:
        host, port, credentials = self._reached, self._endpoint.port, self._credentials
        found = who_answers(host, port, partial(credentials.choose, port=port), timeout_s=limit_s, wait=wait)
        credentials.password = found.password
        self._difference = credentials.difference(found.public) if found.answer is Answer.OTHER_RUN else ""
        return found.answer

    def _taken(self, answer: Answer) -> ElasticError:
        """Return the error for a port of another process: at first a temporary one, then a permanent one."""
        now_s = SYSTEM_CLOCK.monotonic_s()
        if self._others_since_s is None:
            self._others_since_s = now_s
        text = (
            f"{self.where}: port {self._endpoint.port} is in use by {answer.value}, not by run {self.settings.run_id!r}"
        )
        text += f": {self._difference}" if self._difference else ""
        same = f"the same token in ${TOKEN_VARIABLE} or token_file"
        if self._difference:
            folder = f"a folder that all its hosts share in ${FOLDER_VARIABLE}"
            same = f"the run's --rdzv-id and user, and {folder}, or {same}"
        if now_s - self._others_since_s < _OTHERS_GRACE_S:
            hint = same if self._difference else "wait for it to end, or another port in --rdzv-endpoint"
            if answer is Answer.OTHER_RUN and not (self._difference or self.settings.incarnation):  # of a command
                hint = f"the run's --rdzv-id, and {same}"
            return BackendUnavailableError(text, hint=hint)
        hint = f"another port in --rdzv-endpoint {self._endpoint.host}:PORT, the same on every node"
        if answer is Answer.OTHER_RUN:
            hint = same if self._difference else f"{hint}; or the same --rdzv-id, and {same}"
        if answer is Answer.OPEN_SERVER:
            hint += "; or --rdzv-backend redis to use that server"
        return BackendRefusedError(text, hint=hint)

    # --- the driver

    @property
    def _inner(self) -> RedisStore:
        if self._store is None:
            raise BackendUnavailableError(f"{self.where} is not connected")
        return self._store

    def _driver(self) -> RedisStore:
        place = Endpoint(host=self._reached, port=self._endpoint.port)
        options: dict[str, str | int | float | bool | None] = {spec.name: spec.default for spec in RedisStore.options}
        settings = msgspec.structs.replace(
            self.settings,
            endpoint=f"redis://{USER}:{self._credentials.password}@{place}",
            options=options | {key: value for key, value in self.settings.options.items() if key not in _OWN},
        )
        return RedisStore(settings)

    def enlist(self, record: bytes, *, incarnation: str, ttl_s: float, wait: WaitBudget) -> Seat:
        """Add a member."""
        self._revive(wait)
        return self._inner.enlist(record, incarnation=incarnation, ttl_s=ttl_s, wait=wait)

    def update(self, seat: Seat, record: bytes, *, wait: WaitBudget) -> bool:
        """Replace a member's record."""
        self._revive(wait)
        return self._inner.update(seat, record, wait=wait)

    def renew(self, seat: Seat, *, ttl_s: float, wait: WaitBudget) -> Renewal | None:
        """Extend a member's lease."""
        self._revive(wait)
        return self._inner.renew(seat, ttl_s=ttl_s, wait=wait)

    def withdraw(self, seat: Seat, *, wait: WaitBudget) -> None:
        """Remove a member. The host then waits for the others to withdraw, 3 s at most and never beyond `wait`."""
        self._inner.withdraw(seat, wait=wait)
        if self.hosting:
            with suppress(ElasticError):  # optional: its errors don't matter any more
                self._linger(wait)

    def _linger(self, wait: WaitBudget) -> None:
        end_s = SYSTEM_CLOCK.monotonic_s() + _LINGER_S
        seen = Revisions()
        while (left_s := end_s - SYSTEM_CLOCK.monotonic_s()) > 0 and self._inner.members(wait=wait).members:
            seen = self._inner.watch(seen, {Topic.DEPARTURES}, timeout_s=left_s, wait=wait).revisions

    def members(self, *, wait: WaitBudget) -> Members:
        """Return all live members."""
        self._revive(wait)
        return self._inner.members(wait=wait)

    def survey(self, keys: Collection[str], *, wait: WaitBudget) -> Survey:
        """Return members with seats, and documents."""
        return self._inner.survey(keys, wait=wait)

    def load(self, key: str, *, wait: WaitBudget) -> Document | None:
        """Return a document."""
        self._revive(wait)
        return self._inner.load(key, wait=wait)

    def swap(self, key: str, new: bytes, *, expect: str | None, keep_s: float, wait: WaitBudget) -> Swapped:
        """Replace a document."""
        self._revive(wait)
        return self._inner.swap(key, new, expect=expect, keep_s=keep_s, wait=wait)

    def keep_age_s(self, *, wait: WaitBudget) -> float | None:
        """Return the seconds since the keep time of the content was last set."""
        return self._inner.keep_age_s(wait=wait)

    def watch(self, since: Revisions, topics: Collection[Topic], *, timeout_s: float, wait: WaitBudget) -> Watched:
        """Block until a topic changes."""
        self._revive(wait)
        return self._inner.watch(since, topics, timeout_s=timeout_s, wait=wait)

    def close(self) -> None:
        """Close connections and end the server, with which the store's content is lost."""
        if self._store is not None:
            self._store.close()
        if self._server is not None:
            self._server.stop()
            self._server = None
            self._credentials.remove()


_OWN: Final = frozenset(spec.name for spec in EmbeddedStore.options)


def _check_store_type(settings: RendezvousSettings) -> None:
    kind = str(settings.options.get("store_type") or "tcp").lower()
    if kind == "file":
        raise ConfigError(
            "--rdzv-conf store_type=file: a store in a shared file is not offered",
            hint="leave store_type out: the node that --rdzv-endpoint names hosts the store",
        )
    if kind != "tcp":
        raise ConfigError(f"--rdzv-conf store_type: {kind!r}; expected 'tcp'", hint="leave store_type out")


def _read_timeout_s(settings: RendezvousSettings) -> float:
    given = settings.options.get("read_timeout")
    seconds = _ANSWER_LIMIT_S if given is None else float(given)
    if seconds <= 0:
        raise ConfigError(
            f"--rdzv-conf read_timeout: {seconds:g} s; expected more than 0 s", hint="leave read_timeout out"
        )
    return seconds


def _endpoint(settings: RendezvousSettings) -> Endpoint:
    several = settings.max_nodes > 1
    if several and not settings.endpoint.strip():
        raise ConfigError(
            f"rendezvous backend {settings.backend!r} does not know which of up to {settings.max_nodes} nodes hosts "
            "the store",
            hint=f"--rdzv-endpoint HOST:{DEFAULT_PORT} with the name or address of one node, the same on every node",
        )
    endpoint = parse_endpoint(settings.endpoint, default_port=DEFAULT_PORT, lowest_port=0)
    if several and endpoint.port == 0:
        raise ConfigError(
            f"--rdzv-endpoint {str(endpoint)!r} has port 0, which other nodes could not know; expected a fixed port",
            hint=f"--rdzv-endpoint {Endpoint(host=endpoint.host, port=DEFAULT_PORT)}",
        )
    if several and endpoint.host in UNSPECIFIED:
        raise ConfigError(
            f"--rdzv-endpoint {str(endpoint)!r} names no node: each would host a store of its own",
            hint=f"--rdzv-endpoint HOST:{endpoint.port} with the name or address of one node, the same on every node",
        )
    return endpoint
