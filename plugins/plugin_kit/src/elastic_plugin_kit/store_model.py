"""The content of a `CoordinationStore` for one run: the contract as a pure value, with the time as an argument."""

import hashlib
import math
from collections.abc import Collection
from typing import Final, Self

import msgspec

from elastic_core.api.stores import Document, Member, Members, Renewal, Revisions, Seat, Survey, Swapped, Topic

PAUSE_SHARE: Final = 2 / 3
"""The silence of all members, as a share of a lease, that is blamed on the server: `enlist` and `renew` spare them."""


class _Lease(msgspec.Struct):
    """A seat that is taken, and until when."""

    incarnation: str
    record: bytes
    deadline_s: float


class StoreModel(msgspec.Struct):
    """The content of one run and its rules, without server, thread, clock or chance.

    Each method is one atomic request, as a server would carry it out at `now_s` of its own clock, and means what
    `CoordinationStore` says; a time that went back is taken as it comes. Content is made by the first `enlist` or
    `swap`, and forgotten `keep_s` after the last request. Expiry is lazy: only requests about members (and `expire`)
    notice it. `load` and `revisions` only look.

    It is a record: it can be compared, copied, and written down by msgspec.
    """

    _births: str
    """A random text. Content that is made later, after an expiry of everything, derives its own from it."""
    _generation: int = 0
    _birth: str = ""
    _revisions: dict[Topic, int] = msgspec.field(default_factory=lambda: dict.fromkeys(Topic, 0))
    _leases: dict[int, _Lease] = msgspec.field(default_factory=dict)
    """By seat, in order: numbers only rise."""
    _documents: dict[str, Document] = msgspec.field(default_factory=dict)
    _last_seat: int = 0
    _last_version: int = 0
    _earliest_s: float = math.inf
    """No lease ends before; may be too early, so that most requests need no scan."""
    _heard_s: float | None = None
    """When a member last called."""
    _ttl_s: float = 0.0
    """The lease that it asked for."""
    _asked_s: float = -math.inf
    """When the last request came."""
    _keep_s: float | None = None
    _kept_s: float | None = None
    """When that last changed."""

    def empty(self, birth: str) -> None:
        """Forget everything, as a server does that was started again without its data."""
        self._births = birth
        self._generation = 0
        self._forget()

    def copy(self) -> Self:
        """Return a copy that lives on its own: the past that a failover goes back to."""
        return msgspec.msgpack.decode(msgspec.msgpack.encode(self), type=type(self))

    # --- members ---

    def enlist(self, record: bytes, *, incarnation: str, ttl_s: float, now_s: float) -> Seat:
        """Give a new member the next seat; one that is there already keeps its seat, with a new record and lease.

        After a pause every lease is extended first, as by a renewal: the first request may be that of a new member.
        """
        self._begin(now_s)
        self._make()
        if self._paused(ttl_s, now_s):
            self._spare(ttl_s, now_s)
        self._drop_expired(now_s)
        self._heard_s, self._ttl_s = now_s, ttl_s
        number = next((n for n, lease in self._leases.items() if lease.incarnation == incarnation), None)
        if number is None:
            self._last_seat += 1
            number = self._last_seat
        self._leases[number] = _Lease(incarnation, record, now_s + ttl_s)
        self._earliest_s = min(self._earliest_s, now_s + ttl_s)
        self._move(Topic.MEMBERS)
        return Seat(number=number, incarnation=incarnation, ahead=self._ahead(number))

    def update(self, seat: Seat, record: bytes, *, now_s: float) -> bool:
        """Replace the record of a live seat.

        Other members' leases are not judged, and a pause goes on: only `enlist` and `renew` end it, after they have
        extended every lease.
        """
        self._begin(now_s)
        lease = self._lease(seat)
        if lease is None:
            return False
        if lease.deadline_s <= now_s:
            self._remove(seat)
            return False
        if not self._paused(self._ttl_s, now_s):
            self._heard_s = now_s
        lease.record = record
        self._move(Topic.MEMBERS)
        return True

    def renew(self, seat: Seat, *, ttl_s: float, now_s: float) -> Renewal | None:
        """Extend a lease; after a pause, first every lease.

        A seat that is gone neither extends any (it could keep dead members alive by asking again) nor ends a pause.
        """
        self._begin(now_s)
        lease, pause = self._lease(seat), self._paused(ttl_s, now_s)
        if lease is not None and pause:
            self._spare(ttl_s, now_s)
        if lease is not None or not pause:
            self._drop_expired(now_s)
        if lease is None or self._lease(seat) is None:
            return None
        self._heard_s, self._ttl_s = now_s, ttl_s
        lease.deadline_s = now_s + ttl_s
        self._earliest_s = min(self._earliest_s, lease.deadline_s)
        others = [other.deadline_s for other in self._leases.values() if other is not lease]
        return Renewal(
            ahead=self._ahead(seat.number),
            live=len(self._leases),
            next_expiry_s=min(others) - now_s if others else None,
        )

    def withdraw(self, seat: Seat, *, now_s: float) -> None:
        """Remove a member, if the seat is still this incarnation's."""
        self._begin(now_s)
        if self._lease(seat) is not None:
            self._remove(seat)

    def members(self, *, now_s: float) -> Members:
        """Return the live members in order of their seats."""
        self._begin(now_s)
        self._drop_expired(now_s)
        live = tuple(
            Member(seat=number, incarnation=lease.incarnation, record=lease.record)
            for number, lease in self._leases.items()
        )
        return Members(revision=self._revisions[Topic.MEMBERS], members=live)

    def survey(self, keys: Collection[str], *, now_s: float) -> Survey:
        """Return who has a seat, whose lease has ended, and documents; changes nothing."""
        if self._outlived(now_s):
            return Survey(members=())
        return Survey(
            members=tuple(
                Member(seat=number, incarnation=lease.incarnation, record=lease.record)
                for number, lease in self._leases.items()
            ),
            silent=frozenset(lease.incarnation for lease in self._leases.values() if lease.deadline_s <= now_s),
            documents={key: self._documents[key].value for key in keys if key in self._documents},
        )

    def expire(self, *, now_s: float) -> None:
        """Remove expired members, as a server does without a request; this counts as no member's call."""
        self._drop_expired(now_s)

    # --- documents ---

    def load(self, key: str, *, now_s: float) -> Document | None:
        """Return a document."""
        self._begin(now_s)
        return self._documents.get(key)

    def swap(self, key: str, new: bytes, *, expect: str | None, keep_s: float, now_s: float) -> Swapped:
        """Replace a document if it is the expected one."""
        self._begin(now_s)
        current = self._documents.get(key)
        if (None if current is None else current.version) != expect:
            return Swapped(applied=False, current=current)
        self._make()
        if keep_s != self._keep_s:
            self._keep_s, self._kept_s = keep_s, now_s
        replaced = Document(value=new, version=self._new_version(new))
        self._documents[key] = replaced
        if key in {Topic.ROUND, Topic.CONTROL}:
            self._move(Topic(key))
        return Swapped(applied=True, current=replaced)

    def keep_age_s(self, *, now_s: float) -> float | None:
        """Return how long ago a swap has changed how long content is kept."""
        return None if self._kept_s is None or self._outlived(now_s) else max(0.0, now_s - self._kept_s)

    # --- revisions ---

    def revisions(self, *, now_s: float) -> Revisions:
        """Return how far each topic is, by what was noticed so far; all zero and no birth where there is no content."""
        if self._outlived(now_s):
            return Revisions()
        return Revisions(birth=self._birth, **{topic.value: count for topic, count in self._revisions.items()})

    @property
    def earliest_deadline_s(self) -> float | None:
        """When the first of the present leases ends, by the server's clock; None: there are none."""
        return min((lease.deadline_s for lease in self._leases.values()), default=None)

    # --- behind them ---

    def _forget(self) -> None:
        fresh = StoreModel(self._births, self._generation)
        for name in self.__struct_fields__:
            setattr(self, name, getattr(fresh, name))

    def _make(self) -> None:
        if not self._birth:
            self._generation += 1
            self._birth = self._births if self._generation == 1 else f"{self._births}.{self._generation}"

    def _outlived(self, now_s: float) -> bool:
        return self._keep_s is not None and now_s >= self._asked_s + self._keep_s

    def _begin(self, now_s: float) -> None:
        if self._outlived(now_s):
            self._forget()
        self._asked_s = now_s

    def _move(self, *topics: Topic) -> None:
        for topic in topics:
            self._revisions[topic] += 1

    def _drop_expired(self, now_s: float) -> None:
        if now_s < self._earliest_s:
            return
        live = {number: lease for number, lease in self._leases.items() if lease.deadline_s > now_s}
        if len(live) < len(self._leases):
            self._leases = live
            self._move(Topic.MEMBERS, Topic.DEPARTURES)
        self._earliest_s = min((lease.deadline_s for lease in live.values()), default=math.inf)

    def _paused(self, ttl_s: float, now_s: float) -> bool:
        return self._heard_s is not None and now_s - self._heard_s >= PAUSE_SHARE * ttl_s

    def _spare(self, ttl_s: float, now_s: float) -> None:
        for lease in self._leases.values():
            lease.deadline_s = max(lease.deadline_s, now_s + ttl_s)

    def _remove(self, seat: Seat) -> None:
        del self._leases[seat.number]
        self._move(Topic.MEMBERS, Topic.DEPARTURES)

    def _lease(self, seat: Seat) -> _Lease | None:
        lease = self._leases.get(seat.number)
        return lease if lease is not None and lease.incarnation == seat.incarnation else None

    def _ahead(self, number: int) -> int:
        return sum(1 for other in self._leases if other < number)

    def _new_version(self, content: bytes) -> str:
        """Return one that no other content has, not even the one that a server which went back in time had lost."""
        self._last_version += 1
        return f"{self._birth}-{self._last_version}-{hashlib.blake2b(content, digest_size=8).hexdigest()}"
