"""Torch's `get_state` and `set_state` as a `CoordinationStore`: all content of a run in one value.

**Leases.** Such a backend has no clock, and clocks of hosts are not compared. Each member therefore has a *beat*, which
every renewal increases. Each client measures on its own monotonic clock for how long a member's beat has not changed.
After a whole lease without a change, the client removes the member; a concurrent renewal makes that compare-and-swap
fail. A client judges only times in which it has read without a gap. After a gap of its own, or a time in which no
member's beat changed, it measures anew, since the client or the backend was silent then.

**Cost.** A renewal replaces the whole value, and a watch reads it `1 / poll_s` times a second. This is fine for some
tens of nodes, as with torch's own rendezvous. A server with more features should get its own `CoordinationStore`.

**Content** is JSON and is never unpickled.
"""

import os
import random
from collections.abc import Callable, Collection, Mapping
from typing import ClassVar, Final, NamedTuple, Protocol, TypeVar

import msgspec

from elastic_core.api import (
    API_VERSION,
    SYSTEM_CLOCK,
    Clock,
    CoordinationStore,
    ElasticError,
    RendezvousSettings,
    WaitBudget,
    decode_json,
)
from elastic_core.api.stores import (
    CONTROL_KEY,
    ROUND_KEY,
    BackendError,
    BackendRefusedError,
    BackendUnavailableError,
    Document,
    Member,
    Members,
    OutcomeUnknownError,
    Renewal,
    Revisions,
    Seat,
    Survey,
    Swapped,
    Topic,
    Watched,
    compare,
)
from elastic_torchrun.rendezvous.blocking_calls import Asker
from elastic_torchrun.rendezvous.state_backend import Token

FORMAT: Final = "elastic-state-1"
DEFAULT_KEEP_S: Final = 24 * 3600.0
_TRIES: Final = 64
"""How often a change is retried after conflicts with others' changes."""
BACKOFF_OPTION: Final = "cas_backoff_max_seconds"
"""Torch's option: the longest random pause before such a retry. 0 means elastic-core's pauses, which grow."""
_PAUSE_S: Final = 0.02
_LONGEST_PAUSE_S: Final = 0.2
_PAUSE_SHARE: Final = 2 / 3
"""The share of a lease without any seen change, after which no member is judged."""

T = TypeVar("T")


class _Backend(Protocol):
    """The methods of a backend that are used, torch's or elastic-core's."""

    @property
    def name(self) -> str: ...  # as in RendezvousBackend

    def get_state(self) -> tuple[bytes, Token] | None: ...  # as above

    def set_state(self, state: bytes, token: Token | None = None) -> tuple[bytes, Token, bool] | None: ...  # as above


class _Seat(msgspec.Struct):
    number: int
    record: bytes
    ttl_s: float
    beat: int = 0


class _Content(msgspec.Struct):
    """The content of a run; members by incarnation, in order of their seats."""

    format: str = FORMAT
    revisions: Revisions = Revisions()
    seats: dict[str, _Seat] = {}
    last_seat: int = 0
    documents: dict[str, Document] = {}
    last_version: int = 0
    keep_s: float = DEFAULT_KEEP_S

    def move(self, *topics: str) -> None:
        """Increase revisions. The first change sets the content's birth."""
        raised = {topic: getattr(self.revisions, topic) + 1 for topic in topics}
        birth = self.revisions.birth or os.urandom(8).hex()
        self.revisions = msgspec.structs.replace(self.revisions, birth=birth, **raised)

    def has(self, seat: Seat) -> bool:
        """Return whether a seat is taken; number and incarnation must both match."""
        return seat.incarnation in self.seats and self.seats[seat.incarnation].number == seat.number

    def remove(self, *incarnations: str) -> None:
        """Remove members, and notify watchers."""
        for incarnation in incarnations:
            del self.seats[incarnation]
        if incarnations:
            self.move(Topic.MEMBERS, Topic.DEPARTURES)

    def ahead(self, number: int) -> int:
        """Return the number of members with a lower seat."""
        return sum(seat.number < number for seat in self.seats.values())


class _Seen(NamedTuple):
    """A member's beat, since when this client has seen it unchanged, and whether it has ever seen it change."""

    number: int
    beat: int
    since_s: float
    moved: bool


class _Attendance:
    """Measures how long members have been silent, on this client's clock."""

    def __init__(self) -> None:
        self._seen: dict[str, _Seen] = {}
        self._looked_s = float("-inf")
        self._heard_s = float("-inf")

    def look(self, seats: Mapping[str, _Seat], now_s: float) -> None:
        """Record the current beats."""
        gap_s, quiet_s = now_s - self._looked_s, now_s - self._heard_s
        seen: dict[str, _Seen] = {}
        for incarnation, seat in seats.items():
            known = self._seen.get(incarnation)
            moved = known is None or known[:2] != (seat.number, seat.beat)
            if moved:
                self._heard_s = now_s
            patient = _PAUSE_SHARE * seat.ttl_s
            watched = 0 <= gap_s < patient and 0 <= quiet_s < patient  # below zero: the clock went back
            keeps = known is not None and watched and not moved
            ever = known is not None and known.number == seat.number and (known.moved or moved)
            seen[incarnation] = known if keeps and known else _Seen(seat.number, seat.beat, now_s, ever)
        self._seen, self._looked_s = seen, now_s

    @property
    def unproven(self) -> frozenset[str]:
        """The members that this client has never seen change: they may have died days ago."""
        return frozenset(incarnation for incarnation, seen in self._seen.items() if not seen.moved)

    def left_s(self, incarnation: str, seat: _Seat, now_s: float) -> float:
        """Return how long a member may still be silent."""
        return seat.ttl_s - (now_s - self._seen[incarnation].since_s)


class StateStore(CoordinationStore):
    """Keeps a run in the one value of a `RendezvousBackend`.

    Args:
        settings: The run's.
        backend: Keeps the value: elastic-core's, or one written for torch.
        clock: This client's clock, by which silence is measured.
        poll_s: Seconds between two reads of a watch.
    """

    api_version: ClassVar[int] = API_VERSION

    def __init__(
        self, settings: RendezvousSettings, *, backend: _Backend, clock: Clock = SYSTEM_CLOCK, poll_s: float = 0.1
    ) -> None:
        """Send no request yet."""
        super().__init__(settings)
        self.hosted_by_member = bool(getattr(backend, "hosted_by_member", False))
        self._backend = backend
        self._clock = clock
        self._poll_s = poll_s
        self._backoff_s = float(settings.options.get(BACKOFF_OPTION) or 0.0)
        self._asker = Asker("elastic-state")
        self._attendance = _Attendance()
        self._raw = b""
        self._raw_since_s = 0.0

    @property
    def where(self) -> str:
        """Return the backend's name, and the endpoint."""
        place = self.settings.endpoint.rpartition("@")[2]
        return f"{self._backend.name} at {place}" if place else self._backend.name

    @property
    def hosting(self) -> bool:
        """Whether this process hosts the value for all nodes."""
        return bool(getattr(self._backend, "hosting", False))

    def connect(self, *, wait: WaitBudget) -> str:
        """Read the value once. Such a backend knows no address."""
        self._look(wait)
        return ""

    def close(self) -> None:
        """Let the thread of the calls end."""
        self._asker.close()

    # --- members

    def enlist(self, record: bytes, *, incarnation: str, ttl_s: float, wait: WaitBudget) -> Seat:
        """Give a member the next seat, or the seat that it has."""

        def act(content: _Content, now_s: float) -> Seat:
            self._expire(content, now_s)
            seat = content.seats.get(incarnation)
            if seat is None:
                content.last_seat += 1
                seat = content.seats[incarnation] = _Seat(content.last_seat, record, ttl_s)
            seat.record, seat.ttl_s, seat.beat = record, ttl_s, seat.beat + 1
            content.move(Topic.MEMBERS)
            return Seat(number=seat.number, incarnation=incarnation, ahead=content.ahead(seat.number))

        return self._change(act, wait)

    def update(self, seat: Seat, record: bytes, *, wait: WaitBudget) -> bool:
        """Replace the record of a member."""

        def act(content: _Content, _: float) -> bool:
            if not content.has(seat):
                return False
            content.seats[seat.incarnation].record = record
            content.move(Topic.MEMBERS)
            return True

        return self._change(act, wait)

    def renew(self, seat: Seat, *, ttl_s: float, wait: WaitBudget) -> Renewal | None:
        """Increase a member's beat, and remove those that were silent for a lease."""

        def act(content: _Content, now_s: float) -> Renewal | None:
            if content.has(seat):
                mine = content.seats[seat.incarnation]
                mine.ttl_s, mine.beat = ttl_s, mine.beat + 1
            self._expire(content, now_s, but=seat.incarnation)
            if not content.has(seat):
                return None
            others = [
                self._attendance.left_s(incarnation, other, now_s)
                for incarnation, other in content.seats.items()
                if incarnation != seat.incarnation
            ]
            return Renewal(
                ahead=content.ahead(seat.number), live=len(content.seats), next_expiry_s=min(others, default=None)
            )

        return self._change(act, wait)

    def withdraw(self, seat: Seat, *, wait: WaitBudget) -> None:
        """Remove a member. The host of the value then waits until the others have left."""

        def act(content: _Content, _: float) -> None:
            if content.has(seat):
                content.remove(seat.incarnation)

        self._change(act, wait)
        while self.hosting and (content := self._look(wait)[0]) is not None and content.seats:
            wait.sleep(self._poll_s)

    def members(self, *, wait: WaitBudget) -> Members:
        """Return the live members."""

        def act(content: _Content, now_s: float) -> Members:
            self._expire(content, now_s)
            live = tuple(
                Member(seat=seat.number, incarnation=incarnation, record=seat.record)
                for incarnation, seat in content.seats.items()
            )
            return Members(revision=content.revisions.members, members=live)

        return self._change(act, wait)

    def survey(self, keys: Collection[str], *, wait: WaitBudget) -> Survey:
        """Return members, those with an expired lease as far as this client knows, and documents. Removes no member."""
        content = self._look(wait)[0] or _Content()
        now_s, left = self._clock.monotonic_s(), self._attendance.left_s
        return Survey(
            members=tuple(
                Member(seat=seat.number, incarnation=incarnation, record=seat.record)
                for incarnation, seat in content.seats.items()
            ),
            silent=frozenset(name for name, seat in content.seats.items() if left(name, seat, now_s) <= 0),
            unproven=self._attendance.unproven,
            documents={key: content.documents[key].value for key in keys if key in content.documents},
        )

    def _expire(self, content: _Content, now_s: float, *, but: str = "") -> None:
        """Remove silent members, except `but`, which is making this call."""
        left = self._attendance.left_s
        content.remove(*(name for name, seat in content.seats.items() if name != but and left(name, seat, now_s) <= 0))

    # --- documents

    def load(self, key: str, *, wait: WaitBudget) -> Document | None:
        """Return a document."""
        content, _ = self._look(wait)
        return None if content is None else content.documents.get(key)

    def swap(self, key: str, new: bytes, *, expect: str | None, keep_s: float, wait: WaitBudget) -> Swapped:
        """Replace a document if it is the one that the caller knows."""

        def act(content: _Content, _: float) -> Swapped:
            standing = content.documents.get(key)
            if (None if standing is None else standing.version) != expect:
                return Swapped(applied=False, current=standing)
            content.move(*({key} & {ROUND_KEY, CONTROL_KEY}))
            content.last_version += 1
            content.keep_s = keep_s
            made = Document(value=new, version=f"{content.revisions.birth}-{content.last_version}")
            content.documents[key] = made
            return Swapped(applied=True, current=made)

        return self._change(act, wait)

    def watch(self, since: Revisions, topics: Collection[Topic], *, timeout_s: float, wait: WaitBudget) -> Watched:
        """Read again until something changes."""
        end = WaitBudget.lasting(timeout_s)
        while True:
            content, _ = self._look(wait)
            seen = compare(since, Revisions() if content is None else content.revisions, topics)
            if seen.changed or seen.reset or end.remaining_s() <= 0:
                return seen
            wait.sleep(end.remaining_s(self._poll_s))

    # --- the value

    def _change(self, act: Callable[[_Content, float], T], wait: WaitBudget) -> T:
        """Apply `act` to the content, and write the content if it changed."""
        for attempt in range(_TRIES):
            content, token = self._look(wait)
            content = content or _Content()
            before = msgspec.json.encode(content)
            result = act(content, self._clock.monotonic_s())
            after = msgspec.json.encode(content)
            if after == before or self._write(after, token, wait):
                return result
            longest_s = self._backoff_s or min(_PAUSE_S * (1 + attempt), _LONGEST_PAUSE_S)
            wait.sleep(random.uniform(0, longest_s))  # so that not all try again at once
        raise BackendUnavailableError(f"{self.where}: others change the run as fast as it can be read")

    def _look(self, wait: WaitBudget) -> tuple[_Content | None, Token | None]:
        """Return the content (`None` if there is none) and the token of the value from which it was read."""
        found = self._ask(self._backend.get_state, wait)
        raw, token = (b"", None) if found is None else found
        return self._take(bytes(raw)), token

    def _take(self, raw: bytes) -> _Content | None:
        now_s = self._clock.monotonic_s()
        if raw != self._raw:
            self._raw, self._raw_since_s = raw, now_s
        content = self._decode(raw) if raw else None
        if content is not None and now_s - self._raw_since_s >= content.keep_s:
            content = None  # no member was alive for all that time: it is the rest of an ended run
        self._attendance.look({} if content is None else content.seats, now_s)
        return content

    def _write(self, raw: bytes, token: Token | None, wait: WaitBudget) -> bool:
        """Replace the value. Return false if it has changed meanwhile."""
        answer = self._ask(lambda: self._backend.set_state(raw, token), wait, writes=True)
        if answer is None:
            found = self._ask(self._backend.get_state, wait)
            return found is not None and bytes(found[0]) == raw
        state, _, applied = answer
        applied = applied or bytes(state) == raw
        if applied:
            self._take(raw)
        return applied

    def _decode(self, raw: bytes) -> _Content:
        try:
            content = decode_json(raw, _Content)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise self._foreign() from error
        if content.format != FORMAT:
            raise self._foreign()
        return content

    def _foreign(self) -> BackendRefusedError:
        return BackendRefusedError(
            f"{self.where}: the state of run {self.settings.run_id!r} is not what this version writes",
            hint="another run id; agents of torchrun and of elastic can't meet in one state",
        )

    def _ask(self, call: Callable[[], T], wait: WaitBudget, *, writes: bool = False) -> T:
        try:
            return self._asker.ask(call, wait=wait, writes=writes)
        except BackendError as error:
            raise type(error)(f"{self.where}: {error.what}", hint=error.hint) from error
        except ElasticError as error:
            if not _is_named(error, "RendezvousError"):
                raise  # of the wait
            raise self._translated(error, writes=writes) from error
        except Exception as error:
            raise self._translated(error, writes=writes) from error

    def _translated(self, error: Exception, *, writes: bool) -> BackendError:
        """Return elastic-core's error for an error of torch, or of the backend's client."""
        cause = error.__cause__ if isinstance(error.__cause__, Exception) else None
        told = " ".join(str(cause or error).split("\n", 1)[0].split())
        what = f"{self.where}: {type(cause or error).__name__}: {told}"
        trouble = isinstance(error, (OSError, RuntimeError)) or _is_named(error, "RendezvousConnectionError")
        if not trouble:
            return BackendRefusedError(what, hint="report it to the backend's authors")
        return OutcomeUnknownError(what) if writes else BackendUnavailableError(what)


def _is_named(error: Exception, name: str) -> bool:
    """Return whether an error is of a class of this name, torch's or elastic-core's, without an import of torch."""
    return any(cls.__name__ == name for cls in type(error).__mro__)
