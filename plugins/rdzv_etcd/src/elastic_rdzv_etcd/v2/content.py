"""The keys of a run on a server with etcd's v2 API, and the state read from them.

v2 changes one key atomically, never two. Each guarantee of the store therefore relies on one key's compare-and-swap,
and each reader combines the keys that belong together:

- `RUN/head`: small, read whole in each read (which is atomic: one recursive read).
  - `keep`: for how many seconds all keys are kept after the last call.
  - `seat/INCARNATION`: `COUNT NONCE`, or `COUNT NONCE gone`. The seat's number is the key's `createdIndex`: it only
    rises, and compare-and-swap does not change it. COUNT is the number of notifications about this seat: 1 when it was
    made, one more for each update and for its end.
  - `alive/NONCE`: the lease, a key with a TTL. Renewed without an event; watchers see it expire.
  - `quiet/document/KEY`: `COUNT-NONCE`, the document's version.
  - `quiet/state`: the run's birth, and the counts of removed seats.
- `RUN/since`: a stopwatch. Its TTL, of which it has the length, was set when `keep` was last set; no client extends it.
- `RUN/record/NONCE`, `RUN/body/VERSION`: the contents of members and documents, written before the keys that name them.

**A member leaves** when its seat is swapped for one that is `gone`: only this change counts, by the member itself or by
a client that may judge it (below). Any client then cleans up: the counts of gone seats are added to `state`, which
lists them as collected, and then their keys are deleted. Revisions are the sums of both, so that nothing is counted
twice or lost wherever the cleaning client dies.

**An expiry** permits a removal, but is none. The server judges the lease by its own clock and deletes `alive`. A client
that sees a seat without it removes the seat only if the client got responses all the time (`Streak`). Otherwise the
server was silent, and live members get one lease to renew. A member that finds its own lease gone writes it again, and
then its seat (the same value): a removal decided before names the older `modifiedIndex`, and fails. The removing client
has read the seat together with the missing lease, or earlier, so no successful renewal is lost.

**Keeping.** Each key has a TTL, which each reader extends if less than `keep` is left. (That of a directory would be
enough, but servers from 3.5 on can't extend it.) Empty directories stay; a client that begins a run deletes some
others.

**Watching** begins at the index of a read: on `head` for clients that read the members or judge them (the first few),
on `head/quiet` for all others, which see no update and no expiry, but every document and every removal.

**Several members** of a cluster may be behind each other. Each client reads from one, which never goes back, and with a
quorum on its first read there; every write names the state that was read.
"""

import base64
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple, Protocol
from urllib.parse import quote, unquote

from elastic_core.api.stores import Revisions, own_content

_GONE: Final = " gone"
_WRITES: Final = frozenset({"create", "set", "update", "compareAndSwap"})
DEFAULT_KEEP_S: Final = 24 * 3600.0
_LONGEST_S: Final = 1e9
"""The limit of keep times; a server counts nanoseconds in 64 bits."""


class Leaf(Protocol):
    """A key in python-etcd's form."""

    @property
    def key(self) -> str: ...  # noqa: D102
    @property
    def value(self) -> str | None: ...  # noqa: D102
    @property
    def ttl(self) -> int | None: ...  # noqa: D102
    @property
    def modifiedIndex(self) -> int: ...  # noqa: D102
    @property
    def createdIndex(self) -> int: ...  # noqa: D102


class Event(Protocol):
    """A change of a key in python-etcd's form."""

    @property
    def action(self) -> str: ...  # noqa: D102
    @property
    def key(self) -> str: ...  # noqa: D102
    @property
    def value(self) -> str | None: ...  # noqa: D102


def name(text: str) -> str:
    """Return any text as one part of a key, which paths and forms leave unchanged.

    etcd hides names that begin with `_`, and paths interpret `.`.
    """
    quoted = quote(text, safe="").replace("%", "=")
    return f"={ord(quoted[0]):02X}{quoted[1:]}" if quoted[:1] in {"_", "."} else quoted or "="


def plain(part: str) -> str:
    """Return the text from which `name` made this part."""
    return "" if part == "=" else unquote(part.replace("=", "%"))


def packed(content: bytes) -> str:
    """Return bytes in the form of a value."""
    return base64.urlsafe_b64encode(content).rstrip(b"=").decode()


def unpacked(value: str, key: str) -> bytes:
    """Return the bytes of the value of a key.

    Raises:
        BackendRefusedError: another program wrote it.
    """
    with own_content(key):
        return base64.b64decode(value + "=" * (-len(value) % 4), altchars=b"-_", validate=True)


class Paths:
    """The keys of one run."""

    def __init__(self, prefix: str, run_id: str) -> None:
        """Put the run's directory under the prefix."""
        self.prefix = f"/{prefix.strip('/')}".rstrip("/")
        self.run = f"{self.prefix}/{name(run_id)}"
        self.head = f"{self.run}/head"
        self.quiet = f"{self.head}/quiet"
        self.seats = f"{self.head}/seat"
        self.documents = f"{self.quiet}/document"
        self.leases = f"{self.head}/alive"
        self.records = f"{self.run}/record"
        self.since = f"{self.run}/since"
        self.bodies = f"{self.run}/body"
        self.state = f"{self.quiet}/state"
        self.keep = f"{self.head}/keep"

    def seat(self, incarnation: str) -> str:
        """Return where a member's seat is."""
        return f"{self.seats}/{name(incarnation)}"

    def alive(self, nonce: str) -> str:
        """Return where a member's lease is."""
        return f"{self.leases}/{nonce}"

    def record(self, nonce: str) -> str:
        """Return where a member's record is."""
        return f"{self.records}/{nonce}"

    def document(self, key: str) -> str:
        """Return where a document's version is."""
        return f"{self.documents}/{name(key)}"

    def tells(self, event: Event, *, members: bool) -> bool:
        """Return whether an event needs a read; without `members`, new members and new records don't."""
        if event.key.startswith(f"{self.leases}/"):
            return event.action == "expire"
        if not event.key.startswith(f"{self.seats}/") or event.action == "expire":
            return True
        # The swap notifies watchers of a seat's end; the later deletion of its key changes no revision.
        return (event.value or "").endswith(_GONE) or (members and event.action in _WRITES)

    def body(self, version: str) -> str:
        """Return where a document's content is."""
        return f"{self.bodies}/{version}"

    @property
    def folders(self) -> Sequence[str]:
        """All directories of the run, from the innermost on."""
        return (
            *(self.leases, self.seats, self.documents, self.quiet, self.head),
            *(self.records, self.bodies, self.run),
        )


class SeatKey(NamedTuple):
    """A member's seat as last written. `modified` is the index for a compare-and-swap."""

    number: int
    modified: int
    told: int
    nonce: str
    gone: bool

    @property
    def value(self) -> str:
        """Return its value as written."""
        return _seat_value(self.told, self.nonce, gone=self.gone)

    def counted(self, *, gone: bool = False) -> str:
        """Return its value after a change that is notified to watchers."""
        return _seat_value(self.told + 1, self.nonce, gone=gone)


def new_seat(nonce: str) -> str:
    """Return the value of a new seat."""
    return _seat_value(1, nonce, gone=False)


def seat_key(leaf: Leaf) -> SeatKey:
    """Read a seat.

    Raises:
        BackendRefusedError: another program wrote it.
    """
    with own_content(leaf.key):
        count, nonce, *rest = (leaf.value or "").split(" ")
        if rest not in ([], ["gone"]):
            raise ValueError(rest)
        return SeatKey(
            number=leaf.createdIndex, modified=leaf.modifiedIndex, told=int(count), nonce=nonce, gone=bool(rest)
        )


def _seat_value(count: int, nonce: str, *, gone: bool) -> str:
    return f"{count} {nonce}{_GONE * gone}"


class State(NamedTuple):
    """The run's state beside its seats: its birth, and the counts of collected seats."""

    birth: str
    members: int = 0
    departures: int = 0
    collected: tuple[int, ...] = ()
    modified: int = 0

    @property
    def value(self) -> str:
        """Return its value as written."""
        return json.dumps([self.birth, self.members, self.departures, self.collected])


class Content:
    """The content of one read. Without a state there is none, except remains of a deletion by hand."""

    def __init__(self, paths: Paths, leaves: Iterable[Leaf], *, index: int) -> None:
        """Sort the keys. `index` is the server's at the read.

        Raises:
            BackendRefusedError: another program wrote one.
        """
        self.index = index
        self.state: State | None = None
        self.keep_s = DEFAULT_KEEP_S
        self.seats: dict[str, SeatKey] = {}
        """By the last part of their keys: `name(incarnation)`."""
        self.alive: dict[str, Leaf] = {}
        self.versions: dict[str, str] = {}
        """By the last part of their keys: `name(key)`."""
        self._fading: list[tuple[float, tuple[str, ...]]] = []
        for leaf in leaves:
            self._take(paths, leaf)
        self.leftover = self.state is None and bool(self.seats or self.versions)
        if self.state is None:
            self.seats, self.versions = {}, {}

    def _take(self, paths: Paths, leaf: Leaf) -> None:
        folder, _, last = leaf.key.rpartition("/")
        names: tuple[str, ...] = ()  # the contents that are kept with it
        if folder == paths.leases:
            self.alive[last] = leaf
            return
        if leaf.key == paths.state:
            self.state = _state(leaf)
        elif leaf.key == paths.keep:
            self.keep_s = seconds(leaf)
        elif folder == paths.seats:
            self.seats[last] = seat = seat_key(leaf)
            names = (paths.record(seat.nonce),)
        elif folder == paths.documents:
            self.versions[last] = version = version_of(leaf)
            names = (paths.body(version),)
        self._fading.append((float(leaf.ttl or 0), (*names, leaf.key)))

    def fading(self, keep_s: float) -> Sequence[tuple[str, ...]]:
        """Return the keys with less time left than `keep_s`, earliest end first, each with the keys that it names."""
        return [keys for left_s, keys in sorted(self._fading) if left_s < keep_s]

    @property
    def standing(self) -> Mapping[str, SeatKey]:
        """The seats of members, in order, also those with an expired lease until a client removes them."""
        here = ((key, seat) for key, seat in self.seats.items() if not seat.gone)
        return dict(sorted(here, key=lambda item: item[1].number))

    @property
    def silent(self) -> Mapping[str, SeatKey]:
        """The seats of members without a lease."""
        return {key: seat for key, seat in self.standing.items() if seat.nonce not in self.alive}

    @property
    def gone(self) -> Mapping[str, SeatKey]:
        """The seats that wait for the cleanup."""
        return {key: seat for key, seat in self.seats.items() if seat.gone}

    def ahead(self, number: int) -> int:
        """Return how many members have a lower seat."""
        return sum(seat.number < number for seat in self.standing.values())

    def speaking_before(self, number: int) -> int:
        """Return how many members with a lease have a lower seat."""
        return sum(seat.number < number and seat.nonce in self.alive for seat in self.standing.values())

    @property
    def revisions(self) -> Revisions:
        """The revision of each topic."""
        if self.state is None:
            return Revisions()
        collected = frozenset(self.state.collected)
        counting = [seat for seat in self.seats.values() if seat.number not in collected]
        return Revisions(
            birth=self.state.birth,
            members=self.state.members + sum(seat.told for seat in counting),
            departures=self.state.departures + sum(seat.gone for seat in counting),
            round=count_of(self.versions.get("round")),
            control=count_of(self.versions.get("control")),
        )

    def collecting(self) -> State | None:
        """Return the state in which all gone seats are collected. `None` if it is already so."""
        assert self.state is not None
        before, gone = frozenset(self.state.collected), self.gone.values()
        new = [seat for seat in gone if seat.number not in before]
        if not new:
            return None
        return State(
            birth=self.state.birth,
            members=self.state.members + sum(seat.told for seat in new),
            departures=self.state.departures + len(new),
            collected=tuple(sorted(seat.number for seat in gone)),  # a key that is deleted never comes back
            modified=self.state.modified,
        )


def count_of(version: str | None) -> int:
    """Return how often a document was replaced, by its version; 0 if there is none."""
    if version is None:
        return 0
    return int(version.partition("-")[0])


def version_of(leaf: Leaf) -> str:
    """Read the version of a document.

    Raises:
        BackendRefusedError: another program wrote it.
    """
    with own_content(leaf.key):
        count, nonce = (leaf.value or "").split("-")
        return f"{int(count)}-{nonce}"


def _state(leaf: Leaf) -> State:
    with own_content(leaf.key):
        birth, members, departures, collected = json.loads(leaf.value or "")
        return State(
            birth=str(birth),
            members=int(members),
            departures=int(departures),
            collected=tuple(map(int, collected)),
            modified=leaf.modifiedIndex,
        )


def seconds(leaf: Leaf) -> float:
    """Read a time: that of `keep`, `since` or a lease.

    Raises:
        BackendRefusedError: another program wrote it.
    """
    with own_content(leaf.key):
        number = float(leaf.value or "")
        if not 0 < number <= _LONGEST_S:
            raise ValueError(number)
        return number
