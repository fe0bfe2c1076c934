"""Requests to etcd's v2 API through python-etcd: each sent once, to the member that responds; and their errors.

This module imports python-etcd; `elastic_rdzv_etcd.v2.store` imports it when a connection is needed.
"""

import logging
from collections.abc import Callable
from typing import Any, Final

import etcd  # type: ignore[import-untyped]

from elastic_backend_net.endpoint import Endpoint
from elastic_backend_net.interrupt import Interrupt
from elastic_core.api import SYSTEM_CLOCK, ElasticError, WaitBudget
from elastic_core.api.stores import (
    BackendError,
    BackendRefusedError,
    BackendUnavailableError,
    OutcomeUnknownError,
    WaitCancelledError,
    WaitExpiredError,
)
from elastic_rdzv_etcd.connection import DIAL_S, Connector
from elastic_rdzv_etcd.failures import WrongServerError, lost
from elastic_rdzv_etcd.url import Login, Target, Tls
from elastic_rdzv_etcd.v2.channel import Channel, Line
from elastic_rdzv_etcd.v2.errors import ConflictError, ForgottenError, MissingError

_SHOWN: Final = 160
_NO_V2_HINT: Final = "--enable-v2=true of the server (etcd up to 3.5), or --rdzv-backend etcd, which needs no v2 API"
_LOGIN_HINT: Final = (
    "http://USER:PASSWORD@HOST:PORT, ELASTIC_ETCD_USERNAME and ELASTIC_ETCD_PASSWORD in the environment, or "
    "--rdzv-conf username=USER,password_file=PATH"
)
_PORT_HINT: Final = "the client port of an etcd server (mostly 2379); https:// if it speaks TLS"

# Its log lines before it raises are replaced by this module's, once, and perhaps not as an error.
logging.getLogger("etcd.client").setLevel(logging.CRITICAL)

Request = Callable[[Any], Any]
"""Calls a client of python-etcd, and returns its result."""


class Session:
    """Sends requests to the members of a cluster, one at a time; after a failure of one, to the next.

    Threading: one thread at a time.
    """

    def __init__(self, target: Target, *, login: Callable[[], Login], tls: Tls, limit_s: float) -> None:
        """Keep the members' settings. No request takes longer than `limit_s`; `login` is called for each member."""
        self._target = target
        self._login = login
        self._limit_s = limit_s
        self._interrupt = Interrupt()
        self._connector = Connector(tls if target.tls else None, self._interrupt)
        self._at = 0
        self._channel: Channel | None = None
        self._client: Any = None
        self._known = Login()

    # --- connections

    def open(self, key: str, wait: WaitBudget) -> str:
        """Make a new connection to the first member that responds, and return this host's address on it.

        Args:
            key: The key of a trial read; it need not exist.
            wait: Limits the call.

        Raises:
            BackendUnavailableError, BackendRefusedError: none responds.
            WaitCancelledError, WaitExpiredError: from `wait`.
        """
        self._end()
        address: str = self._on_a_member(lambda end_s: self._probe(key, wait, end_s), wait)
        return address

    def _probe(self, key: str, wait: WaitBudget, end_s: float) -> str:
        channel = self._ready(wait, end_s)
        address = str(channel.line.wire.sock.getsockname()[0]).partition("%")[0]
        try:
            self._asked(lambda client: client.read(key, quorum=True), wait, end_s, writes=False)
        except MissingError:
            return address
        except BackendUnavailableError:
            if not channel.line.answers:
                left_s = max(0.0, end_s - SYSTEM_CLOCK.monotonic_s())
                self._connector.hear_alert(channel.line.place, wait=wait, within_s=left_s)
            raise
        return address

    def drop(self) -> None:
        """Close all connections: the next call makes new ones, to the next member."""
        self._end()
        self._at = (self._at + 1) % len(self._target.hosts)

    def _end(self) -> None:
        channel, self._channel, self._client = self._channel, None, None
        if channel is not None:
            channel.end()

    def close(self) -> None:
        """Close all connections for good."""
        self._end()
        self._interrupt.close()

    @property
    def fresh(self) -> bool:
        """Whether the member has not responded yet: another one may be ahead of it."""
        return self._channel is None or self._channel.line.answers == 0 or not self._channel.line.usable()

    @property
    def place(self) -> object:
        """The identity of the connection, which differs for each connection, and for none."""
        return None if self._channel is None or not self._channel.line.usable() else self._channel

    def _ready(self, wait: WaitBudget, end_s: float) -> Channel:
        """Return open connections to the member in turn."""
        if self._channel is None or not self._channel.line.usable():
            self._end()
            place = self._target.hosts[self._at]
            line = self._reach(place, wait, end_s)
            # A waiting connection is made for the call that is under way then.
            self._channel = channel = Channel(
                line, lambda: self._reach(place, channel.wait, channel.end_s), self._interrupt
            )
            self._client = self._python_etcd(place, channel)
        self._channel.wait, self._channel.end_s = wait, end_s
        return self._channel

    def _reach(self, place: Endpoint, wait: WaitBudget, end_s: float) -> Line:
        within_s = min(DIAL_S, max(0.0, end_s - SYSTEM_CLOCK.monotonic_s()))
        try:
            wire = self._connector.reach(place, wait=wait, within_s=within_s).wire
        except BackendRefusedError as error:  # of TLS: another member may have a better certificate
            raise WrongServerError(error.what, hint=error.hint) from error
        return Line(wire, place)

    def _python_etcd(self, place: Endpoint, channel: Channel) -> Any:  # noqa: ANN401  # untyped
        self._known = self._login()
        client = etcd.Client(
            host=f"[{place.host}]" if ":" in place.host else place.host,
            port=place.port,
            protocol="https" if self._target.tls else "http",
            allow_reconnect=False,  # it would repeat writes
            allow_redirect=False,
            username=self._known.username or None,
            password=self._known.password or None,
        )
        client.http = channel
        return client

    def _on_a_member(self, call: Callable[[float], Any], wait: WaitBudget, *, patient: bool = False) -> Any:  # noqa: ANN401
        """Return the result of a call at the first member where it does not fail before a write.

        Args:
            call: Receives its deadline.
            wait: Limits all tries, in addition to the limit of a request.
            patient: Whether one call may take all of the time; else some is left for the other members.
        """
        wait.check()
        end_s = SYSTEM_CLOCK.monotonic_s() + wait.remaining_s(self._limit_s)
        failures: list[BackendError] = []
        for left in range(len(self._target.hosts), 0, -1):
            now_s = SYSTEM_CLOCK.monotonic_s()
            if failures and now_s >= end_s:
                break
            try:
                return call(end_s if patient else now_s + (end_s - now_s) / left)
            except ForgottenError:
                raise
            except (BackendUnavailableError, WrongServerError) as error:
                self.drop()
                failures.append(error)
            except OutcomeUnknownError:
                self.drop()
                raise
        raise _all_of(failures)

    # --- requests

    def ask(self, request: Request, *, wait: WaitBudget, writes: bool) -> Any:  # noqa: ANN401  # an EtcdResult
        """Return the result of a request, sent once, unless a member reports that it has done nothing.

        Raises:
            MissingError, ConflictError: it was not carried out, because of the key's state.
            BackendUnavailableError: no member can be reached or accepts requests now; nothing was written.
            OutcomeUnknownError: it writes, and there was no response.
            BackendRefusedError: it is not permitted, or there is no v2 API.
            WaitCancelledError, WaitExpiredError: from `wait`.
        """
        return self._on_a_member(lambda end_s: self._asked(request, wait, end_s, writes=writes), wait, patient=writes)

    def event(self, key: str, index: int, *, timeout_s: float, wait: WaitBudget) -> Any:  # noqa: ANN401
        """Return the next event under a key. `None` if there was none in time.

        No event from `index` of the server on is missed; an earlier one may come again.

        Raises:
            ForgottenError: the server no longer keeps events since then.
            BackendUnavailableError, BackendRefusedError: no member accepts the request.
            WaitCancelledError, WaitExpiredError: from `wait`.
        """

        def request(client: Any) -> Any:  # noqa: ANN401
            try:
                return client.watch(key, index=index, timeout=max(0.001, timeout_s), recursive=True)
            except etcd.EtcdWatchTimedOut:
                return None

        end_s = SYSTEM_CLOCK.monotonic_s() + wait.remaining_s(self._limit_s)
        try:
            return self._asked(request, wait, end_s, writes=False)
        except ForgottenError:
            raise
        except BackendUnavailableError:
            self.drop()
            raise

    def _asked(self, request: Request, wait: WaitBudget, end_s: float, *, writes: bool) -> Any:  # noqa: ANN401
        """Return the result of the member in turn. The connections are closed, unless it responded."""
        channel = self._ready(wait, end_s)
        try:
            return request(self._client)
        except etcd.EtcdException as error:
            failure = error
        except (WaitCancelledError, WaitExpiredError):
            raise
        except BaseException:
            self._end()
            raise
        meant = self._meaning(failure, channel, writes=writes)
        if not isinstance(meant, (MissingError, ConflictError, ForgottenError)):
            self._end()
        if wait.cancelled:
            raise WaitCancelledError
        raise meant from (None if self._known.password else failure)

    # --- what errors mean

    def _meaning(self, error: Exception, channel: Channel, *, writes: bool) -> ElasticError:
        """Return the core's error for an error of python-etcd."""
        peer = str(channel.line.place)
        payload = getattr(error, "payload", None) or {}
        code = payload.get("errorCode")
        shown = " ".join(self._known.hidden_in(f"{payload.get('message')} ({payload.get('cause')})").split())[:_SHOWN]
        open_ = OutcomeUnknownError if writes else BackendUnavailableError
        match error:
            case etcd.EtcdConnectionFailed(cause=Exception() as cause):
                first = not channel.line.answers
                return lost(cause, peer=peer, sent=channel.sent, writes=writes, first=first)
            case etcd.EtcdKeyNotFound() if code is not None:
                return MissingError(f"{peer} has no such key", index=int(payload.get("index") or 0))
            case etcd.EtcdCompareFailed() | etcd.EtcdAlreadyExist() | etcd.EtcdDirNotEmpty():
                return ConflictError(f"{peer} has another value of that key")
            case etcd.EtcdEventIndexCleared() | etcd.EtcdWatcherCleared():
                return ForgottenError(f"{peer} has forgotten the events that were asked for")
            case etcd.EtcdInsufficientPermissions():
                return self._refusal(peer)
            case etcd.EtcdClusterIdChanged():
                return open_(f"what answers at {peer} is another cluster than before")
        if code is None and channel.status == 404:
            return WrongServerError(f"{peer} does not speak etcd's v2 API", hint=_NO_V2_HINT)
        if channel.status >= 500 or (isinstance(code, int) and 300 <= code < 400):
            return open_(f"{peer} answered with HTTP status {channel.status}: {shown}")
        if code is None:
            what = f"{peer} does not answer as etcd's v2 API does (HTTP status {channel.status})"
            return WrongServerError(what, hint=_PORT_HINT)
        return BackendRefusedError(f"{peer} answered: {shown}", hint="etcd 2.3 to 3.5, with its v2 API")

    def _refusal(self, peer: str) -> BackendRefusedError:
        if not self._known.username:
            what = f"{peer} requires a user and a password, and none was given"
        else:
            what = f"{peer} does not let user {self._known.username!r} read and write what a rendezvous needs"
        return BackendRefusedError(what, hint=_LOGIN_HINT)


def _all_of(failures: list[BackendError]) -> BackendError:
    """Return one error for all members' errors."""
    if len(failures) == 1:
        return failures[0]
    refused = all(isinstance(failure, BackendRefusedError) for failure in failures)
    text = "; ".join(dict.fromkeys(failure.what for failure in failures))
    kind = BackendRefusedError if refused else BackendUnavailableError
    return kind(f"no member of the cluster serves us: {text}", hint=failures[0].hint)
