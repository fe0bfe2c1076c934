"""Requests to an etcd cluster through its members' JSON gateway: each sent once, to the member that responds."""

from collections.abc import Callable, Sequence
from http.client import HTTPException
from typing import Any, Final, NamedTuple, TypeVar

import msgspec

from elastic_backend_net.interrupt import Interrupt
from elastic_core.api import SYSTEM_CLOCK, WaitBudget
from elastic_core.api.stores import (
    BackendError,
    BackendRefusedError,
    BackendUnavailableError,
    OutcomeUnknownError,
    WaitCancelledError,
)
from elastic_rdzv_etcd.coding import EVERYTHING, b64, prefix_end, unb64
from elastic_rdzv_etcd.connection import DIAL_S, LIMIT_S, Connection, Connector, Response
from elastic_rdzv_etcd.errors import CompactedError, LeaseGoneError
from elastic_rdzv_etcd.failures import NotPermittedError, Said, WrongServerError, answered, lost, nobody
from elastic_rdzv_etcd.stream import Stream
from elastic_rdzv_etcd.url import Login, Target, Tls

__all__ = ["CompactedError", "Gateway", "LeaseGoneError", "Stream", "b64", "prefix_end", "unb64"]

_FAILURES: Final = (OSError, HTTPException)
_HEADERS: Final = {
    "User-Agent": "elastic-rdzv-etcd",
    "Grpc-Metadata-hasleader": "true",  # a member that is cut off says so at once, and ends its watches
}
_PROBE: Final = {"key": b64(EVERYTHING), "limit": "1", "keys_only": True}
"""Any key serves: a response shows a gateway and a leader; a missing permission is a response, too."""
_AUTHENTICATE: Final = "auth/authenticate"
_WATCH: Final = "watch"
_PATIENT_S: Final = 2.0
"""A write without a response for this long probably met a lost leader, if there are other members to try."""

_T = TypeVar("_T")


class _Turn(NamedTuple):
    """One member's turn: its interruption, its deadline, and whether a lost response leaves the outcome unknown."""

    wait: WaitBudget
    end_s: float
    writes: bool = False

    def left_s(self) -> float:
        return max(0.0, self.end_s - SYSTEM_CLOCK.monotonic_s())


class _Reply(NamedTuple):
    status: int
    text: str
    rest: Response


class Gateway:
    """Sends requests to the members of a cluster, one at a time; after a failure of one, to the next.

    Threading: one thread at a time.
    """

    def __init__(self, target: Target, *, login: Callable[[], Login], tls: Tls) -> None:
        """Keep the members' settings. `login` is called for each token, so that passwords may change."""
        self.notices: list[str] = []
        self._hosts = target.hosts
        self._login = login
        self._interrupt = Interrupt()
        self._connector = Connector(tls if target.tls else None, self._interrupt)
        self._at = 0
        self._line: Connection | None = None
        self._streams: list[Stream] = []
        self._known: Login | None = None
        self._token = ""

    # --- connections

    def open(self, wait: WaitBudget) -> str:
        """Make a new connection to the first member that responds, and return this host's address on it.

        Raises:
            BackendUnavailableError, BackendRefusedError: none responds.
            WaitCancelledError, WaitExpiredError: from `wait`.
        """
        return self.open_and_watch((), wait)[0]

    def open_and_watch(self, creates: Sequence[dict[str, Any]], wait: WaitBudget) -> tuple[str, Stream | None]:
        """Like `open`, and also return the events of watches: a member that has started them has responded.

        `None` in place of the events if there is nothing to watch, or if that is not permitted.
        """
        self._end()
        self._known, self._token = None, ""
        return self._on_a_member(lambda turn: self._probed(creates, turn), wait)

    def _probed(self, creates: Sequence[dict[str, Any]], turn: _Turn) -> tuple[str, Stream | None]:
        """Return this host's address on a connection to a member that accepts requests, and its events."""
        line = self._ready(turn)
        address = line.local_address
        try:
            if creates:
                return address, self._streamed(creates, turn)
            self._asked("kv/range", _PROBE, turn)
        except NotPermittedError:
            return address, None
        except BackendUnavailableError:
            self._connector.hear_alert(line.place, wait=turn.wait, within_s=turn.left_s())
            raise
        return address, None

    def drop(self) -> None:
        """Close all connections: the next call makes new ones, to the next member."""
        self._end()
        self._at = (self._at + 1) % len(self._hosts)

    def _end(self) -> None:
        line, self._line = self._line, None
        if line is not None:
            line.end()
        streams, self._streams = self._streams, []
        for stream in streams:
            stream.close()

    def close(self) -> None:
        """Close all connections for good."""
        self._end()
        self._interrupt.close()

    def _ready(self, turn: _Turn) -> Connection:
        """Return an open connection to the member in turn."""
        if self._line is None or not self._line.usable():
            self._end()
            self._line = self._reach(turn)
        return self._line

    def _reach(self, turn: _Turn) -> Connection:
        try:
            return self._connector.reach(self._hosts[self._at], wait=turn.wait, within_s=min(DIAL_S, turn.left_s()))
        except BackendRefusedError as error:  # of TLS: another member may have a better certificate
            raise WrongServerError(error.what, hint=error.hint) from error

    def _on_a_member(self, call: Callable[[_Turn], _T], wait: WaitBudget, *, writes: bool = False) -> _T:
        """Return the result of a call at the first member where it does not fail before a write."""
        wait.check()
        end_s = SYSTEM_CLOCK.monotonic_s() + wait.remaining_s(LIMIT_S)
        failures: list[BackendError] = []
        for left in range(len(self._hosts), 0, -1):
            now_s = SYSTEM_CLOCK.monotonic_s()
            if failures and now_s >= end_s:
                break
            share_s = (end_s - now_s) / left
            if writes:
                share_s = max(share_s, _PATIENT_S)
            try:
                return call(_Turn(wait, min(end_s, now_s + share_s), writes))
            except CompactedError:
                raise
            except (BackendUnavailableError, WrongServerError) as error:
                self.drop()
                failures.append(error)
            except OutcomeUnknownError:
                self.drop()
                raise
        raise _all_of(failures)

    # --- requests

    def ask(self, path: str, body: dict[str, Any], *, wait: WaitBudget, writes: bool) -> dict[str, Any]:
        """Return the response to `POST /v3/PATH`; of a stream, its first part.

        It is sent once, unless a member reports that it has done nothing, or the request only reads: then the next
        member is tried.

        Raises:
            LeaseGoneError: the lease in it is gone; nothing was written.
            CompactedError: the revision that it reads is compacted.
            BackendUnavailableError: no member can be reached or accepts requests now; nothing was written.
            OutcomeUnknownError: it writes, and there was no response.
            BackendRefusedError: it is not permitted, or not understood.
            WaitCancelledError, WaitExpiredError: from `wait`.
        """
        return self._on_a_member(lambda turn: self._asked(path, body, turn), wait, writes=writes)

    def _asked(self, path: str, body: dict[str, Any], turn: _Turn) -> dict[str, Any]:
        """Return the response of the member in turn."""
        line, encoded = self._ready(turn), msgspec.json.encode(body)
        for _ in range(2):
            reply = self._post(line, path, encoded, self._headers(line, turn), turn)
            answer = self._content(line, path, reply, turn)
            if answer is not None:
                return answer
            self._forget_token(line)  # it was refused: nothing was done
        raise BackendRefusedError(f"{line.place} does not accept the token that it gave")

    def stream(self, creates: Sequence[dict[str, Any]], *, wait: WaitBudget) -> Stream:
        """Return the events of watches, one for each `create_request`, on a connection of its own.

        Returns when the member has started all of them.

        Raises:
            CompactedError: a revision to start at is compacted, if the member reports that at once.
            BackendUnavailableError, BackendRefusedError: no member starts them.
            WaitCancelledError, WaitExpiredError: from `wait`.
        """
        return self._on_a_member(lambda turn: self._streamed(creates, turn), wait)

    def _streamed(self, creates: Sequence[dict[str, Any]], turn: _Turn) -> Stream:
        """Return the stream of the member in turn; requests go to the same member."""
        encoded = b"\n".join(msgspec.json.encode({"create_request": create}) for create in creates)
        self._ready(turn)
        for last in (False, True):
            line = self._reach(turn)
            try:
                stream = self._begun(line, encoded, len(creates), turn)
            except NotPermittedError:  # so etcd calls a token that has expired, where it is for a watch
                line.end()
                if last:
                    raise
                stream = None
            except BaseException:
                line.end()
                raise
            if stream is not None:
                self._streams = [*(other for other in self._streams if not other.closed), stream]
                return stream
            line.end()
            self._forget_token(line)
        raise BackendRefusedError(f"{line.place} does not accept the token that it gave")

    def _begun(self, line: Connection, encoded: bytes, watches: int, turn: _Turn) -> Stream | None:
        """Return the stream that a member has started. `None` if it needs another token."""
        # Else Go's server throws away what it has not read of the request when it begins to answer: the last watches.
        headers = {**self._headers(line, turn), "Connection": "close"}
        reply = self._post(line, _WATCH, encoded, headers, turn, whole=False)
        if reply.status != 200:
            if self._content(line, _WATCH, reply, turn) is None:
                return None
            raise BackendUnavailableError(f"{line.place} did not begin the watch")
        stream = Stream(line, reply.rest, self._interrupt, watches=watches, login=self._known or Login())
        stream.begin(turn.wait, turn.end_s)
        return stream

    def _post(
        self, line: Connection, path: str, encoded: bytes, headers: dict[str, str], turn: _Turn, *, whole: bool = True
    ) -> _Reply:
        """Return the reply to a request, sent once. The connection is closed if there is none.

        Without `whole`, the text of a success is not read yet.
        """
        turn.wait.check()
        sent = False
        failure: Exception
        line.wire.end_s = turn.end_s
        try:
            with self._interrupt.by(turn.wait, line.wire.wake):
                line.send_post(f"/v3/{path}", encoded, headers)
                sent = True
                response = line.response()
                text = "" if response.status == 200 and not whole else response.body().decode(errors="replace")
                line.answers += 1
                return _Reply(response.status, text, response)
        except _FAILURES as error:
            failure = error
        except BaseException:
            line.end()
            raise
        line.end()
        try:
            if turn.wait.cancelled:
                raise WaitCancelledError
            told = lost(failure, peer=str(line.place), sent=sent, writes=turn.writes, first=not line.answers)
            raise told from failure
        finally:
            del failure  # its traceback has this frame: the garbage collector would have to free its objects

    def _content(self, line: Connection, path: str, reply: _Reply, turn: _Turn) -> dict[str, Any] | None:
        """Return the content of a reply. `None` if a new token is needed.

        Raises:
            BackendError: it is an error.
        """
        if reply.status == 200:
            try:
                answer = msgspec.json.decode(reply.text.partition("\n")[0])
            except (msgspec.DecodeError, RecursionError):
                answer = None
            if isinstance(answer, dict) and "error" not in answer:
                content = answer.get("result", answer)
                if isinstance(content, dict):
                    return content
        found = answered(
            reply.status, reply.text, peer=str(line.place), login=self._known or Login(), writes=turn.writes, path=path
        )
        if found is Said.TOKEN:
            return None
        raise found

    # --- authentication

    def _headers(self, line: Connection, turn: _Turn) -> dict[str, str]:
        """Return the headers of a request with the token, which is requested if there is a user and no token yet."""
        if self._known is None:
            self._known = self._login()
        if not self._known.username:
            return _HEADERS
        if not self._token:
            self._token = self._authenticated(line, self._known, turn._replace(writes=False))
        return _HEADERS | {"Authorization": self._token}

    def _authenticated(self, line: Connection, login: Login, turn: _Turn) -> str:
        """Return a token. A rejected password is read again the next time."""
        encoded = msgspec.json.encode({"name": login.username, "password": login.password})
        reply = self._post(line, _AUTHENTICATE, encoded, _HEADERS, turn)
        try:
            answer = self._content(line, _AUTHENTICATE, reply, turn)
        except BackendRefusedError:
            self._known = None
            raise
        return str((answer or {}).get("token", ""))

    def _forget_token(self, line: Connection) -> None:
        """Request another token with the next request.

        Raises:
            BackendRefusedError: there is no user.
        """
        if self._known is not None and not self._known.username:
            raise nobody(str(line.place))
        self._known, self._token = None, ""


def _all_of(failures: list[BackendError]) -> BackendError:
    """Return one error for all members' errors."""
    if len(failures) == 1:
        return failures[0]
    refused = all(isinstance(failure, BackendRefusedError) for failure in failures)
    text = "; ".join(dict.fromkeys(failure.what for failure in failures))
    kind = BackendRefusedError if refused else BackendUnavailableError
    return kind(f"no member of the cluster serves us: {text}", hint=failures[0].hint)
