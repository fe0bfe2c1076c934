"""Requests to etcd's gateway as JSON, and the keys of a run's content."""

import zlib
from collections.abc import Mapping, Sequence
from typing import Any, Final
from urllib.parse import quote

from elastic_core.api.stores import own_content
from elastic_rdzv_etcd.coding import b64, prefix_end, unb64

Json = dict[str, Any]

_PLAIN: Final = b"="
_PACKED: Final = b"z"
LARGEST_BYTES: Final = 16 << 20
"""A packed value above this limit is not elastic-core's: one of a thousand nodes, or of 500 failures, has some 100 kB.
"""
_PACK_BYTES: Final = 4096
"""Shorter values stay readable in etcdctl; longer ones are a roster of many nodes, and pack to a fifth."""


class Keys:
    """The keys of a run's content.

    - `told/birth` and `told/{control,departures,round}`: the keys that every member watches;
    - `told/keep`: the lease of all keys without one of their own, so that no key stays for ever;
    - `told.members`: the topic that changes often, and matters only to the leader. It is right before the others:
      one range reads them all, and a watch of the others does not include it;
    - `told0KEY/value` and `told0KEY/version`: a document. They are right after the topics, so that one range reads all
      that a new member needs, and each change arrives with the watch of the topics;
    - `member/INCARNATION`: a member's record. The revision that made it is its seat's number;
    - `alive/INCARNATION` and `seat/NUMBER`: exist as long as the member's lease.

    A topic's revision is the number of puts of its key, plus the number in its value.
    """

    def __init__(self, prefix: str, run_id: str) -> None:
        """Keep the prefix of all runs, which ends with a slash."""
        self.base = f"{prefix}{quote(run_id, safe='')}/".encode()
        self.told = self.base + b"told/"
        self.birth = self.told + b"birth"
        self.keep = self.told + b"keep"
        self.busy = self.base + b"told.members"
        self.members = self.base + b"member/"
        self.alive = self.base + b"alive/"
        self.seats = self.base + b"seat/"
        self.docs = prefix_end(self.told)

    def topic(self, name: str) -> bytes:
        """Return the key whose puts are a topic's revision."""
        return self.busy if name == "members" else self.told + name.encode()

    def member(self, incarnation: str) -> bytes:
        """Return the key of a member's record."""
        return self.members + quote(incarnation, safe="").encode()

    def alive_of(self, incarnation: str) -> bytes:
        """Return the key that exists while a member's lease lasts."""
        return self.alive + quote(incarnation, safe="").encode()

    def seat(self, number: int) -> bytes:
        """Return the key by which live members are counted; in order of the numbers."""
        return self.seats + b"%020d" % number

    def doc(self, key: str) -> bytes:
        """Return the prefix of the two keys of a document."""
        return self.docs + quote(key, safe="").encode() + b"/"


def pack(value: bytes) -> bytes:
    """Return the stored form of a value: with a mark before it, or packed."""
    return _PLAIN + value if len(value) < _PACK_BYTES else _PACKED + zlib.compress(value, 1)


def unpack(stored: bytes, key: bytes) -> bytes:
    """Return the value of stored bytes.

    Raises:
        BackendRefusedError: another program wrote them, or they unpack to more than `LARGEST_BYTES`.
    """
    if stored[:1] == _PLAIN:
        return stored[1:]
    unpacker = zlib.decompressobj()
    with own_content(key, (ValueError, zlib.error)):
        value = unpacker.decompress(stored[1:], LARGEST_BYTES) if stored[:1] == _PACKED else b""
        if not unpacker.eof:
            raise ValueError("cut off, or too large")
    return value


# --- comparisons


def made_at(key: bytes, revision: int) -> Json:
    """True if a key was made by that revision; 0: if it does not exist."""
    return {"target": "CREATE", "result": "EQUAL", "key": b64(key), "create_revision": str(revision)}


def is_there(key: bytes) -> Json:
    """True if the key exists."""
    return {"target": "CREATE", "result": "GREATER", "key": b64(key), "create_revision": "0"}


def stands_at(key: bytes, revision: int) -> Json:
    """True if a key was last put by that revision."""
    return {"target": "MOD", "result": "EQUAL", "key": b64(key), "mod_revision": str(revision)}


def has_value(key: bytes, value: bytes) -> Json:
    """True if a key has that value."""
    return {"target": "VALUE", "result": "EQUAL", "key": b64(key), "value": b64(value)}


# --- operations


def put(key: bytes, value: bytes, lease: str) -> Json:
    """Set a key on a lease."""
    return {"request_put": {"key": b64(key), "value": b64(value), "lease": lease}}


def replace(key: bytes, value: bytes) -> Json:
    """Set an existing key, and keep its lease."""
    return {"request_put": {"key": b64(key), "value": b64(value), "ignore_lease": True}}


def touch(key: bytes) -> Json:
    """Put an existing key unchanged, which raises its version."""
    return {"request_put": {"key": b64(key), "ignore_value": True, "ignore_lease": True}}


def move(key: bytes, lease: str) -> Json:
    """Keep an existing key unchanged, but on another lease."""
    return {"request_put": {"key": b64(key), "lease": lease, "ignore_value": True}}


def get(key: bytes) -> Json:
    """Read one key."""
    return {"request_range": {"key": b64(key)}}


def get_all(prefix: bytes, *, end: bytes = b"", names_only: bool = False) -> Json:
    """Read all keys with a prefix, or up to an end; optionally without their values."""
    asked = {"key": b64(prefix), "range_end": b64(end or prefix_end(prefix))}
    return {"request_range": asked | ({"keys_only": True} if names_only else {})}


def count(prefix: bytes, *, end: bytes = b"") -> Json:
    """Count the keys with a prefix, or up to an end."""
    return {"request_range": {"key": b64(prefix), "range_end": b64(end or prefix_end(prefix)), "count_only": True}}


def delete(key: bytes) -> Json:
    """Remove one key."""
    return {"request_delete_range": {"key": b64(key)}}


def delete_all(prefix: bytes) -> Json:
    """Remove all keys with a prefix."""
    return {"request_delete_range": {"key": b64(prefix), "range_end": b64(prefix_end(prefix))}}


# --- answers


class Found:
    """One key in a response."""

    def __init__(self, raw: Mapping[str, Any]) -> None:
        """Read the fields; those that the gateway omits are zero or empty."""
        self.key = unb64(raw["key"])
        self.value = unb64(raw.get("value", ""))
        self.made = int(raw.get("create_revision", 0))
        self.put_at = int(raw.get("mod_revision", 0))
        self.puts = int(raw.get("version", 0))

    def name(self, prefix: bytes) -> bytes:
        """Return the key without its prefix."""
        return self.key[len(prefix) :]


class Answer:
    """The response to a transaction, or to several reads."""

    def __init__(self, raw: Mapping[str, Any]) -> None:
        """Read the gateway's response."""
        self.succeeded = bool(raw.get("succeeded", False))
        self.revision = int(raw["header"]["revision"])
        self._parts: Sequence[Mapping[str, Any]] = raw.get("responses", ())

    @classmethod
    def of_ranges(cls, raw: Sequence[Mapping[str, Any]]) -> "Answer":
        """Read the responses to reads that were not a transaction."""
        return cls({"header": raw[0]["header"], "responses": [{"response_range": part} for part in raw]})

    def found(self, at: int) -> tuple[Found, ...]:
        """Return the keys that the operation with this place read."""
        return tuple(Found(kv) for kv in self._range(at).get("kvs", ()))

    def one(self, at: int) -> Found | None:
        """Return the key that the operation with this place read, or `None`."""
        return next(iter(self.found(at)), None)

    def counted(self, at: int) -> int:
        """Return how many keys the operation with this place counted."""
        return int(self._range(at).get("count", 0))

    def _range(self, at: int) -> Mapping[str, Any]:
        part: Mapping[str, Any] = self._parts[at]["response_range"]
        return part
