"""The interface for key-value servers: what a server must offer so that the core's rendezvous can run on it.

The content of a run in a store has three parts. *Members* are leased seats in order of arrival, each with a record of
bytes. A few small *documents* are replaced only by compare-and-swap. A *revision* for each topic lets watchers find
changes. The core has the protocol (`machine`); a store only keeps these promises. The kit
`elastic_plugin_kit.CoordinationStoreConformance` checks each of them.
"""

import enum
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import ClassVar, Final

from elastic_core.errors import BackendRefusedError
from elastic_core.option_spec import OptionSpec
from elastic_core.system.clock import WaitBudget
from elastic_core.types import Record, RendezvousSettings

ROUND_KEY = "round"
CONTROL_KEY = "control"


class Topic(enum.StrEnum):
    """The topics that a watcher can wait for."""

    MEMBERS = "members"
    """A member enlisted, updated its record, withdrew or expired."""
    DEPARTURES = "departures"
    """A member withdrew or expired."""
    ROUND = ROUND_KEY
    """The document with that key was replaced."""
    CONTROL = CONTROL_KEY
    """The document with that key was replaced."""


class Seat(Record, frozen=True, kw_only=True):
    """A member's place in the order of arrival. Number and incarnation together identify it."""

    number: int
    """The place in the order of arrival; never assigned twice."""
    incarnation: str
    """The member's incarnation."""
    ahead: int
    """How many live members had a lower number when the store returned it; 0 means that this member leads."""


class Member(Record, frozen=True, kw_only=True):
    """One live member as the store returns it."""

    seat: int
    """The seat's number; members that arrived earlier have lower numbers."""
    incarnation: str
    """The process of the node: a restarted agent has a new incarnation."""
    record: bytes
    """The record that the member wrote; the store does not read it."""


class Members(Record, frozen=True, kw_only=True):
    """All live members in order of their seats, with the revision of `Topic.MEMBERS` to which the list belongs."""

    revision: int
    """The revision of the topic `members`."""
    members: tuple[Member, ...]
    """The live members, in the order of their seats."""


class Survey(Record, frozen=True, kw_only=True):
    """The content of a run as an observer without a seat reads it."""

    members: tuple[Member, ...]
    """The members that have a seat, in order, expired ones included."""
    silent: frozenset[str] = frozenset()
    """Incarnations with an expired lease."""
    unproven: frozenset[str] = frozenset()
    """Incarnations that this client has not watched long enough to decide whether their lease has expired."""
    documents: Mapping[str, bytes] = {}
    """Contents by key; documents that do not exist are left out."""


class Renewal(Record, frozen=True, kw_only=True):
    """The result of a lease renewal."""

    ahead: int
    """The number of live members with a lower seat; 0 means that this member leads."""
    live: int
    """The number of live members."""
    next_expiry_s: float | None
    """Seconds until the earliest lease of another member ends, by the store's clock; `None` if there is no other
    member. A store that `announces_expiry` may return `ttl_s` for any other member."""


class Document(Record, frozen=True, kw_only=True):
    """A document as the store holds it. Only `swap` uses `version`."""

    value: bytes
    """The content as the last `swap` wrote it."""
    version: str
    """The version of this content; no other content ever has it."""


class Swapped(Record, frozen=True, kw_only=True):
    """The result of a swap."""

    applied: bool
    """Whether the new content was written."""
    current: Document | None
    """The new document if the swap was applied, else the unchanged old one; `None` if there is none."""


class Revisions(Record, frozen=True, kw_only=True):
    """The revision of each topic."""

    birth: str = ""
    """A random text, created with the content, that identifies it; empty if there is no content."""
    members: int = 0
    """How often a member joined, left or changed its record."""
    departures: int = 0
    """How often a member left."""
    round: int = 0
    """How often the round document changed."""
    control: int = 0
    """How often the control document changed."""

    def of(self, topic: Topic) -> int:
        """Return one topic's revision."""
        return int(getattr(self, topic))


class Watched(Record, frozen=True, kw_only=True):
    """The result of `watch`."""

    revisions: Revisions
    """The current revision of each topic."""
    changed: frozenset[Topic]
    """The requested topics with a higher revision; all of them after a reset."""
    reset: bool = False
    """Whether the content is not that of `since` (the store was emptied), or is older (a failover lost writes): the
    caller must then read everything again."""


def compare(since: Revisions, now: Revisions, topics: Collection[Topic]) -> Watched:
    """Return the result of a watch that began at `since`, if the revisions are `now`."""
    if now == since:  # as in each wait of an idle run
        return Watched(revisions=now, changed=frozenset())
    back = any(now.of(topic) < since.of(topic) for topic in Topic)
    reset = bool(since.birth) and (now.birth != since.birth or back)
    changed = frozenset(topic for topic in topics if reset or now.of(topic) > since.of(topic))
    return Watched(revisions=now, changed=changed, reset=reset)


UNREADABLE: Final = (ValueError, TypeError, LookupError, ArithmeticError, RecursionError)
"""The errors that Python raises when it parses text that is not the expected number, JSON, UTF-8 or structure."""


@contextmanager
def own_content(key: str | bytes, errors: tuple[type[Exception], ...] = UNREADABLE) -> Iterator[None]:
    """Return a context manager for reading a key of a run; content that can't be parsed came from another program.

    Args:
        key: The server's key.
        errors: The errors that mean unreadable content.

    Raises:
        BackendRefusedError: reading raised one of these errors; the message names the key.
    """
    try:
        yield
    except errors as error:
        shown = key if isinstance(key, str) else key.decode(errors="replace")
        raise BackendRefusedError(
            f"the run's content has something that this version did not write, at key {shown!r}",
            hint="another --rdzv-id",
        ) from error


class CoordinationStore(ABC):
    """A client of one server for one run. Subclass it and register the class under `elastic_core.rendezvous`.

    elastic-core creates it once per run as `cls(settings)`. The constructor makes no connection and imports no client
    library; `connect` does. All content belongs to `settings.run_id`: two runs on one server never share any.

    Every blocking method takes a `wait`: its calls to the server last at most `wait.remaining_s()`, and it ends within
    100 ms of `wait.cancel()` (`wait.on_cancel` can close or wake a socket). Every method may raise these errors and
    must distinguish them:

    - `BackendUnavailableError`: the server could not be reached, or takes no writes now, and nothing was written;
    - `OutcomeUnknownError`: the reply was lost, so the request may have been carried out; never repeat it silently;
    - `BackendRefusedError`: the server replied and rejects this client (password, permission, version, another kind of
      server), so that a retry does not help;
    - `WaitCancelledError`, `WaitExpiredError`: from `wait`.

    The object stays usable after a method failed: the next call connects again.

    Threading: one thread at a time, not always the same; `close` may be called from any thread when no call is under
    way.
    """

    api_version: ClassVar[int]
    options: ClassVar[Sequence[OptionSpec]] = ()
    """The `--rdzv-conf` keys of this store, in addition to those of all coordinated backends, like `lease_ttl`."""
    min_ttl_s: ClassVar[float] = 1.0
    """The shortest lease that the server supports, in seconds."""
    announces_expiry: ClassVar[bool] = False
    """Whether the server itself notifies watchers when a lease expires, so that a watch of departures ends then."""
    hosted_by_member: bool = False
    """Whether the server belongs to one of the run's nodes, so that its loss ends the run. A store that supports both
    cases sets it on the instance."""

    settings: RendezvousSettings

    def __init__(self, settings: RendezvousSettings) -> None:
        """Keep the settings."""
        self.settings = settings

    @property
    @abstractmethod
    def where(self) -> str:
        """The endpoint as messages show it, without secrets.

        Example: `redis at localhost:6379`.
        """

    @abstractmethod
    def connect(self, *, wait: WaitBudget) -> str:
        """Open a connection; return this host's address on it (`10.0.0.7`), empty if unknown, as on a unix socket.

        The store tries once. Names that do not resolve and servers that do not respond raise `BackendUnavailableError`,
        with a text that names the cause (`cannot resolve 'redis.example'`, `connection refused`). The caller retries.
        """

    @abstractmethod
    def enlist(self, record: bytes, *, incarnation: str, ttl_s: float, wait: WaitBudget) -> Seat:
        """Add a member with a lease of `ttl_s` seconds in a seat with the highest number so far; return the seat.

        If the incarnation has a live seat, return that seat, replace its record and renew its lease. So a repeated call
        after a lost reply adds no second member. Expired members are removed first, as in `renew`.
        """

    @abstractmethod
    def update(self, seat: Seat, record: bytes, *, wait: WaitBudget) -> bool:
        """Replace the record of a live seat; return False, and write nothing, if the seat is gone."""

    @abstractmethod
    def renew(self, seat: Seat, *, ttl_s: float, wait: WaitBudget) -> Renewal | None:
        """Extend the lease to `ttl_s` from now by the store's clock; return `None` if the seat is gone.

        The store first removes expired members of the run and notifies watchers. If no member of the run has called for
        two thirds of `ttl_s`, the store was unreachable: it then removes no member, and first extends every lease to
        `ttl_s` from now. `enlist` does the same, because a new member may call first.
        """

    @abstractmethod
    def withdraw(self, seat: Seat, *, wait: WaitBudget) -> None:
        """Remove a member now and notify watchers; do nothing if the seat is gone or belongs to another incarnation."""

    @abstractmethod
    def members(self, *, wait: WaitBudget) -> Members:
        """Return all live members; expired ones are removed first."""

    @abstractmethod
    def load(self, key: str, *, wait: WaitBudget) -> Document | None:
        """Return the current document; `None` if there is none."""

    @abstractmethod
    def swap(self, key: str, new: bytes, *, expect: str | None, keep_s: float, wait: WaitBudget) -> Swapped:
        """Replace a document if its version is `expect`; an `expect` of `None` means that there must be no document.

        `keep_s` is how long, in seconds, the run's content is kept after the last call of any member.
        """

    def keep_age_s(self, *, wait: WaitBudget) -> float | None:
        """Return how long ago a `swap` changed `keep_s`, by the server's clock; `None` if the store can't determine it.

        The end of a run changes `keep_s`, so that a new node knows how long ago the run ended. The result may be up to
        30 s too low. Override it if the server counts time.
        """
        return None

    @abstractmethod
    def watch(self, since: Revisions, topics: Collection[Topic], *, timeout_s: float, wait: WaitBudget) -> Watched:
        """Block until a topic's revision is higher than in `since`, at most `timeout_s`; return all revisions.

        Return immediately if a revision is already higher, so that no change between two calls is missed. `compare`
        makes the result. A push from the server is only a hint: read the revisions after it. An expiry that no other
        call has noticed need not end the wait, unless the store `announces_expiry`.
        """

    def survey(self, keys: Collection[str], *, wait: WaitBudget) -> Survey:
        """Return the members that have a seat, and those of these documents that exist. Called: by observers.

        The default uses `members` and `load`. Override it if the server can be read without side effects, so
        that no member is removed, no watcher is notified, and the content is kept no longer.
        """
        found = {key: self.load(key, wait=wait) for key in keys}
        documents = {key: document.value for key, document in found.items() if document is not None}
        return Survey(members=self.members(wait=wait).members, documents=documents)

    @property
    def hosting(self) -> bool:
        """Whether this object runs the server itself; `withdraw` may then wait until the other nodes have left."""
        return False

    def pids(self) -> frozenset[int]:
        """Return the ids of processes that this object keeps on this host; the agent does not end them at cleanup."""
        return frozenset()

    @property
    def notices(self) -> Sequence[str]:
        """Lines for users, oldest first, for example that the server pushes nothing; the sequence only grows."""
        return ()

    def close(self) -> None:
        """Close connections; idempotent, never raises."""
        return
