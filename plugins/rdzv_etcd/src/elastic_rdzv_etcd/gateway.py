"""Requests to an etcd cluster through the JSON gateway of its members: each sent once, to the member that answers."""

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
"""Any key will do: an answer says that there is a gateway, and a leader; that we may not read it is an answer, too."""
_AUTHENTICATE: Final = "auth/authenticate"
_WATCH: Final = "watch"
_PATIENT_S: Final = 2.0
"""A write that is not answered for so long met a leader that is gone, where there are other members to ask."""

_T = TypeVar("_T")


class _Turn(NamedTuple):
    """One member's turn to answer: what ends it, by when it must be over, and whether a lost answer leaves a doubt."""

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
    """Asks the members of a cluster, one at a time; after trouble with one, the next.

    Threading: one thread at a time.
    """

    def __init__(self, target: Target, *, login: Callable[[], Login], tls: Tls) -> None:
        """Keep how to reach the members; `login` is asked anew for each token, so that passwords may change."""
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
        """Make a new connection to the first member that answers, and return this host's address on it.

        Raises:
            BackendUnavailableError, BackendRefusedError: none does.
            WaitCancelledError, WaitExpiredError: from `wait`.
        """
        return self.open_and_watch((), wait)[0]

    def open_and_watch(self, creates: Sequence[dict[str, Any]], wait: WaitBudget) -> tuple[str, Stream | None]:
        """Do as `open`, and return the events of watches, too: that a member has begun them is answer enough.

        None for the events: there is nothing to be watched, or it is not permitted.
        """
        self._end()
        self._known, self._token = None, ""
        return self._on_a_member(lambda turn: self._probed(creates, turn), wait)

    def _probed(self, creates: Sequence[dict[str, Any]], turn: _Turn) -> tuple[str, Stream | None]:
        """Return this host's address on a connection to a member that serves us, and what it tells."""
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
        """End all connections: the next call makes new ones, to the next member."""
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
        """End all connections for good."""
        self._end()
        self._interrupt.close()

    def _ready(self, turn: _Turn) -> Connection:
        """Return a connection to the member whose turn it is, which the member has not closed."""
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
        """Return what a call returns at the first member where it does not fail before anything is written."""
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
        """Return the answer to `POST /v3/PATH`; of an answer that is a stream, its first part.

        Sent once, unless a member says that it has done nothing, or the request only reads: then the next one is asked.

        Raises:
            LeaseGoneError: the lease that it names is gone; nothing was written.
            CompactedError: the revision that it reads at is forgotten.
            BackendUnavailableError: no member can be reached, or serves us just now; nothing was written.
            OutcomeUnknownError: it writes, and there was no answer.
            BackendRefusedError: it is not permitted, or not understood.
            WaitCancelledError, WaitExpiredError: from `wait`.
        """
        return self._on_a_member(lambda turn: self._asked(path, body, turn), wait, writes=writes)

    def _asked(self, path: str, body: dict[str, Any], turn: _Turn) -> dict[str, Any]:
        """Return the answer of the member whose turn it is."""
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

        Returns when the member has begun all of them.

        Raises:
            CompactedError: a revision to start at is forgotten, if the member says so at once.
            BackendUnavailableError, BackendRefusedError: no member does it.
            WaitCancelledError, WaitExpiredError: from `wait`.
        """
        return self._on_a_member(lambda turn: self._streamed(creates, turn), wait)

    def _streamed(self, creates: Sequence[dict[str, Any]], turn: _Turn) -> Stream:
        """Return the stream of the member whose turn it is; requests go to the same."""
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
        """Return the stream that a member has begun; None: it wants another token."""
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
        """Return the reply to a request, sent once. The connection is over, unless there is one.

        Without `whole` the text of a success is left to be read.
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
                text = "" if response.status == 200 and not whole else response.read().decode(errors="replace")
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
            del failure  # whose traceback has this frame: all in it would be left to the collector

    def _content(self, line: Connection, path: str, reply: _Reply, turn: _Turn) -> dict[str, Any] | None:
        """Return the content of a reply; None: it calls for a new token.

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

    # --- who we are

    def _headers(self, line: Connection, turn: _Turn) -> dict[str, str]:
        """Return what goes with a request: the token, which is asked for where there is a user and none yet."""
        if self._known is None:
            self._known = self._login()
        if not self._known.username:
            return _HEADERS
        if not self._token:
            self._token = self._authenticated(line, self._known, turn._replace(writes=False))
        return _HEADERS | {"Authorization": self._token}

    def _authenticated(self, line: Connection, login: Login, turn: _Turn) -> str:
        """Return a token; a refused password is asked for anew the next time."""
        encoded = msgspec.json.encode({"name": login.username, "password": login.password})
        reply = self._post(line, _AUTHENTICATE, encoded, _HEADERS, turn)
        try:
            answer = self._content(line, _AUTHENTICATE, reply, turn)
        except BackendRefusedError:
            self._known = None
            raise
        return str((answer or {}).get("token", ""))

    def _forget_token(self, line: Connection) -> None:
        """Ask for another one with the next request.

        Raises:
            BackendRefusedError: there is no user to ask as.
        """
        if self._known is not None and not self._known.username:
            raise nobody(str(line.place))
        self._known, self._token = None, ""


def _all_of(failures: list[BackendError]) -> BackendError:
    """Return one error for what the members said."""
    if len(failures) == 1:
        return failures[0]
    refused = all(isinstance(failure, BackendRefusedError) for failure in failures)
    text = "; ".join(dict.fromkeys(failure.what for failure in failures))
    kind = BackendRefusedError if refused else BackendUnavailableError
    return kind(f"no member of the cluster serves us: {text}", hint=failures[0].hint)
