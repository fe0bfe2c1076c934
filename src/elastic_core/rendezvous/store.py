"""The narrow seam for key-value servers: what a server must offer for the core's rendezvous to run on it.

A run's content in a store is: *members* (leased seats in order of arrival, each with a record of bytes), a few small
*documents* that are replaced only by compare-and-swap, and a *revision* for each topic, by which watchers learn that
there is something new. The algorithm is the core's (`machine`); a store only keeps these promises. The kit
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
    """What a watcher can wait for."""

    MEMBERS = "members"
    """A member enlisted, updated its record, withdrew or expired."""
    DEPARTURES = "departures"
    """A member withdrew or expired."""
    ROUND = ROUND_KEY
    """The document of that key was replaced."""
    CONTROL = CONTROL_KEY
    """The document of that key was replaced."""


class Seat(Record, frozen=True, kw_only=True):
    """A member's place in the order of arrival. Its identity is number and incarnation together.

    `ahead` is how many live members had a lower number when the store answered: 0 leads.
    """

    number: int
    """Its place in the order of arrival; never given twice."""
    incarnation: str
    """The member's incarnation."""
    ahead: int
    """How many live members had a lower number; 0: this one leads."""


class Member(Record, frozen=True, kw_only=True):
    """One live member, as the store knows it."""

    seat: int
    """The seat's number: earlier ones are lower."""
    incarnation: str
    """Which process of the node it is."""
    record: bytes
    """The record that the member has written; the store does not read it."""


class Members(Record, frozen=True, kw_only=True):
    """All live members in order of their seats, and the revision of `Topic.MEMBERS` at which they were so."""

    revision: int
    """The revision of the topic `members`."""
    members: tuple[Member, ...]
    """The live members, in the order of their seats."""


class Survey(Record, frozen=True, kw_only=True):
    """A run's content as an observer without a seat reads it: all members that have a seat, and documents by key.

    `silent` are the incarnations of members whose leases have ended. `unproven` are those for which this client has not
    looked long enough to know that.
    """

    members: tuple[Member, ...]
    """The members that have a seat, in order, expired ones included."""
    silent: frozenset[str] = frozenset()
    """Incarnations whose leases have ended."""
    unproven: frozenset[str] = frozenset()
    """Incarnations of which the store can't tell whether their leases have ended."""
    documents: Mapping[str, bytes] = {}
    """Contents by key; a document that does not exist is left out."""


class Renewal(Record, frozen=True, kw_only=True):
    """The store's answer to a renewal.

    `ahead`: live members with a lower seat. `live`: all live members. `next_expiry_s`: seconds from now until the
    earliest lease of another member ends, by the store's clock; None if there is no other. A store that
    `announces_expiry` may give `ttl_s` for any other member.
    """

    ahead: int
    """How many live members have a lower seat; 0: this one leads."""
    live: int
    """How many live members there are."""
    next_expiry_s: float | None
    """Seconds to the next end of another member's lease; None: there is no other."""


class Document(Record, frozen=True, kw_only=True):
    """A document as it is in the store. Only `swap` uses `version`, and no two contents ever have the same one."""

    value: bytes
    """The content, as it was swapped in."""
    version: str
    """The version of this content: no other content ever has it."""


class Swapped(Record, frozen=True, kw_only=True):
    """The outcome of a swap: applied, and `current` is the new document; or refused, and `current` is the old one."""

    applied: bool
    """Whether the new content was written."""
    current: Document | None
    """The document now; None: there is none."""


class Revisions(Record, frozen=True, kw_only=True):
    """The revision of each topic. `birth` is a random text, made with the content, which tells contents apart."""

    birth: str = ""
    """A random text of this content; empty: there is no content."""
    members: int = 0
    """How often a member came, left or changed."""
    departures: int = 0
    """How often a member left."""
    round: int = 0
    """How often the round document changed."""
    control: int = 0
    """How often the control document changed."""

    def of(self, topic: Topic) -> int:
        """Return one topic's revision."""
        revision: int = getattr(self, topic.value)
        return revision


class Watched(Record, frozen=True, kw_only=True):
    """The result of `watch`.

    `changed` are the requested topics with a higher revision. `reset`: the content is not the one that `since` came
    from (the store was emptied), or it went back in time (a failover that lost writes). Then all that was read before
    must be read again, and `changed` has every requested topic.
    """

    revisions: Revisions
    """The revision of each topic now."""
    changed: frozenset[Topic]
    """The topics with a higher revision."""
    reset: bool = False
    """Whether the store was emptied, or went back in time."""


def compare(since: Revisions, now: Revisions, topics: Collection[Topic]) -> Watched:
    """Return the result of a watch from `since` on, if the revisions are `now`."""
    back = any(now.of(topic) < since.of(topic) for topic in Topic)
    reset = bool(since.birth) and (now.birth != since.birth or back)
    changed = frozenset(topic for topic in topics if reset or now.of(topic) > since.of(topic))
    return Watched(revisions=now, changed=changed, reset=reset)


UNREADABLE: Final = (ValueError, TypeError, LookupError, ArithmeticError, RecursionError)
"""What Python raises at text that is no number, no JSON, not UTF-8, or has other parts than it should."""


@contextmanager
def own_content(key: str | bytes, errors: tuple[type[Exception], ...] = UNREADABLE) -> Iterator[None]:
    """Guard the reading of a key of a run: content that can't be read there was written by another program.

    Args:
        key: The server's key.
        errors: The errors that reading raises then.

    Raises:
        BackendRefusedError: reading has raised one of these errors; it names the key.
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
    """Drives one server for one run. Subclass it and register the class under `elastic_core.rendezvous`.

    Built once per run as `cls(settings)`; the constructor makes no connection and imports no client library (that
    belongs into `connect`). All content belongs to `settings.run_id`: two runs on one server never meet.

    Every blocking method takes a `wait`: its calls to the server last at most `wait.remaining_s()`, and it ends within
    100 ms of `wait.cancel()` (`wait.on_cancel` can close or wake a socket). Every method may raise, and must tell
    apart:

    - `BackendUnavailableError`: the server could not be reached, or takes no writes now, and nothing was written;
    - `OutcomeUnknownError`: the request may have been carried out (the reply was lost); never repeated silently;
    - `BackendRefusedError`: the server answered and will not serve us (password, permission, version, not this kind of
      server); trying again would not help;
    - `WaitCancelledError`, `WaitExpiredError`: from `wait`.

    A method that failed leaves the object usable: the next call connects again.

    Threading: one thread at a time, not always the same; `close` may be called from any thread when no call is under
    way.
    """

    api_version: ClassVar[int]
    options: ClassVar[Sequence[OptionSpec]] = ()
    """The `--rdzv-conf` keys of this store, beside those of every coordinated backend (`lease_ttl` and so on)."""
    min_ttl_s: ClassVar[float] = 1.0
    """The shortest lease that the server can keep."""
    announces_expiry: ClassVar[bool] = False
    """Whether the server itself notifies watchers that a lease has ended, so that a watch of departures ends then."""
    hosted_by_member: bool = False
    """Whether the server belongs to one of the run's nodes, so that its loss ends the run. A store that may be either
    sets it for itself."""

    settings: RendezvousSettings

    def __init__(self, settings: RendezvousSettings) -> None:
        """Keep the settings."""
        self.settings = settings

    @property
    @abstractmethod
    def where(self) -> str:
        """The endpoint as people know it, without secrets.

        `redis at localhost:6379`, say.
        """

    @abstractmethod
    def connect(self, *, wait: WaitBudget) -> str:
        """Open a connection and return this host's address on it (`10.0.0.7`; empty: unknown, a unix socket say).

        One try: names that do not resolve and servers that do not answer raise `BackendUnavailableError`, whose text
        names what failed (`cannot resolve 'redis.example'`, `connection refused`). The caller tries again.
        """

    @abstractmethod
    def enlist(self, record: bytes, *, incarnation: str, ttl_s: float, wait: WaitBudget) -> Seat:
        """Add a member with a lease of `ttl_s`, in a seat with a higher number than any before, or find it.

        While the incarnation has a live seat, it gets that seat again, with its record replaced and its lease renewed:
        a repeated call after a lost reply adds no second member. Expired members are removed first, as in `renew`.
        """

    @abstractmethod
    def update(self, seat: Seat, record: bytes, *, wait: WaitBudget) -> bool:
        """Replace the record of a live seat; False: the seat is gone, nothing was written."""

    @abstractmethod
    def renew(self, seat: Seat, *, ttl_s: float, wait: WaitBudget) -> Renewal | None:
        """Make the lease end `ttl_s` from now by the store's clock; None: the seat is gone.

        Expired members of the run are removed first, and watchers are notified. After a pause in which no member of
        the run has called for two thirds of `ttl_s`, every lease is first extended to `ttl_s` from now, and no member
        is removed: the server was away, not the members. `enlist` does the same: the first call may be a newcomer's.
        """

    @abstractmethod
    def withdraw(self, seat: Seat, *, wait: WaitBudget) -> None:
        """Remove a member now, and notify watchers. A seat that is gone, or another incarnation's, is left alone."""

    @abstractmethod
    def members(self, *, wait: WaitBudget) -> Members:
        """Return all live members; expired ones are removed first."""

    @abstractmethod
    def load(self, key: str, *, wait: WaitBudget) -> Document | None:
        """Return a document as it is now; None: there is none."""

    @abstractmethod
    def swap(self, key: str, new: bytes, *, expect: str | None, keep_s: float, wait: WaitBudget) -> Swapped:
        """Replace a document if its version is `expect` (None: if there is none).

        `keep_s`: how long the run's content is kept after the last call of any member, from now on.
        """

    def keep_age_s(self, *, wait: WaitBudget) -> float | None:
        """Return how long ago a `swap` has changed `keep_s`, by the server's own clock; None: the store can't tell.

        The end of a run changes `keep_s`, so that a newcomer knows how long ago that was. The result may be up to half
        a minute too low. Override it if the server counts time.
        """
        return None

    @abstractmethod
    def watch(self, since: Revisions, topics: Collection[Topic], *, timeout_s: float, wait: WaitBudget) -> Watched:
        """Block until the revision of a topic is higher than in `since`, at most `timeout_s`; return all revisions.

        Returns at once if a revision is higher already: no change is missed between two calls. `compare` makes the
        result. A push from the server is only a hint: the revisions are read after it. An expiry that no other call has
        noticed need not end the wait, unless the store `announces_expiry`.
        """

    def survey(self, keys: Collection[str], *, wait: WaitBudget) -> Survey:
        """Return the members that have a seat, and those of these documents that exist. Called: by observers.

        The default reads by `members` and `load`. Override it if the server can be read without a trace: no member is
        removed, no watcher notified, and the content is kept for no longer.
        """
        found = {key: self.load(key, wait=wait) for key in keys}
        documents = {key: document.value for key, document in found.items() if document is not None}
        return Survey(members=self.members(wait=wait).members, documents=documents)

    @property
    def hosting(self) -> bool:
        """Return whether this object keeps the server itself; `withdraw` may then wait until the others have left."""
        return False

    def pids(self) -> frozenset[int]:
        """Return the processes that this object keeps on this host, for the agent to spare when it clears up."""
        return frozenset()

    @property
    def notices(self) -> Sequence[str]:
        """Return lines for people (that the server pushes nothing, say), oldest first; the sequence only grows."""
        return ()

    def close(self) -> None:
        """Close connections; idempotent, never raises."""
        return
