"""The `redis` backend: the store of the core's rendezvous on a Redis or Valkey server."""

import os
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final
from urllib.parse import quote

from elastic_core.api import (
    API_VERSION,
    SYSTEM_CLOCK,
    ConfigError,
    CoordinationStore,
    OptionSpec,
    RendezvousSettings,
    WaitBudget,
)
from elastic_core.api.stores import (
    BackendRefusedError,
    Document,
    Member,
    Members,
    Renewal,
    Revisions,
    Seat,
    Survey,
    Swapped,
    Topic,
    Watched,
    compare,
    own_content,
)
from elastic_rdzv_redis import scripts
from elastic_rdzv_redis.url import Login, Target, Tls, parse_target

if TYPE_CHECKING:
    from elastic_rdzv_redis.line import Line
    from elastic_rdzv_redis.session import Session

_PARTS: Final = ("state", "seats", "leases", "records")


class RedisStore(CoordinationStore):
    """Drives a Redis server from 6.2 on, or Valkey: plain, with TLS, behind sentinels, or a node of a cluster.

    Every operation is one script on the server, sent once and never repeated. Leases end by the server's clock.

    Threading: as the base class. `close` ends it for good.

    Raises:
        ConfigError: the endpoint or an option can't be used.
    """

    api_version: ClassVar[int] = API_VERSION
    options: ClassVar[Sequence[OptionSpec]] = (
        OptionSpec(name="username", help="ACL user; default: the user in the URL, else $ELASTIC_REDIS_USERNAME"),
        OptionSpec(name="password_file", help="file with the password, if the URL has none; read at each connection"),
        OptionSpec(name="ca_cert", help="PEM file with the trusted authorities, for rediss://; default: the system's"),
        OptionSpec(name="cert", help="PEM file with this client's certificate, for rediss://"),
        OptionSpec(name="key", help="PEM file with the certificate's key, if it is not in `cert`"),
        OptionSpec(name="insecure", type="bool", default=False, help="trust any server, for rediss://; for tests"),
        OptionSpec(name="sentinel_master", help="name of the service in Sentinel; the endpoint then lists sentinels"),
        OptionSpec(name="sentinel_username", help="ACL user of the sentinels"),
        OptionSpec(name="sentinel_password_file", help="file with the password of the sentinels"),
    )
    min_ttl_s: ClassVar[float] = 0.2

    def __init__(self, settings: RendezvousSettings) -> None:
        """Check endpoint and options; connect to nothing."""
        super().__init__(settings)
        self._master = self._option("sentinel_master")
        self._target = self.target()
        self._tls = Tls(
            ca_cert=self._option("ca_cert"),
            cert=self._option("cert"),
            key=self._option("key"),
            insecure=bool(settings.options.get("insecure")),
        )
        if self._tls != Tls() and not self._target.tls:
            raise ConfigError(
                f"options for TLS were given, but {self._target} is an endpoint without TLS",
                hint=f"--rdzv-endpoint rediss://{self._target}",
            )
        # Between the braces is what a cluster places keys by, all of a run together; nothing there would spread them.
        tag = quote(settings.run_id, safe="") or "%"  # no id is quoted so
        self._base = f"elastic:{{{tag}}}:"
        self._keys = tuple(self._base + part for part in _PARTS)
        self._live_session: Session | None = None
        self._renewed: tuple[Line, Revisions, bool] | None = None
        self._read: tuple[Sequence[bytes | None], tuple[Revisions, bool]] = ((), (Revisions(), False))

    def _option(self, name: str) -> str:
        value = self.settings.options.get(name)
        return "" if value is None else str(value)

    def target(self) -> Target:
        """Return the server in the endpoint. A subclass that finds it in another way overrides this method."""
        return parse_target(self.settings.endpoint, sentinels=bool(self._option("sentinel_master")))

    def login(self) -> Login:
        """Return user and password, each from the URL, else from the options, else from the environment.

        Called: before each connection.

        Raises:
            BackendRefusedError: the password's file can't be read.
        """
        own = self._target.login
        return Login(
            username=own.username or self._option("username") or os.environ.get("ELASTIC_REDIS_USERNAME", ""),
            password=own.password
            or _secret_of("password_file", self._option("password_file"))
            or os.environ.get("ELASTIC_REDIS_PASSWORD", ""),
        )

    def _sentinel_login(self) -> Login:
        option = "sentinel_password_file"
        return Login(username=self._option("sentinel_username"), password=_secret_of(option, self._option(option)))

    @property
    def _session(self) -> "Session":
        """Return the connections; the first call imports what connects."""
        if self._live_session is None:
            from elastic_rdzv_redis.connector import Sentinels
            from elastic_rdzv_redis.session import Session

            sentinels = Sentinels(self._target.hosts, self._master, self._sentinel_login) if self._master else None
            self._live_session = Session(self._target, login=self.login, tls=self._tls, sentinels=sentinels)
        return self._live_session

    @property
    def notices(self) -> Sequence[str]:
        """Lines that an agent should log once, for example that pushes are not permitted."""
        return () if self._live_session is None else tuple(self._live_session.notices)

    # --- the contract

    @property
    def where(self) -> str:
        """Return `redis at localhost:6379`."""
        through = f"{self._master!r} by the sentinels at " if self._master else ""
        return f"redis at {through}{self._target}" + (" (TLS)" if self._target.tls else "")

    def connect(self, *, wait: WaitBudget) -> str:
        """Open a new connection and return this host's address on it; empty on a unix socket."""
        return self._session.open(wait)

    def enlist(self, record: bytes, *, incarnation: str, ttl_s: float, wait: WaitBudget) -> Seat:
        """Add a member, or find it and renew its lease."""
        number, ahead = self._run(scripts.ENLIST, _random(), incarnation, record, _ms(ttl_s), wait=wait)
        return Seat(number=int(number), incarnation=incarnation, ahead=int(ahead))

    def update(self, seat: Seat, record: bytes, *, wait: WaitBudget) -> bool:
        """Replace the record of a live seat."""
        return bool(self._run(scripts.UPDATE, seat.incarnation, seat.number, record, wait=wait))

    def renew(self, seat: Seat, *, ttl_s: float, wait: WaitBudget) -> Renewal | None:
        """Set the end of the lease to `ttl_s` from now."""
        listening = self._session.listening(frozenset())
        reply = self._run(scripts.RENEW, seat.incarnation, seat.number, _ms(ttl_s), wait=wait)
        if reply is None:
            return None
        *counts, said = reply
        ahead, live, next_ms = (int(value) for value in counts)
        if listening is not None:
            self._renewed = (listening, *self._revisions(said))
        return Renewal(ahead=ahead, live=live, next_expiry_s=None if next_ms < 0 else next_ms / 1000)

    def withdraw(self, seat: Seat, *, wait: WaitBudget) -> None:
        """Remove a member now."""
        self._run(scripts.WITHDRAW, seat.incarnation, seat.number, wait=wait)

    def members(self, *, wait: WaitBudget) -> Members:
        """Return all live members."""
        revision, seats, pairs = self._run(scripts.MEMBERS, wait=wait, writes=False)
        with own_content(self._keys[0]):
            return Members(revision=int(revision), members=self._members(seats, pairs))

    def survey(self, keys: Collection[str], *, wait: WaitBudget) -> Survey:
        """Return members with seats, and documents; changes nothing."""
        names = list(keys)
        seats, pairs, silent, values = self._run(scripts.SURVEY, *names, wait=wait, writes=False)
        return Survey(
            members=self._members(seats, pairs),
            silent=frozenset(incarnation.decode(errors="replace") for incarnation in silent),
            documents={name: value for name, value in zip(names, values, strict=True) if value is not None},
        )

    def load(self, key: str, *, wait: WaitBudget) -> Document | None:
        """Return the current document."""
        return self._document(*self._run(scripts.LOAD, key, wait=wait, writes=False))

    def swap(self, key: str, new: bytes, *, expect: str | None, keep_s: float, wait: WaitBudget) -> Swapped:
        """Replace a document if its version is `expect`."""
        reply = self._run(scripts.SWAP, _random(), key, new, expect or "", _random(), _ms(keep_s), wait=wait)
        applied, value, version = reply
        current = self._document(new if applied else value, version)
        return Swapped(applied=bool(applied), current=current)

    def keep_age_s(self, *, wait: WaitBudget) -> float | None:
        """Return the seconds since the keep time of the content was last set."""
        age_ms = self._run(scripts.AGE, wait=wait, writes=False)
        return None if age_ms is None else int(age_ms) / 1000

    def watch(self, since: Revisions, topics: Collection[Topic], *, timeout_s: float, wait: WaitBudget) -> Watched:
        """Block until the revision of a topic is above `since`."""
        end_s = SYSTEM_CLOCK.monotonic_s() + timeout_s
        session, channels = self._session, frozenset(f"{self._keys[0]}/{topic}" for topic in topics)
        known = self._known(channels) if timeout_s > 0 else None
        while True:
            if known is None:
                # Before reading: what comes after it is pushed, what came before is read. A repetition sends nothing.
                session.subscribe(channels, wait)
            (now, polled), known = known or self._look(wait), None
            seen = compare(since, now, topics)
            left_s = wait.remaining_s(max(0.0, end_s - SYSTEM_CLOCK.monotonic_s()))
            if seen.changed or seen.reset or left_s <= 0 or not session.pushed(left_s, wait, polled=polled):
                return seen

    def close(self) -> None:
        """Close the connections."""
        session, self._live_session = self._live_session, None
        if session is not None:
            session.close()

    # --- scripts

    def _look(self, wait: WaitBudget) -> tuple[Revisions, bool]:
        """Return the revisions, and whether a member was not permitted to publish one."""
        return self._revisions(self._run(scripts.LOOK, wait=wait, writes=False))

    def _known(self, channels: frozenset[str]) -> tuple[Revisions, bool] | None:
        """Return, once, the result of the last request or renewal, if all later changes are pushed to this client."""
        renewed, self._renewed = self._renewed, None
        if renewed is None or self._session.listening(channels) is not renewed[0]:
            return None
        return renewed[1:]

    def _run(self, script: scripts.Script, *args: str | bytes | int, wait: WaitBudget, writes: bool = True) -> Any:  # noqa: ANN401
        self._renewed = None
        from elastic_rdzv_redis.failures import ForeignContentError

        with own_content(f"{self._base}*", (ForeignContentError,)):
            return self._session.run(script, self._keys, *args, wait=wait, writes=writes)

    # --- replies

    def _revisions(self, said: Sequence[bytes | None]) -> tuple[Revisions, bool]:
        if said != self._read[0]:  # mostly the same: an idle member reads them with each renewal
            self._read = said, self._parsed(said)
        return self._read[1]

    def _parsed(self, said: Sequence[bytes | None]) -> tuple[Revisions, bool]:
        birth, mute, *counts = said
        with own_content(self._keys[0]):
            members, departures, round_, control = (int(count or 0) for count in counts)
            revisions = Revisions(
                birth=(birth or b"").decode(), members=members, departures=departures, round=round_, control=control
            )
        return revisions, mute is not None

    def _members(self, seats: Sequence[bytes], pairs: Sequence[bytes]) -> tuple[Member, ...]:
        """Return the members in a reply: incarnations with their seats, in order, and with their records."""
        records = dict(zip(pairs[::2], pairs[1::2], strict=True))
        with own_content(self._keys[1]):
            return tuple(
                Member(seat=int(number), incarnation=incarnation.decode(), record=records.get(incarnation, b""))
                for incarnation, number in zip(seats[::2], seats[1::2], strict=True)
            )

    def _document(self, value: bytes | None, version: bytes | None) -> Document | None:
        with own_content(self._keys[0]):
            return None if value is None or version is None else Document(value=value, version=version.decode())


def _random() -> str:
    return os.urandom(8).hex()


def _ms(seconds: float) -> int:
    return max(1, round(seconds * 1000))


def _secret_of(option: str, path: str) -> str:
    """Return a file's text without its line end; empty without a file."""
    if not path:
        return ""
    try:
        return Path(path).read_text(encoding="utf-8").strip("\r\n")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "not text in UTF-8"
        raise BackendRefusedError(
            f"cannot read {option} {path!r}: {reason}", hint=f"--rdzv-conf {option}=PATH"
        ) from error
