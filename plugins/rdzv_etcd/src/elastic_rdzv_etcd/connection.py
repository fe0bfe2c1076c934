"""One HTTP connection to a member: urllib3 has the protocol, this module the socket and every limit.

This module and its users import urllib3; `store` imports them when a connection is needed.
"""

import errno
import io
import select
import socket
import ssl
from collections.abc import Mapping
from http.client import BadStatusLine, HTTPException, HTTPResponse, IncompleteRead, LineTooLong, RemoteDisconnected
from typing import TYPE_CHECKING, Any, Final

from urllib3.connection import HTTPConnection

from elastic_backend_net.endpoint import Endpoint, dial
from elastic_backend_net.interrupt import Interrupt
from elastic_backend_net.tls import waker
from elastic_core.api import SYSTEM_CLOCK, WaitBudget
from elastic_core.api.stores import BackendRefusedError, BackendUnavailableError
from elastic_rdzv_etcd.tls import begin_tls, tls_failure
from elastic_rdzv_etcd.url import Tls

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

LIMIT_S: Final = 5.0
"""The time limit of a request, within the caller's budget."""
MOST_BYTES: Final = 1 << 26
"""The limit of a response. Members and documents of a thousand nodes have a quarter of it."""
DIAL_S: Final = 3.0
"""The time limit of one try to connect, with name resolution and TLS."""
_FIELD_LENGTHS: Final = frozenset(map(len, ("content-length", "transfer-encoding", "connection")))
"""The names of the used header fields; a gateway sends as many others."""
_CONTINUE: Final = 100
_EMPTY: Final = (204, 304)
_OLD: Final = 10
"""HTTP/1.0, as http.client counts."""
_LAST_CHUNK: Final = b"\r\n0\r\n\r\n"
"""The end of a chunk, and the empty last one without trailers."""
_LONGEST_LINE: Final = 65536
_MOST_FIELDS: Final = 100
_ALERT_S: Final = 1.0
_KEEPALIVE: Final = ((socket.TCP_KEEPIDLE, 15), (socket.TCP_KEEPINTVL, 5), (socket.TCP_KEEPCNT, 3))


class Wire(io.RawIOBase):
    """A connected socket with one deadline, `end_s`, for sending and receiving in any number of calls.

    It replaces the socket that http.client expects; data that a response reads ahead stay visible in `buffered`.
    """

    def __init__(self, sock: socket.socket) -> None:
        """Use a socket, which this object then owns."""
        self.sock = sock
        self.end_s = 0.0
        self.left_bytes = MOST_BYTES
        """How much more may come of what is being read."""
        self.wake = waker(sock)
        self._reader: io.BufferedReader | None = None

    # --- what http.client and urllib3 ask of a socket

    def makefile(self, *_: object) -> io.BufferedReader:
        """Return the reader of the next response; closing it leaves the socket open."""
        self.left_bytes = MOST_BYTES
        self._reader = io.BufferedReader(_Reader(self), 65536)
        return self._reader

    def sendall(self, data: bytes) -> None:
        """Send all data.

        Raises:
            TimeoutError: the data were not sent in time.
        """
        self.sock.settimeout(self._left_s())
        self.sock.sendall(data)

    def settimeout(self, _: float | None) -> None:
        """Do nothing: `end_s` counts."""

    def fileno(self) -> int:
        """Return the socket's."""
        return self.sock.fileno()

    def close(self) -> None:
        """Close the socket, after the response that is read from it is closed."""
        super().close()
        if self._reader is None or self._reader.closed:
            self.sock.close()

    # --- what we ask of one

    def receive(self, buffer: "WriteableBuffer") -> int:
        """Receive available data, and block until there are some. 0 means that the other side has ended.

        Raises:
            TimeoutError: there were none in time.
            OSError: the response is longer than the limit.
        """
        self.sock.settimeout(self._left_s())
        count = self.sock.recv_into(buffer)
        self.left_bytes -= count
        if self.left_bytes < 0:
            raise OSError(errno.EMSGSIZE, f"an answer of more than {MOST_BYTES >> 20} MiB")
        return count

    def buffered(self) -> bool:
        """Return whether there are received data that were not read."""
        if isinstance(self.sock, ssl.SSLSocket) and self.sock.pending():
            return True
        reader = self._reader
        return reader is not None and not reader.closed and bool(reader.raw.ahead(reader))  # type: ignore[attr-defined]

    def idle(self) -> bool:
        """Return whether the server has neither closed the connection nor sent unrequested data."""
        if self.sock.fileno() < 0:
            return False
        poll = select.poll()
        poll.register(self.sock, select.POLLIN)
        return not poll.poll(0)

    def _left_s(self) -> float:
        # Zero would mean not to block at all.
        return max(0.001, self.end_s - SYSTEM_CLOCK.monotonic_s())


class _Reader(io.RawIOBase):
    """The raw stream of one response."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire
        self._patient = True

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: "WriteableBuffer") -> int | None:
        return self._wire.receive(buffer) if self._patient else None

    def close(self) -> None:
        super().close()
        if self._wire.closed:
            self._wire.sock.close()

    def ahead(self, reader: io.BufferedReader) -> bytes:
        """Return the data that the reader above has read ahead, without reading more."""
        self._patient = False
        try:
            return reader.peek(1)
        finally:
            self._patient = True


class Response(HTTPResponse):
    """http.client's response with a faster parser of the head."""

    def begin(self) -> None:
        """Read status and headers.

        Raises:
            HTTPException: this is not HTTP.
        """
        status, fields = self._head()
        while status == _CONTINUE:
            status, fields = self._head()
        self.code = self.status = status
        self.chunked = fields.get("transfer-encoding", "").lower() == "chunked"
        self.chunk_left = None
        length = fields.get("content-length", "")
        self.length = None if self.chunked or not length.isdecimal() else int(length)
        if status in _EMPTY:
            self.length = 0
        keeps = "close" not in fields.get("connection", "").lower() if self.version > _OLD else False
        self.will_close = not keeps or (self.length is None and not self.chunked)

    def _head(self) -> tuple[int, dict[str, str]]:
        lines = self._lines()
        version, _, rest = lines[0].partition(" ")
        status = rest[:3]
        if not (version.startswith("HTTP/1.") and status.isascii() and status.isdecimal()):
            raise BadStatusLine(lines[0][:80]) if lines[0] else RemoteDisconnected("no answer")
        self.version = _OLD if version == "HTTP/1.0" else _OLD + 1
        fields = {}
        for line in lines[1:]:
            name, _, value = line.partition(":")
            if len(name) in _FIELD_LENGTHS:
                fields[name.lower()] = value.strip()
        return int(status), fields

    def _lines(self) -> list[str]:
        """Return the lines of a head; at least one also if it is malformed."""
        ready = self.fp.peek()  # mostly all of it
        end = ready.find(b"\r\n\r\n", 0, _LONGEST_LINE)
        if end >= 0:
            return self.fp.read(end + 4)[:-4].decode("iso-8859-1").split("\r\n")
        lines = [self._line()]
        while line := self._line():
            lines.append(line)
            if len(lines) > _MOST_FIELDS:
                raise HTTPException("too many headers")
        return lines

    def _line(self) -> str:
        raw = self.fp.readline(_LONGEST_LINE + 1)
        if len(raw) > _LONGEST_LINE:
            raise LineTooLong("header")
        return raw.decode("iso-8859-1").rstrip("\r\n")

    def body(self) -> bytes:
        """Return the complete body, and close the response.

        Raises:
            OSError, HTTPException: from the socket and http.client.
        """
        if self.chunked:
            ready = self.fp.peek()  # mostly all of it: one chunk, and the empty last one
            size, _, rest = ready.partition(b"\r\n")
            if rest.endswith(_LAST_CHUNK) and size == b"%x" % (len(rest) - len(_LAST_CHUNK)):
                self.fp.read(len(ready))
                self.close()
                return rest[: -len(_LAST_CHUNK)]
        return self.read()

    def chunk(self) -> bytes:
        """Return the next complete part of an endless response; empty if it ended.

        Raises:
            HTTPException: the connection is lost, or it is not HTTP.
        """
        if not self.chunked:
            raise HTTPException("not a stream")
        written = self._line().partition(";")[0].strip()
        try:
            size = int(written, 16)
        except ValueError:
            raise IncompleteRead(b"") from None
        whole = self.fp.read(size + 2)
        if len(whole) < size + 2:
            raise IncompleteRead(whole)
        return whole[:size]


class Connection(HTTPConnection):
    """Sends requests and reads responses on a connected wire; never connects again, repeats nothing.

    Threading: one thread; another one may cancel the wait of a call.
    """

    auto_open = 0  # http.client would connect again on its own
    response_class = Response

    def __init__(self, wire: Wire, place: Endpoint) -> None:
        """Use a wire, which this object then owns."""
        super().__init__(place.host, place.port)
        self.wire = wire
        self.place = place
        self.answers = 0
        self._host_line = f"Host: [{place.host}]:{place.port}" if ":" in place.host else f"Host: {place}"
        self.sock: Any = wire

    def send_post(self, path: str, body: bytes, headers: Mapping[str, str]) -> None:
        """Send a request once, head and body together; then `response` can be called.

        Raises:
            OSError, HTTPException: from the socket, or for an invalid header; the request is not complete.
        """
        lines = [f"POST {path} HTTP/1.1", self._host_line, f"Content-Length: {len(body)}"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        head = "\r\n".join((*lines, "\r\n"))
        if head.count("\r") + head.count("\n") != 2 * (len(lines) + 1):
            raise HTTPException("a header with a line's end in it")
        self.wire.sendall(head.encode("iso-8859-1") + body)

    def response(self) -> Response:
        """Return the response after its head is read; its body is not read yet.

        Raises:
            OSError, HTTPException: from the socket and http.client.
        """
        found = Response(self.wire, method="POST")  # type: ignore[arg-type]  # all of a socket that it asks for
        found.begin()
        if found.will_close:
            self.close()
        return found

    def usable(self) -> bool:
        """Return whether another request may be sent."""
        if self.sock is None:
            return False
        # Before the first answer TLS may have received tickets, of which nothing can be read.
        return (not self.answers and isinstance(self.wire.sock, ssl.SSLSocket)) or self.wire.idle()

    def end(self) -> None:
        """Close the connection; idempotent."""
        self.close()
        self.wire.close()
        self.wire.sock.close()

    @property
    def local_address(self) -> str:
        """This host's address on the connection."""
        return str(self.wire.sock.getsockname()[0]).partition("%")[0]


class Connector:
    """Opens connections to members; each call tries once."""

    def __init__(self, tls: Tls | None, interrupt: Interrupt) -> None:
        """Keep the TLS settings (`None` means no TLS)."""
        self._tls = tls
        self.interrupt = interrupt

    def reach(self, place: Endpoint, *, wait: WaitBudget, within_s: float = DIAL_S) -> Connection:
        """Return a connection to a member, with TLS if configured.

        Raises:
            BackendUnavailableError, BackendRefusedError: there is none; with the reason, the place and the tried
                addresses.
            WaitCancelledError, WaitExpiredError: from `wait`.
        """
        wait.check()
        end_s = SYSTEM_CLOCK.monotonic_s() + wait.remaining_s(within_s)
        sock = dial(place.host, place.port, timeout_s=within_s, wait=wait)
        try:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            for option, value in _KEEPALIVE:
                sock.setsockopt(socket.IPPROTO_TCP, option, value)
            if self._tls is not None:
                sock = begin_tls(
                    sock,
                    self._tls,
                    host=place.host,
                    peer=str(place),
                    timeout_s=end_s - SYSTEM_CLOCK.monotonic_s(),
                    interrupt=self.interrupt,
                    wait=wait,
                )
        except BaseException:
            sock.close()
            raise
        return Connection(Wire(sock), place)

    def hear_alert(self, place: Endpoint, *, wait: WaitBudget, within_s: float = _ALERT_S) -> None:
        """Raise the server's TLS alert about this client's certificate, if the server closed the connection for that.

        The server sends it after the handshake, and a client that is sending then may never read it, so this method
        reads.
        """
        within_s = min(_ALERT_S, within_s)
        if self._tls is None or within_s <= 0:
            return
        failure: ssl.SSLError
        try:
            wire = self.reach(place, wait=wait, within_s=within_s).wire
            wire.end_s = SYSTEM_CLOCK.monotonic_s() + wait.remaining_s(within_s)
            try:
                with self.interrupt.by(wait, wire.wake):
                    wire.receive(bytearray(1))
            finally:
                wire.close()
        except ssl.SSLError as error:
            failure = error
        except (OSError, BackendUnavailableError):
            return  # it was something else
        else:
            return
        told = tls_failure(failure, str(place))
        if isinstance(told, BackendRefusedError):
            raise told from failure
