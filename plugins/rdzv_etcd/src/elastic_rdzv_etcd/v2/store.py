"""The `etcd-v2` backend: the store of the core's rendezvous on servers that still have etcd's v2 API.

The keys, and why they are correct, are in `elastic_rdzv_etcd.v2.content`.
"""

import importlib.util
import math
import os
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, ClassVar, Final

from elastic_core.api import (
    API_VERSION,
    SYSTEM_CLOCK,
    ConfigError,
    CoordinationStore,
    ElasticError,
    OptionSpec,
    PluginError,
    RendezvousSettings,
    WaitBudget,
)
from elastic_core.api.stores import (
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
)
from elastic_rdzv_etcd.reach import OPTIONS, Reach
from elastic_rdzv_etcd.v2.content import (
    Content,
    Paths,
    SeatKey,
    count_of,
    name,
    new_seat,
    packed,
    plain,
    unpacked,
    version_of,
)
from elastic_rdzv_etcd.v2.errors import ConflictError, ForgottenError, MissingError
from elastic_rdzv_etcd.v2.run import TRIES, Run

if TYPE_CHECKING:
    from elastic_rdzv_etcd.v2.session import Session

DEFAULT_PREFIX: Final = "/elastic"
_LIMIT_S: Final = 5.0
_LOOK_AGAIN_S: Final = 10.0
"""How long a client that knows no lease waits for an event before it reads again."""
_SOON_S: Final = 0.5
"""The interval in which a server deletes expired keys, half a second."""


class EtcdV2Store(CoordinationStore):
    """Drives etcd servers up to 3.5 through their v2 API, with python-etcd.

    Threading: as the base class. `close` ends it for good.

    Raises:
        ConfigError: the endpoint or an option can't be used.
        PluginError: python-etcd is not installed.
    """

    api_version: ClassVar[int] = API_VERSION
    options: ClassVar[Sequence[OptionSpec]] = (
        *OPTIONS,
        OptionSpec(name="read_timeout", type="duration", default=_LIMIT_S, unit="seconds", help="limit of one request"),
        OptionSpec(name="etcd_prefix", help=f"directory of all runs; default {DEFAULT_PREFIX}"),
    )
    min_ttl_s: ClassVar[float] = 2.0
    """TTLs are whole seconds, and keys expire up to half a second late."""
    announces_expiry: ClassVar[bool] = True

    def __init__(self, settings: RendezvousSettings) -> None:
        """Check endpoint and options; connect to nothing."""
        super().__init__(settings)
        spec = importlib.util.find_spec("etcd")
        if spec is None or spec.origin is None:  # a folder of that name is no package
            raise PluginError(
                "backend 'etcd-v2' (elastic-rdzv-etcd) needs python-etcd, which is not installed",
                hint="pip install 'python-etcd>=0.4.5,<0.5'",
            )
        self._reach = Reach(settings, v2=True)
        self.hosted_by_member = self._reach.embedded is not None
        limit_s = settings.options.get("read_timeout")
        self._limit_s = _LIMIT_S if limit_s is None else float(limit_s)
        if self._limit_s <= 0:
            raise ConfigError(
                f"--rdzv-conf read_timeout: {self._limit_s:g}; expected seconds, more than 0",
                hint="--rdzv-conf read_timeout=5",
            )
        self._paths = Paths(self._reach.option("etcd_prefix") or DEFAULT_PREFIX, settings.run_id)
        self._run = Run(self._paths, lambda: self._session)
        self._nonces: dict[tuple[int, str], str] = {}
        self._followed: tuple[Content, str, bool, int] | None = None
        """From which index on events were not seen yet: after which look, under what, and with the members' or not."""
        self._live_session: Session | None = None

    @property
    def _session(self) -> "Session":
        """Return the connections; the first call imports python-etcd."""
        if self._live_session is None:
            from elastic_rdzv_etcd.v2.session import Session

            reach = self._reach
            self._live_session = Session(reach.target, login=reach.login, tls=reach.tls, limit_s=self._limit_s)
        return self._live_session

    @property
    def where(self) -> str:
        """Return `etcd-v2 at localhost:2379`."""
        return self._reach.where

    def connect(self, *, wait: WaitBudget) -> str:
        """Open a new connection and return this host's address on it."""
        self._settle(wait)
        return self._session.open(self._paths.run, wait)

    def _begin_call(self, wait: WaitBudget) -> None:
        self._settle(wait)
        self._run.begin_call(wait)

    def _settle(self, wait: WaitBudget) -> None:
        if self._reach.settle(wait):
            self._end()

    @property
    def hosting(self) -> bool:
        """Whether a process of this agent is the run's etcd."""
        return self._reach.embedded is not None and self._reach.embedded.hosting

    def pids(self) -> frozenset[int]:
        """Return the processes of an embedded etcd."""
        return frozenset() if self._reach.embedded is None else self._reach.embedded.pids()

    @property
    def notices(self) -> Sequence[str]:
        """Lines that an agent should log once."""
        return tuple(self._reach.notices)

    def close(self) -> None:
        """Close the connections, and end an embedded etcd, with which the store's content is lost."""
        self._end()
        self._reach.close()

    def _end(self) -> None:
        session, self._live_session = self._live_session, None
        if session is not None:
            session.close()

    # --- members

    def enlist(self, record: bytes, *, incarnation: str, ttl_s: float, wait: WaitBudget) -> Seat:
        """Add a member, or find it and renew its lease."""
        run = self._run
        self._begin_call(wait)
        run.ttl_s = ttl_s
        content = run.swept(run.begun(run.look(wait), wait), wait)
        for _ in range(TRIES):
            number = self._put(content, incarnation, record, ttl_s, wait)
            content = run.collected(run.look(wait), wait)
            seat = content.standing.get(name(incarnation))
            if seat is not None and seat.number == number:
                run.number = number
                return Seat(number=number, incarnation=incarnation, ahead=content.ahead(number))
            content = run.begun(content, wait)
        raise run.crowded()

    def _put(self, content: Content, incarnation: str, record: bytes, ttl_s: float, wait: WaitBudget) -> int | None:
        """Return the number of a member's seat, made or written again. `None` if another client wrote first."""
        run, paths = self._run, self._paths
        seat = content.standing.get(name(incarnation))
        nonce = os.urandom(8).hex() if seat is None else seat.nonce
        # First the keys that the seat names: a client that reads the seat then finds them.
        run.write(paths.record(nonce), packed(record), wait)
        run.write(paths.alive(nonce), f"{ttl_s:g}", wait, ttl=math.ceil(ttl_s))
        try:
            if seat is None:
                result = run.write(paths.seat(incarnation), new_seat(nonce), wait, prevExist=False)
            else:
                result = run.write(paths.seat(incarnation), seat.counted(), wait, prevIndex=seat.modified)
        except (ConflictError, MissingError):
            if seat is None:
                run.delete(paths.record(nonce), wait)
                run.delete(paths.alive(nonce), wait)
            return None
        number = int(result.createdIndex)
        # A member has one seat: what is known of others that it had and lost is of no use.
        known = {seat: other for seat, other in self._nonces.items() if seat[1] != incarnation}
        self._nonces = {**known, (number, incarnation): nonce}
        return number

    def update(self, seat: Seat, record: bytes, *, wait: WaitBudget) -> bool:
        """Replace the record of a live seat."""
        run = self._run
        self._begin_call(wait)
        for _ in range(TRIES):
            found = run.seat(seat.incarnation, seat.number, wait)
            if found is None:
                return False
            with suppress(MissingError, ConflictError):
                run.write(self._paths.record(found.nonce), packed(record), wait, prevExist=True)
                run.write(self._paths.seat(seat.incarnation), found.counted(), wait, prevIndex=found.modified)
                return True
        raise run.crowded()

    def renew(self, seat: Seat, *, ttl_s: float, wait: WaitBudget) -> Renewal | None:
        """Set the end of the lease to `ttl_s` from now."""
        run = self._run
        self._begin_call(wait)
        run.ttl_s, run.number = ttl_s, seat.number
        if not self._extend(seat, ttl_s, wait) and not self._revive(seat, ttl_s, wait):
            self._nonces.pop((seat.number, seat.incarnation), None)
            return None
        content = run.swept(run.look(wait), wait)
        found = content.standing.get(name(seat.incarnation))
        if found is None or found.number != seat.number:
            return None
        return Renewal(
            ahead=content.ahead(seat.number),
            live=len(content.standing),
            next_expiry_s=_next_expiry_s(content, seat.number, ttl_s),
        )

    def _extend(self, seat: Seat, ttl_s: float, wait: WaitBudget) -> bool:
        """Renew a lease that has not expired. Return false if it has, or is not known here."""
        nonce = self._nonces.get((seat.number, seat.incarnation))
        if nonce is None:
            return False
        try:
            self._run.write(self._paths.alive(nonce), None, wait, ttl=math.ceil(ttl_s), refresh=True, prevExist=True)
        except MissingError:
            return False
        return True

    def _revive(self, seat: Seat, ttl_s: float, wait: WaitBudget) -> bool:
        """Begin a lease again, unless the seat was removed."""
        run = self._run
        for _ in range(TRIES):
            found = run.seat(seat.incarnation, seat.number, wait)
            if found is None:
                return False
            run.write(self._paths.alive(found.nonce), f"{ttl_s:g}", wait, ttl=math.ceil(ttl_s))
            with suppress(ConflictError, MissingError):
                # The same value, another index: a removal that was decided before fails now.
                run.write(self._paths.seat(seat.incarnation), found.value, wait, prevIndex=found.modified)
                self._nonces[seat.number, seat.incarnation] = found.nonce
                return True
        raise run.crowded()

    def withdraw(self, seat: Seat, *, wait: WaitBudget) -> None:
        """Remove a member now."""
        self._withdraw(seat, wait)
        if self._reach.embedded is not None and self._reach.embedded.hosting:
            with suppress(ElasticError):  # optional: its errors don't matter any more
                self._reach.embedded.linger(self, wait)

    def _withdraw(self, seat: Seat, wait: WaitBudget) -> None:
        run = self._run
        self._begin_call(wait)
        self._nonces.pop((seat.number, seat.incarnation), None)
        for _ in range(TRIES):
            found = run.seat(seat.incarnation, seat.number, wait)
            if found is None:
                return
            if run.remove(self._paths.seat(seat.incarnation), found, wait):
                run.clear_up(wait)
                return
        raise run.crowded()

    def members(self, *, wait: WaitBudget) -> Members:
        """Return all live members."""
        run = self._run
        self._begin_call(wait)
        for _ in range(TRIES):
            content = run.swept(run.look(wait), wait)
            standing = content.standing
            records = self._records(wait) if standing else {}
            # Read after the seats: what is missing was removed in between.
            if all(seat.nonce in records for seat in standing.values()):
                return Members(revision=content.revisions.members, members=self._members(standing, records))
        raise run.crowded()

    def survey(self, keys: Collection[str], *, wait: WaitBudget) -> Survey:
        """Return members with seats, those with an expired lease, and documents; removes no member."""
        run = self._run
        self._begin_call(wait)
        for _ in range(TRIES):
            content = run.look(wait)
            standing = content.standing
            records = self._records(wait) if standing else {}
            if all(seat.nonce in records for seat in standing.values()):
                break
        else:
            raise run.crowded()
        documents = {key: document.value for key in keys if (document := self._load(key, wait)) is not None}
        return Survey(
            members=self._members(standing, records),
            silent=frozenset(plain(key) for key in content.silent),
            documents=documents,
        )

    def _members(self, standing: Mapping[str, SeatKey], records: Mapping[str, str]) -> tuple[Member, ...]:
        return tuple(
            Member(
                seat=seat.number,
                incarnation=plain(key),
                record=unpacked(records[seat.nonce], self._paths.record(seat.nonce)),
            )
            for key, seat in standing.items()
        )

    def _records(self, wait: WaitBudget) -> dict[str, str]:
        try:
            result = self._run.read(self._paths.records, wait, recursive=True)
        except MissingError:
            return {}
        return {leaf.key.rpartition("/")[2]: leaf.value or "" for leaf in result.leaves if not leaf.dir}

    # --- documents

    def load(self, key: str, *, wait: WaitBudget) -> Document | None:
        """Return the current document."""
        self._begin_call(wait)
        return self._load(key, wait)

    def _load(self, key: str, wait: WaitBudget) -> Document | None:
        run = self._run
        for _ in range(TRIES):
            try:
                version = version_of(run.read(self._paths.document(key), wait))
            except MissingError:
                return None
            with suppress(MissingError):  # replaced in between
                body = run.read(self._paths.body(version), wait)
                return Document(value=unpacked(body.value or "", body.key), version=version)
        raise run.crowded()

    def swap(self, key: str, new: bytes, *, expect: str | None, keep_s: float, wait: WaitBudget) -> Swapped:
        """Replace a document if its version is `expect`."""
        run, paths = self._run, self._paths
        self._begin_call(wait)
        content = run.look(wait)
        if content.versions.get(name(key)) != expect:
            return Swapped(applied=False, current=self._load(key, wait))
        content = run.begun(content, wait)
        run.keep_for(content, keep_s, wait)
        version = f"{count_of(expect) + 1}-{os.urandom(8).hex()}"
        run.write(paths.body(version), packed(new), wait)
        condition: dict[str, Any] = {"prevExist": False} if expect is None else {"prevValue": expect}
        try:
            run.write(paths.document(key), version, wait, **condition)
        except (ConflictError, MissingError):
            run.delete(paths.body(version), wait)
            return Swapped(applied=False, current=self._load(key, wait))
        if expect is not None:
            with suppress(ElasticError):  # it is not needed; the run's end removes it at the latest
                run.delete(paths.body(expect), wait)
        return Swapped(applied=True, current=Document(value=new, version=version))

    def keep_age_s(self, *, wait: WaitBudget) -> float | None:
        """Return the seconds since the keep time of the content was last set."""
        self._begin_call(wait)
        return self._run.age_s(wait)

    # --- watching

    def watch(self, since: Revisions, topics: Collection[Topic], *, timeout_s: float, wait: WaitBudget) -> Watched:
        """Block until the revision of a topic is above `since`."""
        run, end_s = self._run, SYSTEM_CLOCK.monotonic_s() + timeout_s
        self._begin_call(wait)
        # What has happened since the last look comes as events.
        looked = timeout_s <= 0
        content = run.swept(run.look(wait) if looked else run.seen(wait), wait)
        while True:
            seen = compare(since, content.revisions, topics)
            news = bool(seen.changed) or seen.reset
            left_s = wait.remaining_s(max(0.0, end_s - SYSTEM_CLOCK.monotonic_s()))
            if (news and looked) or left_s <= 0:
                return seen
            if not news and not self._something_happens(content, Topic.MEMBERS in topics, left_s, wait):
                return seen
            looked = True
            content = run.swept(run.look(wait), wait)

    def _something_happens(self, content: Content, members: bool, timeout_s: float, wait: WaitBudget) -> bool:
        """Block until there is a reason to read again. Return false if the time was over before."""
        run = self._run
        key = self._paths.head if members or run.is_judge(content) else self._paths.quiet
        if self._followed is None or self._followed[:3] != (content, key, members):
            self._followed = content, key, members, content.index + 1
        index = self._followed[3]
        # In between, send a request: a client without responses can't judge which member is silent.
        chunk_s = _LOOK_AGAIN_S if run.ttl_s is None else run.ttl_s / 2
        end_s = SYSTEM_CLOCK.monotonic_s() + min(timeout_s, chunk_s)
        while (left_s := end_s - SYSTEM_CLOCK.monotonic_s()) > 0:
            try:
                event = run.event(key, index, left_s, wait)
            except ForgottenError:
                return True
            if event is None:
                break
            if event.modifiedIndex >= index:
                if self._paths.tells(event, members=members):
                    return True
                index = event.modifiedIndex + 1
                self._followed = content, key, members, index
        return chunk_s < timeout_s


def _next_expiry_s(content: Content, number: int, ttl_s: float) -> float | None:
    """Return when the first lease of another member may end."""
    others = [content.alive.get(seat.nonce) for seat in content.standing.values() if seat.number != number]
    left_s = [max(_SOON_S, float(leaf.ttl or 0)) if leaf is not None else ttl_s / 3 for leaf in others]
    return min(*left_s, ttl_s) if left_s else None
