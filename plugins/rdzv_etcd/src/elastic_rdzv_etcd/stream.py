"""The events of watches that a member sends, on a connection of their own."""

from http.client import HTTPException
from math import inf
from typing import Any, Final

import msgspec

from elastic_backend_net.interrupt import Interrupt
from elastic_core.api import SYSTEM_CLOCK, ElasticError, WaitBudget
from elastic_core.api.stores import BackendError, BackendRefusedError, BackendUnavailableError, WaitCancelledError
from elastic_rdzv_etcd.connection import LIMIT_S, MOST_BYTES, Connection, Response
from elastic_rdzv_etcd.errors import CompactedError
from elastic_rdzv_etcd.failures import NotPermittedError, Said, answered, lost
from elastic_rdzv_etcd.url import Login

_FAILURES: Final = (OSError, HTTPException)
_PART_S: Final = 0.1
"""The time for a message whose first part has arrived, also at the end of a budget."""


# What is in the JSON of a watch: 64-bit numbers are strings there, bytes are base64.


class _KeyValue(msgspec.Struct, frozen=True):
    key: bytes
    value: bytes = b""
    create_revision: int = 0
    mod_revision: int = 0
    version: int = 0
    lease: str = "0"


class _Event(msgspec.Struct, frozen=True):
    kv: _KeyValue
    type: str = "PUT"
    prev_kv: _KeyValue | None = None


class _Header(msgspec.Struct, frozen=True):
    revision: int = 0


class _Result(msgspec.Struct, frozen=True):
    header: _Header
    created: bool = False
    canceled: bool = False
    cancel_reason: str = ""
    compact_revision: int = 0
    events: tuple[_Event, ...] = ()


class _Message(msgspec.Struct, frozen=True):
    result: _Result | None = None


class Stream:
    """The events of some watches. It ends with its connection, and never starts again.

    `revision` is the newest one that the member has sent: a later stream that starts after it misses nothing.

    Threading: one thread at a time, the gateway's.
    """

    def __init__(
        self, line: Connection, response: Response, interrupt: Interrupt, *, watches: int, login: Login
    ) -> None:
        """Use a connection with an endless response."""
        self.revision = 0
        self._line = line
        self._peer = str(line.place)
        self._response = response
        self._interrupt = interrupt
        self._login = login
        self._uncreated = watches
        self._rest = b""
        self._events: list[dict[str, Any]] = []
        self.closed = False

    def begin(self, wait: WaitBudget, end_s: float) -> None:
        """Block until the member has started all watches.

        Raises:
            BackendError: it has not, or not in time; the stream is closed.
            WaitCancelledError: from `wait`; the stream is closed.
        """
        while self._uncreated:
            self._take(wait, end_s)

    def events(self, timeout_s: float, wait: WaitBudget) -> list[dict[str, Any]]:
        """Return new events, oldest first. Block until there are some, at most `timeout_s`; then return none.

        Each has `type` (`PUT` or `DELETE`), `key`, `value` (of a deletion: empty), `mod_revision`, `create_revision`,
        `version` (the number of puts; of a deletion: 0), `lease`, and `prev_value` (`None` if it was not requested, or
        there was none).

        Raises:
            CompactedError: the revision to start at is compacted.
            BackendUnavailableError: the connection is lost, or the member has ended a watch; the stream is closed.
            WaitCancelledError: from `wait`.
        """
        end_s = SYSTEM_CLOCK.monotonic_s() + wait.remaining_s(timeout_s)
        while not self._events:
            if self.closed:
                raise BackendUnavailableError(f"the watch at {self._peer} is over")
            left_s = max(0.0, end_s - SYSTEM_CLOCK.monotonic_s()) if end_s < inf else inf
            if not self._line.wire.buffered() and not self._interrupt.poll(self._line.wire.sock, left_s, wait):
                return []
            self._take(wait, SYSTEM_CLOCK.monotonic_s() + max(_PART_S, wait.remaining_s(LIMIT_S)))
        events, self._events = self._events, []
        return events

    def close(self) -> None:
        """Close the connection; idempotent."""
        self.closed = True
        self._line.end()

    # --- what arrives

    def _take(self, wait: WaitBudget, end_s: float) -> None:
        """Read one chunk."""
        failure: ElasticError
        cause: Exception | None = None
        self._line.wire.end_s = end_s
        self._line.wire.left_bytes = MOST_BYTES - len(self._rest)
        try:
            with self._interrupt.by(wait, self._line.wire.wake):
                chunk = self._response.chunk()
            if wait.cancelled:  # that has ended the connection, though it had this to give
                raise WaitCancelledError
            if chunk:
                *lines, self._rest = (self._rest + chunk).split(b"\n")
                for line in filter(None, lines):
                    self._heed(line)
                return
            failure = BackendUnavailableError(f"{self._peer} has ended the watch")
        except BackendError as error:
            failure = error
        except _FAILURES as error:
            failure, cause = lost(error, peer=self._peer, sent=True, writes=False, first=False), error
        except BaseException:
            self.close()
            raise
        self.close()
        if isinstance(failure, BackendRefusedError) and not self._uncreated:  # not for ever: rights may have changed
            failure = BackendUnavailableError(f"the watch was ended: {failure.what}", hint=failure.hint)
        raise (WaitCancelledError() if wait.cancelled else failure) from cause

    def _heed(self, line: bytes) -> None:
        """Apply one message.

        Raises:
            BackendError: a watch has ended.
        """
        try:
            result = msgspec.json.decode(line, type=_Message, strict=False).result
        except (msgspec.DecodeError, RecursionError) as error:
            raise BackendUnavailableError(f"{self._peer} sent what is no event of a watch") from error
        if result is None:
            raise self._ended(line.decode(errors="replace"))
        self.revision = max(self.revision, result.header.revision)
        if result.canceled:
            raise self._cancelled(result)
        self._uncreated -= result.created
        self._events += map(_event, result.events)

    def _ended(self, text: str) -> BackendError:
        found = answered(503, text, peer=self._peer, login=self._login, writes=False, path="watch")
        return NotPermittedError(f"{self._peer} wants a new token") if found is Said.TOKEN else found

    def _cancelled(self, result: _Result) -> BackendError:
        """Return why the member has cancelled a watch."""
        if result.compact_revision:
            return CompactedError(f"{self._peer} has forgotten the revisions to watch from")
        reason = result.cancel_reason or "no reason was given"
        code = 7 if "permission denied" in reason else 14
        return self._ended(msgspec.json.encode({"code": code, "message": reason}).decode())


def _event(event: _Event) -> dict[str, Any]:
    kv, previous = event.kv, event.prev_kv
    return {
        "type": event.type,
        "key": kv.key,
        "value": kv.value,
        "mod_revision": kv.mod_revision,
        "create_revision": kv.create_revision,
        "version": kv.version,
        "lease": kv.lease,
        "prev_value": None if previous is None else previous.value,
    }
