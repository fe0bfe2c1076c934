"""The revisions of a run's topics, and its documents: read once, then updated by the server's pushes."""

import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

from msgspec.structs import replace

from elastic_core.api import SYSTEM_CLOCK, WaitBudget
from elastic_core.api.stores import (
    CONTROL_KEY,
    ROUND_KEY,
    BackendUnavailableError,
    Revisions,
    Topic,
    own_content,
)
from elastic_rdzv_etcd.coding import b64, prefix_end
from elastic_rdzv_etcd.content import revision_of
from elastic_rdzv_etcd.messages import Answer, Found, Json, Keys

if TYPE_CHECKING:
    from elastic_rdzv_etcd.gateway import Stream

_LOOK_AGAIN_S: Final = 10.0
"""How long the last read, with later pushes, is trusted."""
_SHORT_S: Final = 1.0
"""A stream that ends sooner shows a problem of the server, and is not opened again and again."""

DOCUMENT_TOPICS: Final = (CONTROL_KEY, ROUND_KEY)
"""The documents that have a topic."""
_OFFER_S: Final = 1.0
"""How long after a watch a document that it received is the current one, for the first that loads it."""

Read = Callable[[bytes, WaitBudget], Answer]
"""Reads the keys of all topics, and those after them up to an end."""
Learn = Callable[[Mapping[bytes, Found]], object]
"""Uses a read of the keys that every member watches."""


class Watcher:
    """Watches a run's topics and, for members that judge, the ends of its leases.

    A stream that is lost, or whose events the server no longer keeps, is opened again, and then all is read: nothing is
    resumed. While a stream is open, its events update the topics. The revision of `members`, if it is not watched, is
    that of the last read.

    Threading: one thread at a time.
    """

    def __init__(
        self,
        keys: Keys,
        read: Read,
        stream: "Callable[[list[Json], WaitBudget], Stream]",
        *,
        learn: Learn = lambda told: None,
    ) -> None:
        """Open nothing."""
        self._keys = keys
        self._fields = {keys.topic(topic): topic.value for topic in Topic}
        self._prefixes = {key: keys.doc(key) for key in DOCUMENT_TOPICS}
        self._read = read
        self._learn = learn
        self._open = stream
        self._stream: Stream | None = None
        self._opened_s = -math.inf
        self._members = False
        self._judges = False
        self._seen: Revisions | None = None
        self._seen_at = 0
        self._looked_s = -math.inf
        self._silence = False
        self._documents: dict[bytes, bytes] = {}
        self._documents_at: dict[str, int] = {}
        self._documents_read_at = 0
        self._offered: set[str] = set()
        self._offered_s = -math.inf
        self.upsets = 0
        """Rises when a member may have gone."""

    def listen(self, topics: frozenset[Topic], wait: WaitBudget, *, judges: bool) -> None:
        """Receive pushes from now on; call it before a read, which has all earlier changes.

        Args:
            topics: The caller's topics.
            wait: Limits the call.
            judges: Whether to receive the ends of leases. The server goes through all such clients with each member
                that joins, which would be expensive with a thousand of them.

        Raises:
            BackendUnavailableError: the server can't be reached.
        """
        members = Topic.MEMBERS in topics
        if self._stream is not None and (self._members or not members) and (self._judges or not judges):
            return
        self.drop()
        self._begin(self._open(self._creates(members=members, judges=judges), wait), members=members, judges=judges)

    def connect(self, open_: "Callable[[list[Json], WaitBudget], tuple[str, Stream | None]]", wait: WaitBudget) -> str:
        """Watch on a new connection, if that is permitted. Return this host's address on it."""
        self.drop()
        address, stream = open_(self._creates(members=False, judges=False), wait)
        if stream is not None:
            self._begin(stream, members=False, judges=False)
        return address

    def _creates(self, *, members: bool, judges: bool) -> list[Json]:
        keys = self._keys
        creates: list[Json] = [{"key": b64(keys.told), "range_end": b64(prefix_end(keys.docs))}]
        if judges:
            creates.append({"key": b64(keys.alive), "range_end": b64(prefix_end(keys.alive)), "filters": ["NOPUT"]})
        if members:
            creates.append({"key": b64(keys.busy)})
        return creates

    def _begin(self, stream: "Stream", *, members: bool, judges: bool) -> None:
        self._stream = stream
        self._opened_s = SYSTEM_CLOCK.monotonic_s()
        self._members, self._judges = members, judges
        self._silence = judges  # perhaps a lease ended before

    def look(self, wait: WaitBudget, *, believe: bool) -> Revisions:
        """Return the revisions of all topics.

        `believe`: use a recent read, with the pushes that `hear` has received since.
        """
        now_s = SYSTEM_CLOCK.monotonic_s()
        if believe and self._seen is not None and 0 <= now_s - self._looked_s < _LOOK_AGAIN_S:
            return self._seen
        self.hear(0.0, wait)
        known = self._stream is None or self._documents_at
        answer = self._read(prefix_end(self._keys.told if known else self._keys.docs), wait)
        told = {one.key: one for one in answer.found(0)}
        self._learn(told)
        birth = told.get(self._keys.birth)
        seen = Revisions(
            birth="" if birth is None else self._birth(birth.value),
            **{field: revision_of(told.get(key)) for key, field in self._fields.items()},
        )
        if self._stream is not None:
            self._seen, self._seen_at, self._looked_s = seen, answer.revision, now_s
            if not known:
                self._documents = {key: one.value for key, one in told.items() if key.startswith(self._keys.docs)}
                self._documents_at = {key: seen.of(Topic(key)) for key in DOCUMENT_TOPICS}
                self._documents_read_at = answer.revision
        return seen

    # --- documents

    def offer(self, seen: Revisions) -> None:
        """Keep the documents that belong to these revisions for `take_document`. Called: when a watch ends."""
        self._offered_s = SYSTEM_CLOCK.monotonic_s()
        self._offered = {key for key, at in self._documents_at.items() if at == getattr(seen, key)}

    def take_document(self, key: str) -> Mapping[bytes, bytes] | None:
        """Return the values of a document's keys as the last watch received them, once; `None` if they must be read."""
        if key not in self._offered:
            return None
        self._offered.discard(key)
        if SYSTEM_CLOCK.monotonic_s() - self._offered_s >= _OFFER_S:
            return None
        prefix = self._prefixes[key]
        return {name: value for name, value in self._documents.items() if name.startswith(prefix)}

    def hear(self, timeout_s: float, wait: WaitBudget) -> bool:
        """Block until there is a push, at most `timeout_s`. Return whether there was one, or the stream was lost.

        Raises:
            BackendUnavailableError: the stream ended as soon as it was opened.
        """
        if self._stream is None:
            return True
        if self._stream.closed:  # by us, with a wait that was cancelled or a request that was lost: no new trouble
            self.drop()
            return True
        try:
            events = self._stream.events(timeout_s, wait)
        except BackendUnavailableError:
            self.drop()  # another member may answer: listening again finds out
            if SYSTEM_CLOCK.monotonic_s() - self._opened_s < _SHORT_S:
                raise
            return True
        for event in events:
            if event["key"].startswith(self._keys.docs):
                self._take_part(event)
            elif event["key"].startswith(self._keys.alive):
                self._silence = True
                self.upsets += 1
            elif self._seen is None:
                self.upsets += event["key"] != self._keys.busy
            elif event["mod_revision"] > self._seen_at:
                before, self._seen = self._seen, self._after(self._seen, event)
                self.upsets += self._seen is None or self._seen.departures != before.departures
                if self._seen is None:
                    self._documents_at = {}  # of another content: all is read
        return bool(events)

    def _take_part(self, event: Mapping[str, Any]) -> None:
        if event["mod_revision"] <= self._documents_read_at:
            return
        if event["type"] == "PUT":
            self._documents[event["key"]] = event["value"]
        else:
            self._documents.pop(event["key"], None)

    def _after(self, seen: Revisions, event: Mapping[str, Any]) -> Revisions | None:
        """Return the revisions after an event. `None` if they must be read."""
        key, puts = event["key"], event.get("version")
        if event["type"] != "PUT" or not puts:
            return None
        field = self._fields.get(key)
        if field is not None:
            with own_content(key):
                told = puts + int(event["value"] or b"0")  # what was noticed meanwhile may be further
            if field in self._documents_at:  # the keys of the document came before, of the same transaction
                self._documents_at[field] = told
            return replace(seen, **{field: max(getattr(seen, field), told)})
        if key == self._keys.birth and seen.birth in ("", self._birth(event["value"])):
            return replace(seen, birth=self._birth(event["value"]))
        return seen if key == self._keys.keep else None

    def _birth(self, value: bytes) -> str:
        with own_content(self._keys.birth):
            return value.decode()

    def notice_members(self, found: Found | None) -> None:
        """Use a request's read of the topic that is not pushed to all clients."""
        if self._seen is not None and found is not None:
            self._seen = replace(self._seen, members=max(self._seen.members, revision_of(found)))

    @property
    def listens(self) -> bool:
        """Whether there is a stream, as far as is known."""
        return self._stream is not None and not self._stream.closed

    def take_silence(self) -> bool:
        """Return whether a lease has ended, or a member has left, since the last call."""
        silence, self._silence = self._silence, False
        return silence

    def drop(self) -> None:
        """Close the stream, after which the last read is out of date."""
        self.upsets += 1
        if self._stream is not None:
            self._stream.close()
        self._stream, self._seen = None, None
        self._documents, self._documents_at, self._offered = {}, {}, set()
