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
    """Whose it is."""
    ahead: int
    """How many live members had a lower one; 0: it leads."""


class Member(Record, frozen=True, kw_only=True):
    """One live member, as the store knows it."""

    seat: int
    """Its number: earlier ones are lower."""
    incarnation: str
    """Which process of the node it is."""
    record: bytes
    """What it says of itself; the store does not look into it."""


class Members(Record, frozen=True, kw_only=True):
    """All live members in order of their seats, and the revision of `Topic.MEMBERS` at which they were so."""

    revision: int
    """How far the topic `members` was."""
    members: tuple[Member, ...]
    """The live ones, in the order of their seats."""


class Survey(Record, frozen=True, kw_only=True):
    """What somebody sees who takes no part: everybody who has a seat, and documents by key.

    `silent` are the incarnations among the members whose leases have ended, `unproven` those of which this client
    can't say so yet: it has not looked for long enough.
    """

    members: tuple[Member, ...]
    """Who has a seat, in order, expired ones among them."""
    silent: frozenset[str] = frozenset()
    """Incarnations whose leases have ended."""
    unproven: frozenset[str] = frozenset()
    """Incarnations of which the store can't tell whether their leases have ended."""
    documents: Mapping[str, bytes] = {}
    """Contents by key; a missing one is not there."""


class Renewal(Record, frozen=True, kw_only=True):
    """What the store answers to a renewal.

    `ahead`: live members with a lower seat. `live`: all live members. `next_expiry_s`: seconds from now until the
    earliest lease of another member ends, by the store's clock; None where there is no other. A store that
    `announces_expiry` may say `ttl_s` for any other.
    """

    ahead: int
    """How many live members have a lower seat; 0: this one leads."""
    live: int
    """How many live members there are."""
    next_expiry_s: float | None
    """Seconds to the next end of another member's lease; None: there is no other."""


class Document(Record, frozen=True, kw_only=True):
    """A document as it stands. `version` means nothing but to `swap`, and is never used twice for two contents."""

    value: bytes
    """Its content, as it was swapped in."""
    version: str
    """Of this content alone: no other content ever has it."""


class Swapped(Record, frozen=True, kw_only=True):
    """The outcome of a swap: applied, `current` being the new document; or refused, `current` being what stands."""

    applied: bool
    """Whether the new content stands."""
    current: Document | None
    """What stands now; None: nothing does."""


class Revisions(Record, frozen=True, kw_only=True):
    """How far each topic has come. `birth` is random and made when a run's content is made: another one is another."""

    birth: str = ""
    """A random text of this content; empty: there is no content."""
    members: int = 0
    """How often members came, went or changed."""
    departures: int = 0
    """How often one went."""
    round: int = 0
    """How often that document changed."""
    control: int = 0
    """How often that document changed."""

    def of(self, topic: Topic) -> int:
        """Return one topic's revision."""
        revision: int = getattr(self, topic.value)
        return revision


class Watched(Record, frozen=True, kw_only=True):
    """What `watch` saw.

    `changed` are the topics among those asked for that have moved. `reset`: the content is another than the one that
    `since` came from (it was emptied), or went back in time (a failover that lost writes); then everything that was
    read before must be read again, and `changed` has every topic that was asked for.
    """

    revisions: Revisions
    """How far each topic is now."""
    changed: frozenset[Topic]
    """The topics that have moved."""
    reset: bool = False
    """Whether the store was emptied, or went back in time."""


def compare(since: Revisions, now: Revisions, topics: Collection[Topic]) -> Watched:
    """Return what a watcher that knew `since` must be told of `now`."""
    back = any(now.of(topic) < since.of(topic) for topic in Topic)
    reset = bool(since.birth) and (now.birth != since.birth or back)
    changed = frozenset(topic for topic in topics if reset or now.of(topic) > since.of(topic))
    return Watched(revisions=now, changed=changed, reset=reset)


UNREADABLE: Final = (ValueError, TypeError, LookupError, ArithmeticError, RecursionError)
"""What Python raises at text that is no number, no JSON, not UTF-8, or has other parts than it should."""


@contextmanager
def own_content(key: str | bytes, errors: tuple[type[Exception], ...] = UNREADABLE) -> Iterator[None]:
    """Guard the reading of what lies under a key of a run: what can't be read there, somebody else has written.

    Args:
        key: The server's key.
        errors: What reading raises then.

    Raises:
        BackendRefusedError: reading has raised one of these; it names the key.
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
    """Whether the server itself tells watchers that a lease has ended, so that a watch of departures ends by it."""
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

        While the incarnation has a live seat it gets that seat again, its record replaced and its lease renewed: a
        repeated call after a lost reply leaves no ghost. Expired members go first, after a pause nobody: as in `renew`.
        """

    @abstractmethod
    def update(self, seat: Seat, record: bytes, *, wait: WaitBudget) -> bool:
        """Replace the record of a live seat; False: the seat is gone, nothing was written."""

    @abstractmethod
    def renew(self, seat: Seat, *, ttl_s: float, wait: WaitBudget) -> Renewal | None:
        """Make the lease end `ttl_s` from now by the store's clock; None: the seat is gone.

        Expired members of the run go first, and watchers hear of it. After a pause in which no member of the run was
        heard for two thirds of `ttl_s`, every lease is first extended to `ttl_s` from now: the silence was the
        server's, not theirs. `enlist` does the same: the first who comes after a pause may be a newcomer.
        """

    @abstractmethod
    def withdraw(self, seat: Seat, *, wait: WaitBudget) -> None:
        """Remove a member now; watchers hear of it. A seat that is gone, or another incarnation's, is left alone."""

    @abstractmethod
    def members(self, *, wait: WaitBudget) -> Members:
        """Return all live members; expired ones go first."""

    @abstractmethod
    def load(self, key: str, *, wait: WaitBudget) -> Document | None:
        """Return a document as it stands; None: there is none."""

    @abstractmethod
    def swap(self, key: str, new: bytes, *, expect: str | None, keep_s: float, wait: WaitBudget) -> Swapped:
        """Replace a document if its version is `expect` (None: if there is none).

        `keep_s`: how long the run's content is kept after the last call of any member, from now on.
        """

    def keep_age_s(self, *, wait: WaitBudget) -> float | None:
        """Return how long ago a `swap` has changed `keep_s`, by the server's own clock; None: it can't tell.

        The end of a run changes it: that is how late a newcomer is. May be up to half a minute too low. Overridden
        where the server counts time.
        """
        return None

    @abstractmethod
    def watch(self, since: Revisions, topics: Collection[Topic], *, timeout_s: float, wait: WaitBudget) -> Watched:
        """Block until one of the topics has moved beyond `since`, at most `timeout_s`; then say how far each is.

        Returns at once when something has moved already: no change is missed between two calls. `compare` makes the
        answer. A push from the server is only a hint; what counts is what is read after it. An expiry that no other
        call has noticed need not end the wait, unless the store `announces_expiry`.
        """

    def survey(self, keys: Collection[str], *, wait: WaitBudget) -> Survey:
        """Return who has a seat, and those of these documents that there are. Called: by those who only look.

        This one reads by `members` and `load`. Override it where the server can be read without a trace: nobody is
        removed, no watcher hears of it, and the content is kept for no longer.
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
        """Return what people should know (that the server pushes nothing, say), oldest first; it only grows."""
        return ()

    def close(self) -> None:
        """Give connections back; idempotent, never raises."""
        return
