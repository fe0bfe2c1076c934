"""The connections that python-etcd uses in place of urllib3's pools: own sockets, own limits, no repetition."""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlencode, urlsplit

from urllib3.connection import HTTPConnection
from urllib3.exceptions import ProtocolError, ReadTimeoutError

from elastic_backend_net.endpoint import Endpoint
from elastic_backend_net.interrupt import Interrupt
from elastic_core.api import SYSTEM_CLOCK, WaitBudget
from elastic_core.api.stores import WaitCancelledError
from elastic_rdzv_etcd.connection import LIMIT_S, Wire

if TYPE_CHECKING:
    from urllib3 import HTTPResponse

_FORM: Final = {"Content-Type": "application/x-www-form-urlencoded"}


class Line(HTTPConnection):
    """An HTTP connection of urllib3's on a connected socket; never connects again, repeats nothing."""

    auto_open = 0  # http.client would connect again on its own

    def __init__(self, wire: Wire, place: Endpoint) -> None:
        """Use a wire, which this object then owns."""
        super().__init__(place.host, place.port)
        self.wire = wire
        self.place = place
        self.answers = 0
        self.sock: Any = wire

    def usable(self) -> bool:
        """Return whether another request may be sent."""
        return self.sock is not None and self.wire.idle()

    def end(self) -> None:
        """Close the connection; idempotent."""
        self.close()
        self.wire.close()


class Channel:
    """The connections to one member: one for requests, and one on which an event is waited for.

    A wait that has timed out stays in progress; a request for the same event, or a later one, continues it. An event
    may therefore be older than the requested one.

    Threading: one thread; another one may cancel the wait of a call.
    """

    def __init__(self, line: Line, reach: Callable[[], Line], interrupt: Interrupt) -> None:
        """Use the first connection; `reach` makes another one to the same member."""
        self.line = line
        self.wait = WaitBudget()
        """Of the call that is under way."""
        self.end_s = 0.0
        self.sent = False
        """Whether the whole request may have reached the server."""
        self.status = 0
        """Of the last response."""
        self._reach = reach
        self._interrupt = interrupt
        self._waiter: Line | None = None
        self._pending: tuple[str, int, HTTPResponse] | None = None
        """Under what, from which index on, and what will bring it."""

    # --- what python-etcd asks of a pool

    def request(
        self,
        method: str,
        url: str,
        *,
        fields: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
        timeout: float | None = None,
        **_: object,
    ) -> "HTTPResponse":
        """Return the response to a request whose fields are in its path."""
        path = urlsplit(url).path + (f"?{urlencode(fields)}" if fields else "")
        if fields and fields.get("wait") == "true":
            return self._event(urlsplit(url).path, int(fields["waitIndex"]), path, headers or {}, timeout or 0.0)
        return self._response(self.line, method, path, None, headers or {})

    def request_encode_body(
        self,
        method: str,
        url: str,
        *,
        fields: Mapping[str, Any],
        headers: Mapping[str, str] | None = None,
        **_: object,
    ) -> "HTTPResponse":
        """Return the response to a request whose fields are its body."""
        body = urlencode(fields).encode()
        return self._response(self.line, method, urlsplit(url).path, body, {**(headers or {}), **_FORM})

    def clear(self) -> None:
        """Do nothing: the connections are not python-etcd's."""

    # --- behind it

    def _response(
        self,
        line: Line,
        method: str,
        path: str,
        body: bytes | None,
        headers: Mapping[str, str],
        *,
        whole: bool = True,
    ) -> "HTTPResponse":
        self.wait.check()
        self.sent, line.wire.end_s = False, self.end_s
        with self._interrupt.by(self.wait, line.wire.wake):
            line.request(method, path, body, headers, preload_content=whole, decode_content=False)
            self.sent = True
            response = line.getresponse()
        line.answers += 1
        self.status = response.status
        return response

    def _event(self, key: str, index: int, path: str, headers: Mapping[str, str], timeout_s: float) -> "HTTPResponse":
        """Return the response to a request for an event under a key, once there is one.

        Raises:
            ReadTimeoutError: there was none in time.
        """
        if self._pending is not None and (self._pending[0] != key or self._pending[1] > index):
            self.end_waiting()
        if self._pending is None:
            waiter = self._free_waiter()
            response = self._response(waiter, "GET", path, None, headers, whole=False)
            if self.wait.cancelled:  # that has ended the connection, though it had begun to answer
                self.end_waiting()
                raise WaitCancelledError
            if response.status != 200:
                return response
            self._pending = key, index, response
        self._until_there_is_one(path, timeout_s)
        try:
            return self._read()
        except BaseException:
            self.end_waiting()
            raise

    def _free_waiter(self) -> Line:
        if self._waiter is None or not self._waiter.usable():
            self.end_waiting()
            self._waiter = self._reach()
        return self._waiter

    def _until_there_is_one(self, path: str, timeout_s: float) -> None:
        assert self._waiter is not None
        wire, end_s = self._waiter.wire, SYSTEM_CLOCK.monotonic_s() + timeout_s
        while not wire.buffered():
            left_s = max(0.0, end_s - SYSTEM_CLOCK.monotonic_s())
            if self._interrupt.poll(wire.sock, left_s, self.wait):
                return
            if left_s <= 0:
                raise ReadTimeoutError(None, path, "no event in time")  # type: ignore[arg-type]  # there is no pool

    def _read(self) -> "HTTPResponse":
        assert self._waiter is not None
        assert self._pending is not None
        (_, _, response), self._pending = self._pending, None
        self._waiter.wire.end_s = SYSTEM_CLOCK.monotonic_s() + LIMIT_S
        with self._interrupt.by(self.wait, self._waiter.wire.wake):
            if not response.data:
                raise ProtocolError("the member ended the wait")
        return response

    def end_waiting(self) -> None:
        """End the wait for an event."""
        if self._waiter is not None:
            self._waiter.end()
        self._waiter = self._pending = None

    def end(self) -> None:
        """Close the connections; idempotent."""
        self.line.end()
        self.end_waiting()
