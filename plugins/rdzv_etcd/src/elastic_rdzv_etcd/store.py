"""The `etcd` backend: the store of the core's rendezvous on etcd's v3 API."""

import math
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, ClassVar, Final, TypeVar
from urllib.parse import unquote

from elastic_core.api import (
    API_VERSION,
    SYSTEM_CLOCK,
    CoordinationStore,
    ElasticError,
    OptionSpec,
    RendezvousSettings,
    WaitBudget,
)
from elastic_core.api.stores import (
    BackendError,
    BackendUnavailableError,
    Document,
    Member,
    Members,
    Renewal,
    Revisions,
    Seat,
    Survey,
    Swapped,
    Topic,
    WaitExpiredError,
    Watched,
    compare,
    own_content,
)
from elastic_rdzv_etcd import messages as say
from elastic_rdzv_etcd.attendance import MANY, Attendance, Counts
from elastic_rdzv_etcd.content import Keeper, revision_of
from elastic_rdzv_etcd.errors import LeaseGoneError
from elastic_rdzv_etcd.messages import Found, Json, Keys
from elastic_rdzv_etcd.reach import OPTIONS, Reach
from elastic_rdzv_etcd.streak import Streak
from elastic_rdzv_etcd.watching import DOCUMENT_TOPICS, Watcher

if TYPE_CHECKING:
    from elastic_rdzv_etcd.gateway import Gateway

DEFAULT_PREFIX: Final = "/elastic/"
_TRIES: Final = 8
_VALUE: Final = b"value"
_VERSION: Final = b"version"

_T = TypeVar("_T")


class _Lease:
    """The lease of a member's keys: its number on the server, and its length in seconds."""

    def __init__(self, number: str, seconds: int) -> None:
        self.number = number
        self.seconds = seconds
        self.seated = False
        """Whether the key by which the member is counted is on it."""


class EtcdStore(CoordinationStore):
    """Drives an etcd server, or a cluster, from 3.4 on, through the JSON gateway of its v3 API.

    Every change is one transaction on the server, sent once and never repeated unless the server rejected it. A member
    stays until another one removes it, which needs an expired lease. The server does not publish its clock, so a member
    may judge another's silence only while it got responses itself: `Streak`.

    Threading: as the base class. `close` ends it for good.

    Raises:
        ConfigError: the endpoint or an option can't be used.
    """

    api_version: ClassVar[int] = API_VERSION
    options: ClassVar[Sequence[OptionSpec]] = (
        *OPTIONS,
        OptionSpec(name="prefix", help=f"prefix of the keys of all runs; default {DEFAULT_PREFIX}"),
        OptionSpec(name="etcd_prefix", help="name of prefix in torch"),
    )
    min_ttl_s: ClassVar[float] = 2.0
    """A server with default settings gives no shorter lease; leases are whole seconds."""
    announces_expiry: ClassVar[bool] = True

    def __init__(self, settings: RendezvousSettings) -> None:
        """Check endpoint and options; connect to nothing."""
        super().__init__(settings)
        self._reach = Reach(settings)
        self.hosted_by_member = self._reach.embedded is not None
        self._keys = Keys(_prefix(self._reach.option("prefix", "etcd_prefix")), settings.run_id)
        self._keeper = Keeper(self._keys, self._call)
        self._streak = Streak()
        self._leases: dict[tuple[int, str], _Lease] = {}
        self._ttl_s = self.min_ttl_s
        self._live_gateway: Gateway | None = None
        self._watcher = Watcher(
            self._keys,
            lambda end, wait: self._keeper.read(say.get_all(self._keys.busy, end=end), wait=wait),
            lambda creates, wait: self._gateway.stream(creates, wait=wait),
            learn=self._keeper.learn,
        )
        self._attendance = Attendance(self._keys, self._keeper, self._watcher, may_judge=self._may_judge)

    @property
    def _gateway(self) -> "Gateway":
        """Return the connections; the first call imports the client."""
        if self._live_gateway is None:
            from elastic_rdzv_etcd.gateway import Gateway

            self._live_gateway = Gateway(self._reach.target, login=self._reach.login, tls=self._reach.tls)
        return self._live_gateway

    @property
    def notices(self) -> Sequence[str]:
        """Lines that an agent should log once."""
        gateway = self._live_gateway
        return (*self._reach.notices, *(() if gateway is None else gateway.notices))

    @property
    def where(self) -> str:
        """Return `etcd at localhost:2379`."""
        return self._reach.where

    @property
    def hosting(self) -> bool:
        """Whether a process of this agent is the run's etcd."""
        return self._reach.embedded is not None and self._reach.embedded.hosting

    def pids(self) -> frozenset[int]:
        """Return the processes of an embedded etcd."""
        return frozenset() if self._reach.embedded is None else self._reach.embedded.pids()

    # --- members

    def connect(self, *, wait: WaitBudget) -> str:
        """Open a new connection and return this host's address on it."""
        self._watcher.drop()
        self._settle(wait)
        return self._watcher.connect(self._gateway.open_and_watch, wait)

    def _settle(self, wait: WaitBudget) -> None:
        if self._reach.settle(wait):
            self._end()

    def enlist(self, record: bytes, *, incarnation: str, ttl_s: float, wait: WaitBudget) -> Seat:
        """Add a member, or find it and renew its lease."""
        self._ttl_s = ttl_s

        def once() -> Seat | None:
            self._leases = {seat: held for seat, held in self._leases.items() if seat[1] != incarnation}
            lease, upsets = self._granted(ttl_s, wait), self._watcher.upsets
            made = self._add(incarnation, record, lease, wait)
            if made is None:
                return None
            number, ahead = made
            if ahead < MANY:
                counts = self._take(number, incarnation, lease, wait)
                if counts is None:
                    return None
                ahead = counts.ahead
            else:  # the renewal that first counts does it
                self._leases[number, incarnation] = lease
                self._attendance.suppose(number, incarnation, ahead, upsets=upsets)
            if ahead == 0:
                self._keeper.keep_now(wait)
            return Seat(number=number, incarnation=incarnation, ahead=ahead)

        return self._until_done(once)

    def _add(self, incarnation: str, record: bytes, lease: _Lease, wait: WaitBudget) -> tuple[int, int] | None:
        """Return the number of the member's seat, and the most members ahead, or 0 if these must be counted.

        `None` if the content was another one than the known one.
        """
        keys = self._keys
        content, member = self._keeper.begun(wait), keys.member(incarnation)
        alive = say.put(keys.alive_of(incarnation), b"", lease.number)
        told, reads = say.touch(keys.busy), (say.get(keys.busy), say.count(keys.members))
        made = self._keeper.transact(
            (*content.unchanged, say.made_at(member, 0)),
            (say.put(member, say.pack(record), content.lease), alive, told, *reads),
            (say.get(member),),
            wait,
        )
        if made.succeeded:
            self._watcher.notice_members(made.one(-2))
            return made.revision, made.counted(-1) - 1
        found = made.one(0)
        if found is None:
            self._keeper.forget()
            return None
        again = (say.replace(member, say.pack(record)), alive, told, say.get(keys.busy))
        answer = self._keeper.transact((content.born, say.made_at(member, found.made)), again, (), wait)
        if not answer.succeeded:
            return None
        self._watcher.notice_members(answer.one(-1))
        return found.made, 0

    def _take(self, number: int, incarnation: str, lease: _Lease, wait: WaitBudget) -> Counts | None:
        """Put a member's keys on a lease and return the number of members. `None` if its seat is gone."""
        keys = self._keys
        puts = (
            say.put(keys.alive_of(incarnation), b"", lease.number),
            say.put(keys.seat(number), b"", lease.number),
        )
        counts = self._attendance.count(number, incarnation, puts, wait)
        if counts is not None:
            lease.seated = True
            self._leases[number, incarnation] = lease
        return counts

    def _granted(self, ttl_s: float, wait: WaitBudget) -> _Lease:
        seconds = math.ceil(ttl_s)
        return _Lease(self._keeper.grant(seconds, wait), seconds)

    def update(self, seat: Seat, record: bytes, *, wait: WaitBudget) -> bool:
        """Replace the record of a live seat."""
        member = self._keys.member(seat.incarnation)
        same = (say.made_at(member, seat.number), say.is_there(self._keys.busy))
        then = (say.replace(member, say.pack(record)), say.touch(self._keys.busy), say.get(self._keys.busy))
        answer = self._keeper.transact(same, then, (), wait)
        if answer.succeeded:
            self._watcher.notice_members(answer.one(-1))
        return answer.succeeded

    def renew(self, seat: Seat, *, ttl_s: float, wait: WaitBudget) -> Renewal | None:
        """Set the end of the lease to `ttl_s` from now."""
        self._ttl_s = ttl_s

        def once() -> Renewal | None:
            self._keeper.standing(wait)
            held = self._leases.get((seat.number, seat.incarnation))
            at: int | None = None
            if held is not None and held.seconds == math.ceil(ttl_s):
                at = self._keeper.keep_alive(held.number, wait)
            if held is None or at is None:
                counts = self._take(seat.number, seat.incarnation, self._granted(ttl_s, wait), wait)
            else:
                counts = self._attendance.believed(seat, at, ttl_s=ttl_s)
                if counts is None and held.seated:
                    counts = self._attendance.count(seat.number, seat.incarnation, (), wait)
                elif counts is None:
                    counts = self._take(seat.number, seat.incarnation, held, wait)
            if counts is None:
                return None
            others = counts.live > 1
            return Renewal(ahead=counts.ahead, live=counts.live, next_expiry_s=ttl_s if others else None)

        return self._on_a_living_lease(once)

    def withdraw(self, seat: Seat, *, wait: WaitBudget) -> None:
        """Remove a member now."""
        self._leases.pop((seat.number, seat.incarnation), None)
        self._attendance.remove(seat.number, seat.incarnation, wait)
        embedded = self._reach.embedded
        if embedded is not None and embedded.hosting:
            with suppress(ElasticError):  # optional: its errors don't matter any more
                embedded.linger(self, wait)

    def members(self, *, wait: WaitBudget) -> Members:
        """Return all live members."""
        keys = self._keys
        while True:
            reads = (say.get_all(keys.members), say.get_all(keys.alive, names_only=True), say.get(keys.busy))
            answer = self._keeper.read(*reads, wait=wait)
            found = answer.found(0)
            if not self._attendance.judge(found, answer.found(1), wait):
                break
        return Members(revision=revision_of(answer.one(2)), members=self._members(found))

    def _members(self, found: Sequence[Found]) -> tuple[Member, ...]:
        return tuple(
            Member(seat=one.made, incarnation=self._attendance.incarnation(one), record=say.unpack(one.value, one.key))
            for one in sorted(found, key=lambda one: one.made)
        )

    def survey(self, keys: Collection[str], *, wait: WaitBudget) -> Survey:
        """Return members with seats, and documents; changes nothing."""
        names, own = list(keys), self._keys
        reads = (say.get_all(own.members), say.get_all(own.alive, names_only=True))
        answer = self._keeper.read(*reads, *(say.get_all(own.doc(name)) for name in names), wait=wait)
        members = self._members(answer.found(0))
        heard = {unquote(one.name(own.alive).decode(errors="replace")) for one in answer.found(1)}
        documents = {name: _found(answer.found(at), own.doc(name)) for at, name in enumerate(names, start=2)}
        return Survey(
            members=members,
            silent=frozenset(one.incarnation for one in members) - heard,
            documents={name: document.value for name, document in documents.items() if document is not None},
        )

    # --- documents

    def load(self, key: str, *, wait: WaitBudget) -> Document | None:
        """Return the current document: once without a request if the last watch received it."""
        prefix = self._keys.doc(key)
        pushed = self._watcher.take_document(key)
        if pushed is not None:
            return _document(pushed, prefix)
        return _found(self._keeper.read(say.get_all(prefix), wait=wait).found(0), prefix)

    def swap(self, key: str, new: bytes, *, expect: str | None, keep_s: float, wait: WaitBudget) -> Swapped:
        """Replace a document if its version is `expect`."""
        prefix, version = self._keys.doc(key), os.urandom(8).hex()
        self._watcher.take_document(key)  # it may be another one from now on
        told = (say.touch(self._keys.topic(key)),) if key in DOCUMENT_TOPICS else ()
        expected = say.made_at(prefix + _VERSION, 0)
        if expect is not None:
            expected = say.has_value(prefix + _VERSION, expect.encode())

        def once() -> Swapped | None:
            if not self._keeper.knows:
                standing = self._learned(prefix, wait)
                if expect != (None if standing is None else standing.version):
                    return Swapped(applied=False, current=standing)
            content = self._keeper.begun(wait, keep_s=keep_s) if expect is None else self._keeper.standing(wait)
            if content is None:
                return Swapped(applied=False, current=None)
            value = say.put(prefix + _VALUE, say.pack(new), content.lease)
            marked = say.put(prefix + _VERSION, version.encode(), content.lease)
            same = (*content.unchanged, expected)
            answer = self._keeper.transact(same, (value, marked, *told), (say.get_all(prefix),), wait)
            if answer.succeeded:
                return Swapped(applied=True, current=Document(value=new, version=version))
            standing = _found(answer.found(0), prefix)
            if expect != (None if standing is None else standing.version):
                return Swapped(applied=False, current=standing)
            self._keeper.forget()  # it is the content that is another
            return None

        swapped = self._until_done(once)
        if swapped.applied:
            with suppress(BackendError, WaitExpiredError):  # it is written; a longer keep time does no harm
                self._keeper.keep_for(keep_s, wait)
        return swapped

    def keep_age_s(self, *, wait: WaitBudget) -> float | None:
        """Return the seconds since the keep time of the content was last set, or renewed by members."""
        return self._keeper.age_s(wait)

    def _learned(self, prefix: bytes, wait: WaitBudget) -> Document | None:
        """Return the current document. Afterwards the content is known, if there is any."""
        keys, reads = self._keys, (say.get_all(self._keys.told), say.get_all(prefix))
        answer = self._keeper.transact((say.is_there(keys.birth),), reads, (say.delete(keys.keep),), wait)
        if not answer.succeeded or not self._keeper.learn({found.key: found for found in answer.found(0)}):
            return None
        return _found(answer.found(1), prefix)

    # --- watching

    def watch(self, since: Revisions, topics: Collection[Topic], *, timeout_s: float, wait: WaitBudget) -> Watched:
        """Block until the revision of a topic is above `since`."""
        end_s = SYSTEM_CLOCK.monotonic_s() + timeout_s
        while True:
            judges = self._attendance.judges
            self._watcher.listen(frozenset(topics), wait, judges=judges)
            seen = compare(since, self._watcher.look(wait, believe=timeout_s > 0), topics)
            changed = bool(seen.changed) or seen.reset or timeout_s <= 0
            if not changed and judges and self._watcher.take_silence():
                self._attendance.look(0, wait)
                continue
            if changed or not self._heard(end_s, wait):
                self._watcher.offer(seen.revisions)
                return seen

    def _heard(self, end_s: float, wait: WaitBudget) -> bool:
        """Block until there is a push, at most until a time. Return whether there was one."""
        left_s = wait.remaining_s(max(0.0, end_s - SYSTEM_CLOCK.monotonic_s()))
        heard = left_s > 0 and self._watcher.hear(left_s, wait)
        # All that came with it, or while this thread did not run.
        return self._watcher.hear(0.0, wait) or heard

    def close(self) -> None:
        """Close the connections, and end an embedded etcd, with which the store's content is lost."""
        self._end()
        self._reach.close()

    def _end(self) -> None:
        self._watcher.drop()
        gateway, self._live_gateway = self._live_gateway, None
        if gateway is not None:
            gateway.close()

    # --- requests

    def _call(self, path: str, body: Json, *, wait: WaitBudget, writes: bool) -> Json:
        self._settle(wait)
        sent_s = SYSTEM_CLOCK.monotonic_s()
        answer = self._gateway.ask(path, body, wait=wait, writes=writes)
        self._streak.answered(sent_s=sent_s, now_s=SYSTEM_CLOCK.monotonic_s(), ttl_s=self._ttl_s)
        return answer

    def _may_judge(self) -> bool:
        return self._streak.may_judge(now_s=SYSTEM_CLOCK.monotonic_s(), ttl_s=self._ttl_s)

    def _on_a_living_lease(self, once: Callable[[], _T]) -> _T:
        """Return the result of a call. If the server rejected it for an expired lease, call it once more."""
        try:
            return once()
        except LeaseGoneError:
            self._keeper.forget()
            return once()

    def _until_done(self, once: Callable[[], _T | None]) -> _T:
        """Return the result of a call that may find another content than the known one."""
        for _ in range(_TRIES):
            done = self._on_a_living_lease(once)
            if done is not None:
                return done
        raise BackendUnavailableError(
            f"{self.where}: other clients change the run's content faster than it can be written"
        )


def _found(found: Sequence[Found], prefix: bytes) -> Document | None:
    return _document({one.key: one.value for one in found}, prefix)


def _document(parts: Mapping[bytes, bytes], prefix: bytes) -> Document | None:
    """Return a document of its two keys' values; `None` if there is none."""
    value, version = parts.get(prefix + _VALUE), parts.get(prefix + _VERSION)
    if value is None or version is None:
        return None
    with own_content(prefix + _VERSION):
        return Document(value=say.unpack(value, prefix + _VALUE), version=version.decode())


def _prefix(text: str) -> str:
    """Return the prefix of all runs, between slashes."""
    return f"/{stripped}/" if (stripped := text.strip("/ ")) else DEFAULT_PREFIX
