"""The common data of a run's content: its birth, and the lease that removes it after the last call."""

import json
import math
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Final, Protocol

from elastic_core.api import SYSTEM_CLOCK, WaitBudget
from elastic_core.api.stores import BackendUnavailableError, own_content
from elastic_rdzv_etcd import messages as say
from elastic_rdzv_etcd.errors import CompactedError
from elastic_rdzv_etcd.messages import Answer, Found, Json, Keys

DEFAULT_KEEP_S: Final = 24 * 3600.0
_TOPICS: Final = ("control", "departures", "round", "members")
_TRIES: Final = 5
_OPERATIONS: Final = 100
"""The limit of operations in one transaction; a server accepts 128 by default."""
_LONGEST_TTL_S: Final = 9_000_000_000
"""The longest lease of a server."""
_FIRST_S: Final = 30.0
"""When a client first renews a found lease: of a thousand that join at once, most need not."""


class Call(Protocol):
    """Sends one request to the server."""

    def __call__(self, path: str, body: Json, *, wait: WaitBudget, writes: bool) -> Json:
        """Return the response."""
        ...


class Content:
    """The content at the last read."""

    def __init__(self, keys: Keys, birth: bytes, keep: bytes) -> None:
        """Read the lease, and its length in seconds, from its key."""
        with own_content(keys.keep):
            said = json.loads(keep)
            self.lease, self.ttl = str(int(said["lease"])), int(said["ttl"])
            if not 0 < self.ttl <= _LONGEST_TTL_S:
                raise ValueError(self.ttl)
        self.born = say.has_value(keys.birth, birth)
        self.unchanged = (self.born, say.has_value(keys.keep, keep))
        """Hold while new keys may be put on the lease."""


class Keeper:
    """Makes the content of a run, finds it, and keeps it alive while there are calls.

    A lease lasts a third longer than the content is to be kept, so that it need not be renewed at each call.

    Threading: one thread at a time.
    """

    def __init__(self, keys: Keys, call: Call, *, now_s: Callable[[], float] = SYSTEM_CLOCK.monotonic_s) -> None:
        """Know nothing yet."""
        self._keys = keys
        self._call = call
        self._now_s = now_s
        self._content: Content | None = None
        self._kept_s = -math.inf

    def forget(self) -> None:
        """Read again at the next call: the content is another, or its lease is over."""
        self._content = None

    @property
    def knows(self) -> bool:
        """Whether the content is known without a read."""
        return self._content is not None

    def learn(self, told: Mapping[bytes, Found]) -> bool:
        """Use a read of the keys that every member watches. Return whether there is content."""
        birth, keep = told.get(self._keys.birth), told.get(self._keys.keep)
        if self._content is None and birth is not None and keep is not None:
            self._content = content = Content(self._keys, birth.value, keep.value)
            self._kept_s = self._now_s() - max(0.0, content.ttl / 4 - _FIRST_S)
        return birth is not None and keep is not None

    def keep_now(self, wait: WaitBudget) -> None:
        """Renew the content's lease, since other clients may not have done so for long."""
        self._kept_s = -math.inf
        self._refresh(wait)

    def transact(
        self, compare: Sequence[Json], then: Sequence[Json], other: Sequence[Json], wait: WaitBudget
    ) -> Answer:
        """Return the response to a transaction that writes in at least one case; use `read` for others."""
        body = {"compare": list(compare), "success": list(then), "failure": list(other)}
        return Answer(self._call("kv/txn", body, wait=wait, writes=True))

    def read(self, *reads: Json, wait: WaitBudget) -> Answer:
        """Return the results of reads, all at one revision.

        They are not one transaction: a server before 3.5.5 dies if the client of a transaction that only reads
        disconnects.

        Raises:
            CompactedError: the revision is compacted at each try.
        """
        for _ in range(_TRIES - 1):
            with suppress(CompactedError):
                return self._read(reads, wait)
        return self._read(reads, wait)

    def _read(self, reads: Sequence[Json], wait: WaitBudget) -> Answer:
        parts: list[Json] = []
        for read in reads:
            at = {"revision": parts[0]["header"]["revision"]} if parts else {}
            parts.append(self._call("kv/range", read["request_range"] | at, wait=wait, writes=False))
        return Answer.of_ranges(parts)

    def grant(self, ttl: int, wait: WaitBudget) -> str:
        """Return the number of a new lease."""
        return str(self._call("lease/grant", {"TTL": str(ttl)}, wait=wait, writes=False)["ID"])

    def keep_alive(self, lease: str, wait: WaitBudget) -> int | None:
        """Renew a lease. Return the server's revision just before. `None` if the lease is over."""
        answer = self._call("lease/keepalive", {"ID": lease}, wait=wait, writes=False)
        return int(answer["header"]["revision"]) if int(answer.get("TTL", 0)) > 0 else None

    def standing(self, wait: WaitBudget) -> Content | None:
        """Return the current content, or `None`. Known content is not read again."""
        if self._content is None:
            answer = self.read(say.get_all(self._keys.told), wait=wait)
            self.learn({found.key: found for found in answer.found(0)})
        self._refresh(wait)
        return self._content

    def begun(self, wait: WaitBudget, *, keep_s: float = DEFAULT_KEEP_S) -> Content:
        """Return the content; make it if there is none.

        Raises:
            BackendUnavailableError: it was removed after each try.
        """
        for _ in range(_TRIES):
            content = self.standing(wait)
            if content is not None:
                return content
            self._begin(_ttl(keep_s), wait)
        raise BackendUnavailableError("the run's content is removed as often as it is written")

    def _begin(self, ttl: int, wait: WaitBudget) -> None:
        """Make the content, unless another client has."""
        keys, lease = self._keys, self.grant(ttl, wait)
        birth = os.urandom(8).hex().encode()
        # What is there without a birth is the rest of something that was emptied by hand.
        rest = (keys.members, keys.alive, keys.seats, keys.docs)
        made = (
            say.put(keys.birth, birth, lease),
            say.put(keys.keep, _keep_value(lease, ttl), lease),
            *(say.put(keys.topic(topic), b"-1", lease) for topic in _TOPICS),
        )
        self.transact((say.made_at(keys.birth, 0),), (*(say.delete_all(prefix) for prefix in rest), *made), (), wait)

    def _refresh(self, wait: WaitBudget) -> None:
        content, now_s = self._content, self._now_s()
        if content is None or 0 <= now_s - self._kept_s < content.ttl / 4:
            return
        if self.keep_alive(content.lease, wait) is not None:
            self._kept_s = now_s
        else:
            self._content = None

    # --- another time to keep

    def age_s(self, wait: WaitBudget) -> float | None:
        """Return for how long the content has been on its lease, or since the last renewal.

        `None` if there is no content.

        Reading a lease's time does not renew it, so late clients keep nothing alive.
        """
        if self._content is None:
            answer = self.read(say.get_all(self._keys.told), wait=wait)
            self.learn({found.key: found for found in answer.found(0)})
        if self._content is None:
            return None
        told = self._call("lease/timetolive", {"ID": self._content.lease}, wait=wait, writes=False)
        left = int(told.get("TTL", 0))
        return float(int(told.get("grantedTTL", 0)) - left) if left > 0 else None

    def keep_for(self, keep_s: float, wait: WaitBudget) -> None:
        """Move all keys without a lease of their own to a lease of another length, if it differs."""
        ttl = _ttl(keep_s)
        for _ in range(_TRIES):
            content = self.standing(wait)
            if content is None or content.ttl == ttl:
                return
            self._move(content, ttl, wait)
            self.forget()

    def _move(self, content: Content, ttl: int, wait: WaitBudget) -> None:
        """Move all keys to a new lease, or some of them after concurrent changes; then `keep` has the old one."""
        keys, lease = self._keys, self.grant(ttl, wait)
        reads = (say.get_all(keys.told), say.get(keys.busy), say.get_all(keys.docs, names_only=True))
        answer = self.read(*reads, say.get_all(keys.members, names_only=True), wait=wait)
        moves = [
            (found, say.put(found.key, _same_revision(found, keys.birth), lease))
            for at in (0, 1)
            for found in answer.found(at)
            if found.key != keys.keep  # it is the last
        ]
        moves += [(found, say.move(found.key, lease)) for at in (2, 3) for found in answer.found(at)]
        for at in range(0, len(moves), _OPERATIONS):
            part = moves[at : at + _OPERATIONS]
            same = (say.stands_at(found.key, found.put_at) for found, _ in part)
            if not self.transact((content.born, *same), [move for _, move in part], (), wait).succeeded:
                return
        self.transact(content.unchanged, (say.put(keys.keep, _keep_value(lease, ttl), lease),), (), wait)


def revision_of(found: Found | None) -> int:
    """Return a topic's revision: the number of puts of its key, plus its value."""
    return 0 if found is None else found.puts + _number(found)


def _same_revision(found: Found, birth: bytes) -> bytes:
    """Return the value with which one more put keeps a topic's revision unchanged."""
    return found.value if found.key == birth else str(_number(found) - 1).encode()


def _number(found: Found) -> int:
    with own_content(found.key):
        return int(found.value or b"0")


def _ttl(keep_s: float) -> int:
    return math.ceil(keep_s * 4 / 3)


def _keep_value(lease: str, ttl: int) -> bytes:
    return json.dumps({"lease": lease, "ttl": ttl}).encode()
