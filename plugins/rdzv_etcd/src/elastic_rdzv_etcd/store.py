"""The `etcd` backend: what the core's rendezvous needs, on etcd's v3 API."""

import math
import os
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, ClassVar, Final, NamedTuple, TypeVar
from urllib.parse import unquote

from elastic_core.api import (
    API_VERSION,
    CONTROL_KEY,
    ROUND_KEY,
    SYSTEM_CLOCK,
    BackendError,
    BackendUnavailableError,
    CoordinationStore,
    Document,
    ElasticError,
    Member,
    Members,
    OptionSpec,
    RendezvousSettings,
    Renewal,
    Revisions,
    Seat,
    Swapped,
    Topic,
    WaitBudget,
    WaitExpiredError,
    Watched,
    compare,
)
from elastic_rdzv_etcd import messages as say
from elastic_rdzv_etcd.coding import prefix_end
from elastic_rdzv_etcd.content import Keeper, revision_of
from elastic_rdzv_etcd.errors import LeaseGoneError
from elastic_rdzv_etcd.messages import Answer, Found, Json, Keys
from elastic_rdzv_etcd.reach import OPTIONS, Reach
from elastic_rdzv_etcd.streak import Streak
from elastic_rdzv_etcd.watching import Watcher

if TYPE_CHECKING:
    from elastic_rdzv_etcd.gateway import Gateway

DEFAULT_PREFIX: Final = "/elastic/"
_TRIES: Final = 8
_LINGER_S: Final = 3.0
_JUDGES: Final = 3
"""How many members, from the first seat on, remove whom the server says to be silent; the others hear of it."""

_MANY: Final = 32
"""From so many members on, those that are far from leading are not counted as exactly."""
_COUNT_AGAIN_S: Final = 10.0
"""How long a member that is far from leading believes how many are ahead, while nobody goes."""

_VALUE: Final = b"value"
_VERSION: Final = b"version"
_DOCUMENT_TOPICS: Final = (CONTROL_KEY, ROUND_KEY)

_T = TypeVar("_T")


class _Lease:
    """What a member's keys are put on: its number on the server, and the seconds that it lasts."""

    def __init__(self, number: str, seconds: int) -> None:
        self.number = number
        self.seconds = seconds
        self.seated = False
        """Whether the key by which the member is counted is on it."""


class EtcdStore(CoordinationStore):
    """Drives an etcd server, or a cluster, from 3.4 on, through the JSON gateway of its v3 API.

    Every change is one transaction on the server, sent once and never repeated unless the server refused it. A member
    is there until another one removes it; its lease permits that. The server does not tell the time, so that a member
    may judge another's silence only while it was answered itself: `Streak`.

    Threading: as the base class says. `close` ends it for good.

    Raises:
        ConfigError: the endpoint or an option can't be used.
    """

    api_version: ClassVar[int] = API_VERSION
    options: ClassVar[Sequence[OptionSpec]] = (
        *OPTIONS,
        OptionSpec(name="prefix", help=f"what the keys of all runs begin with; default {DEFAULT_PREFIX}"),
        OptionSpec(name="etcd_prefix", help="torch's name of prefix"),
    )
    min_ttl_s: ClassVar[float] = 2.0
    """A server with usual settings gives no shorter lease; leases are whole seconds."""
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
        self._ahead: int | None = None
        self._count: _Count | None = None
        self._live_gateway: Gateway | None = None
        self._watcher = Watcher(
            self._keys,
            self._keeper.read,
            lambda creates, wait: self._gateway.stream(creates, wait=wait),
            learn=self._keeper.learn,
        )

    @property
    def _gateway(self) -> "Gateway":
        """Return the connections; the first call imports the client."""
        if self._live_gateway is None:
            from elastic_rdzv_etcd.gateway import Gateway

            self._live_gateway = Gateway(self._reach.target, login=self._reach.login, tls=self._reach.tls)
        return self._live_gateway

    @property
    def notices(self) -> Sequence[str]:
        """What an agent should tell its user once."""
        gateway = self._live_gateway
        return (*self._reach.notices, *(() if gateway is None else gateway.notices))

    @property
    def where(self) -> str:
        """Return `etcd at localhost:2379`."""
        return self._reach.where

    @property
    def hosting(self) -> bool:
        """Whether the run's etcd is a process of this agent."""
        return self._reach.embedded is not None and self._reach.embedded.hosting

    def pids(self) -> frozenset[int]:
        """Return the processes of an embedded etcd."""
        return frozenset() if self._reach.embedded is None else self._reach.embedded.pids()

    # --- members

    def connect(self, *, wait: WaitBudget) -> str:
        """Open a connection anew and return this host's address on it."""
        self._watcher.drop()
        self._settle(wait)
        return self._gateway.open(wait)

    def _settle(self, wait: WaitBudget) -> None:
        if self._reach.settle(wait):
            self._end()

    def enlist(self, record: bytes, *, incarnation: str, ttl_s: float, wait: WaitBudget) -> Seat:
        """Add a member, or find it, renewed."""
        self._ttl_s = ttl_s

        def once() -> Seat | None:
            lease, upsets = self._granted(ttl_s, wait), self._watcher.upsets
            made = self._add(incarnation, record, lease, wait)
            if made is None:
                return None
            number, ahead = made
            if ahead < _MANY:
                counts = self._take(number, incarnation, lease, wait)
                if counts is None:
                    return None
                ahead = counts.ahead
            else:  # its first renewal does it
                self._leases[number, incarnation] = lease
                self._count = self._counted_now(number, incarnation, _Counts(ahead, ahead + 1), upsets=upsets)
            if ahead == 0:
                self._keeper.keep_now(wait)
            self._ahead = ahead
            return Seat(number=number, incarnation=incarnation, ahead=ahead)

        return self._until_done(once)

    def _add(self, incarnation: str, record: bytes, lease: _Lease, wait: WaitBudget) -> tuple[int, int] | None:
        """Return the number of the member's seat, and how many are ahead at most, or 0 where that is to be counted.

        None: the content was another than we knew.
        """
        keys = self._keys
        content, member = self._keeper.begun(wait), keys.member(incarnation)
        alive = say.put(keys.alive_of(incarnation), b"", lease.number)
        told, reads = say.touch(keys.busy), (say.get(keys.busy), say.count(keys.members))
        made = self._transact(
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
        answer = self._transact((content.born, say.made_at(member, found.made)), again, (), wait)
        if not answer.succeeded:
            return None
        self._watcher.notice_members(answer.one(-1))
        return found.made, 0

    def _take(
        self, number: int, incarnation: str, lease: _Lease, wait: WaitBudget, *, known: "_Counts | None" = None
    ) -> "_Counts | None":
        """Put a member's keys on a lease and return how many members there are, if that is not known.

        None: its seat is gone.
        """
        keys = self._keys
        puts = (
            say.put(keys.alive_of(incarnation), b"", lease.number),
            say.put(keys.seat(number), b"", lease.number),
        )
        counts: _Counts | None
        if known is None:
            counts = self._counts(number, incarnation, puts, wait)
        else:
            same = (say.made_at(keys.member(incarnation), number),)
            counts = known if self._transact(same, puts, (), wait).succeeded else None
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
        answer = self._transact(same, then, (), wait)
        if answer.succeeded:
            self._watcher.notice_members(answer.one(-1))
        return answer.succeeded

    def renew(self, seat: Seat, *, ttl_s: float, wait: WaitBudget) -> Renewal | None:
        """Make the lease end `ttl_s` from now."""
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
                counts = self._believed(seat, at)
                if not held.seated:
                    counts = self._take(seat.number, seat.incarnation, held, wait, known=counts)
                elif counts is None:
                    counts = self._counts(seat.number, seat.incarnation, (), wait)
            if counts is None:
                return None
            others = counts.live > 1
            return Renewal(ahead=counts.ahead, live=counts.live, next_expiry_s=ttl_s if others else None)

        return self._on_a_living_lease(once)

    def withdraw(self, seat: Seat, *, wait: WaitBudget) -> None:
        """Remove a member now."""
        self._leases.pop((seat.number, seat.incarnation), None)
        self._remove(seat.number, seat.incarnation, (), wait)
        if self.hosting:
            with suppress(ElasticError):  # a courtesy: what goes wrong with it is nobody's business any more
                self._linger(wait)

    def _linger(self, wait: WaitBudget) -> None:
        """Keep the run's own etcd until the others have left, for a while."""
        end_s = SYSTEM_CLOCK.monotonic_s() + _LINGER_S
        seen = Revisions()
        while (left_s := end_s - SYSTEM_CLOCK.monotonic_s()) > 0 and self.members(wait=wait).members:
            seen = self.watch(seen, {Topic.DEPARTURES}, timeout_s=left_s, wait=wait).revisions

    def members(self, *, wait: WaitBudget) -> Members:
        """Return all live members."""
        keys = self._keys
        while True:
            reads = (say.get_all(keys.members), say.get_all(keys.alive, names_only=True), say.get(keys.busy))
            answer = self._transact((), reads, (), wait)
            found = answer.found(0)
            if not self._judge(found, answer.found(1), wait):
                break
        return Members(
            revision=revision_of(answer.one(2)),
            members=tuple(
                Member(seat=one.made, incarnation=self._incarnation(one), record=say.unpack(one.value))
                for one in sorted(found, key=lambda one: one.made)
            ),
        )

    # --- who is there

    def _counts(self, number: int, incarnation: str, puts: Sequence[Json], wait: WaitBudget) -> "_Counts | None":
        """Return how many members there are, and before this one; None: its seat is gone."""
        keys, upsets = self._keys, self._watcher.upsets
        answer = self._transact(
            (say.made_at(keys.member(incarnation), number),),
            (*puts, say.count(keys.members), say.count(keys.seats), say.count(keys.seats, end=keys.seat(number))),
            (),
            wait,
        )
        if not answer.succeeded:
            return None
        members, seats, ahead = (answer.counted(at) for at in (-3, -2, -1))
        # They differ while a member comes, or is silent: then each is looked at, by those to whom it matters.
        same = members == seats or (ahead > _JUDGES and members > _MANY)
        counts = _Counts(ahead, members) if same else self._counted(number, wait)
        self._ahead = counts.ahead
        at = answer.revision if members == seats else 0
        self._count = self._counted_now(number, incarnation, counts, upsets=upsets, revision=at)
        return counts

    @staticmethod
    def _counted_now(number: int, incarnation: str, counts: "_Counts", *, upsets: int, revision: int = 0) -> "_Count":
        return _Count((number, incarnation), counts, revision, upsets, SYSTEM_CLOCK.monotonic_s())

    def _believed(self, seat: Seat, revision: int) -> "_Counts | None":
        """Return what was counted last, if it is so still: nothing was written since.

        Of many, one that is far from leading need not know at once how many have come: to it, nobody must have gone.
        """
        last = self._count
        if last is None or last.seat != (seat.number, seat.incarnation):
            return None
        now_s = SYSTEM_CLOCK.monotonic_s()
        far = last.counts.ahead > _JUDGES and last.counts.live > _MANY
        calm = self._watcher.listens and last.upsets == self._watcher.upsets and 0 <= now_s - last.at_s < _COUNT_AGAIN_S
        return last.counts if revision == last.revision or (far and calm) else None

    def _counted(self, number: int, wait: WaitBudget) -> "_Counts":
        keys = self._keys
        reads = (say.get_all(keys.members, names_only=True), say.get_all(keys.alive, names_only=True))
        answer = self._transact((), reads, (), wait)
        found = answer.found(0)
        gone = self._judge(found, answer.found(1), wait)
        live = [one.made for one in found if one.made not in gone]
        return _Counts(sum(made < number for made in live), len(live))

    def _judge(self, members: Sequence[Found], alive: Sequence[Found], wait: WaitBudget) -> set[int]:
        """Remove the members that are silent, if it is known that they are; return the numbers of their seats."""
        heard = {one.name(self._keys.alive) for one in alive}
        silent = [one for one in members if one.name(self._keys.members) not in heard]
        if not silent or not self._streak.may_judge(now_s=SYSTEM_CLOCK.monotonic_s(), ttl_s=self._ttl_s):
            return set()
        gone = set()
        for one in silent:
            incarnation = self._incarnation(one)
            still = (say.made_at(self._keys.alive_of(incarnation), 0),)
            if self._remove(one.made, incarnation, still, wait):
                gone.add(one.made)
        return gone

    def _remove(self, number: int, incarnation: str, also: Sequence[Json], wait: WaitBudget) -> bool:
        """Remove a member and tell of it, if `also` holds; return whether this call did."""
        keys = self._keys
        member, told = keys.member(incarnation), (keys.busy, keys.topic(Topic.DEPARTURES))
        same = (say.made_at(member, number), *(say.is_there(key) for key in told))
        content = (say.delete(member), say.delete(keys.alive_of(incarnation)), say.delete(keys.seat(number)))
        return self._transact((*same, *also), (*content, *(say.touch(key) for key in told)), (), wait).succeeded

    def _incarnation(self, found: Found) -> str:
        return unquote(found.name(self._keys.members).decode())

    # --- documents

    def load(self, key: str, *, wait: WaitBudget) -> Document | None:
        """Return a document as it stands."""
        prefix = self._keys.doc(key)
        return _document(self._keeper.read(prefix, prefix_end(prefix), wait).found(0), prefix)

    def swap(self, key: str, new: bytes, *, expect: str | None, keep_s: float, wait: WaitBudget) -> Swapped:
        """Replace a document if its version is `expect`."""
        prefix, version = self._keys.doc(key), os.urandom(8).hex()
        told = (say.touch(self._keys.topic(key)),) if key in _DOCUMENT_TOPICS else ()
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
            answer = self._transact(same, (value, marked, *told), (say.get_all(prefix),), wait)
            if answer.succeeded:
                return Swapped(applied=True, current=Document(value=new, version=version))
            standing = _document(answer.found(0), prefix)
            if expect != (None if standing is None else standing.version):
                return Swapped(applied=False, current=standing)
            self._keeper.forget()  # it is the content that is another
            return None

        swapped = self._until_done(once)
        if swapped.applied:
            with suppress(BackendError, WaitExpiredError):  # it is written; that it is kept for longer harms nobody
                self._keeper.keep_for(keep_s, wait)
        return swapped

    def _learned(self, prefix: bytes, wait: WaitBudget) -> Document | None:
        """Return a document as it stands, and know the content afterwards, if there is any."""
        reads = (say.get_all(self._keys.told), say.get_all(prefix))
        answer = self._transact((), reads, (), wait)
        there = self._keeper.learn({found.key: found for found in answer.found(0)})
        return _document(answer.found(1), prefix) if there else None

    # --- watching

    def watch(self, since: Revisions, topics: Collection[Topic], *, timeout_s: float, wait: WaitBudget) -> Watched:
        """Block until one of the topics has moved beyond `since`."""
        end_s = SYSTEM_CLOCK.monotonic_s() + timeout_s
        while True:
            judges = self._ahead is not None and self._ahead < _JUDGES
            self._watcher.listen(frozenset(topics), wait, judges=judges)
            seen = compare(since, self._watcher.look(wait, believe=timeout_s > 0), topics)
            left_s = wait.remaining_s(max(0.0, end_s - SYSTEM_CLOCK.monotonic_s()))
            if seen.changed or seen.reset or left_s <= 0:
                return seen
            if judges and self._watcher.take_silence():
                self._counted(0, wait)
            else:
                self._watcher.hear(left_s, wait)

    def close(self) -> None:
        """Give the connections back, and end an embedded etcd, which takes the store with it."""
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

    def _transact(self, same: Sequence[Json], then: Sequence[Json], other: Sequence[Json], wait: WaitBudget) -> Answer:
        return self._keeper.transact(same, then, other, wait)

    def _on_a_living_lease(self, once: Callable[[], _T]) -> _T:
        """Return what a call returns; where the server refused it for a lease that is over, call it once more."""
        try:
            return once()
        except LeaseGoneError:
            self._keeper.forget()
            return once()

    def _until_done(self, once: Callable[[], _T | None]) -> _T:
        """Return what a call returns that may find another content than we knew."""
        for _ in range(_TRIES):
            done = self._on_a_living_lease(once)
            if done is not None:
                return done
        raise BackendUnavailableError(f"{self.where}: somebody changes the run's content as fast as it is written")


class _Count(NamedTuple):
    """What was counted for a seat, when, and of what."""

    seat: tuple[int, str]
    counts: "_Counts"
    revision: int
    """Of the store; 0: not all who were there could be counted."""
    upsets: int
    at_s: float


class _Counts:
    """How many live members there are, and with a lower seat."""

    def __init__(self, ahead: int, live: int) -> None:
        self.ahead = ahead
        self.live = live


def _document(found: Sequence[Found], prefix: bytes) -> Document | None:
    parts = {one.name(prefix): one.value for one in found}
    if _VALUE not in parts or _VERSION not in parts:
        return None
    return Document(value=say.unpack(parts[_VALUE]), version=parts[_VERSION].decode())


def _prefix(text: str) -> str:
    """Return the prefix of all runs, between slashes."""
    return f"/{stripped}/" if (stripped := text.strip("/ ")) else DEFAULT_PREFIX
