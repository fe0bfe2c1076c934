"""A small HTTP server for probes and scrapes: GET and HEAD on one thread, with bounds on what a stranger can do."""

import os
import selectors
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Final, NamedTuple

from elastic_core.api import SYSTEM_CLOCK, Clock

MOST_CONNECTIONS: Final = 16
"""The rest waits in the kernel's queue."""
MOST_A_SECOND: Final = 50
"""Connections that are accepted in a second."""
REQUEST_LIMIT_S: Final = 5.0
"""A connection's whole life, from its first byte to our last."""
CROWDED_LIMIT_S: Final = 1.0
"""The same while all connections are in use: who holds one for nothing makes room for who waits."""
LONGEST_REQUEST: Final = 8192
MOST_READS: Final = 64
"""Pieces in which a request may come: one byte at a time would wake us for each."""
REFUSED_PAUSE_S: Final = 1.0
"""How long nothing is accepted after the system refused, most often for want of descriptors."""


class Page(NamedTuple):
    """An answer."""

    status: int
    content_type: str
    content: bytes


class PageServer:
    """Listens until `close`.

    Args:
        host: The address; with a colon: IPv6.
        port: 0: one that is free.
        answer: Returns the page at a path, without its query. Called: on the server's thread, one call at a time; it
            must not block.
        name: Of the thread.

    Raises:
        OSError: the port can't be had.
        RuntimeError: there is no thread to be had.
    """

    def __init__(
        self, host: str, port: int, answer: Callable[[str], Page], *, name: str, clock: Clock = SYSTEM_CLOCK
    ) -> None:
        """Listen, and begin to answer."""
        self._listener = _listener(host, port)
        self.port: int = self._listener.getsockname()[1]
        self._answer = answer
        self._clock = clock
        self._selector = selectors.DefaultSelector()
        self._connections: set[_Connection] = set()
        self._listening = self._closing = False
        self._accepted = 0
        self._second_s = self._pause_s = clock.monotonic_s()
        self._wake_read, self._wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._selector.register(self._wake_read, selectors.EVENT_READ)
        self._thread = threading.Thread(target=self._serve, name=name, daemon=True)
        try:
            self._thread.start()
        except RuntimeError:
            self._give_back()
            raise

    def close(self) -> None:
        """Answer no more; idempotent."""
        if self._closing:
            return
        self._closing = True
        os.write(self._wake_write, b"\0")
        self._thread.join()
        self._give_back()

    def _give_back(self) -> None:
        for connection in tuple(self._connections):
            self._drop(connection)
        self._selector.close()
        self._listener.close()
        os.close(self._wake_read)
        os.close(self._wake_write)

    # --- the thread

    def _serve(self) -> None:
        while not self._closing:
            for key, _ in self._selector.select(self._prepare()):
                if key.fileobj is self._listener:
                    self._accept()
                elif isinstance(key.data, _Connection):
                    self._move(key.data)

    def _prepare(self) -> float | None:
        """Drop who is over its time, listen if there is room, and return how long nothing else is due."""
        now_s = self._clock.monotonic_s()
        limit_s = REQUEST_LIMIT_S if len(self._connections) < MOST_CONNECTIONS else CROWDED_LIMIT_S
        for connection in tuple(self._connections):
            if now_s >= connection.began_s + limit_s:
                self._drop(connection)
        if now_s >= self._second_s + 1.0:
            self._second_s, self._accepted = now_s, 0
        room, due_s = len(self._connections) < MOST_CONNECTIONS, now_s >= self._pause_s
        wanted = room and due_s and self._accepted < MOST_A_SECOND
        if wanted != self._listening:
            self._listening = wanted
            if wanted:
                self._selector.register(self._listener, selectors.EVENT_READ)
            else:
                self._selector.unregister(self._listener)
        ends_s = [connection.began_s + limit_s for connection in self._connections]
        if room and not wanted:
            ends_s.append(self._pause_s if not due_s else self._second_s + 1.0)
        return max(0.0, min(ends_s) - now_s) if ends_s else None

    def _accept(self) -> None:
        try:
            accepted, _ = self._listener.accept()
        except (BlockingIOError, ConnectionAbortedError):  # the client has gone again
            return
        except OSError:
            self._pause_s = self._clock.monotonic_s() + REFUSED_PAUSE_S
            return
        self._accepted += 1
        connection = _Connection(accepted, self._clock.monotonic_s())
        self._connections.add(connection)
        self._selector.register(accepted, selectors.EVENT_READ, connection)

    def _move(self, connection: "_Connection") -> None:
        try:
            if connection.reply is None and connection.read():
                connection.reply = self._reply(bytes(connection.request))
                self._selector.modify(connection.socket, selectors.EVENT_WRITE, connection)
            elif connection.reply is not None and not connection.write():
                self._drop(connection)
        except BlockingIOError:
            return
        except OSError:  # a probe that only connects, or has gone: nobody is left to tell
            self._drop(connection)

    def _drop(self, connection: "_Connection") -> None:
        self._connections.discard(connection)
        self._selector.unregister(connection.socket)
        connection.socket.close()

    def _reply(self, request: bytes) -> bytes:
        method, _, rest = request.partition(b"\r\n")[0].decode("latin-1").partition(" ")
        target, _, version = rest.partition(" ")
        if not version.startswith("HTTP/1."):
            page = Page(400, "text/plain", b"no HTTP/1 request\n")
        elif method not in ("GET", "HEAD"):
            page = Page(501, "text/plain", b"GET and HEAD are answered\n")
        else:
            try:
                page = self._answer(target.partition("?")[0])
            except Exception as err:  # noqa: BLE001  # anybody's code: its error is the answer
                page = Page(500, "text/plain", f"{type(err).__name__}: {err}\n".encode(errors="replace"))
        from http import HTTPStatus  # nobody may ever ask

        head = (
            f"HTTP/1.0 {page.status} {HTTPStatus(page.status).phrase}\r\nContent-Type: {page.content_type}\r\n"
            f"Content-Length: {len(page.content)}\r\nConnection: close\r\n\r\n"
        )
        return head.encode() + (b"" if method == "HEAD" else page.content)


def _listener(host: str, port: int) -> socket.socket:
    sock = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind((host, port))
        sock.listen(MOST_CONNECTIONS)
        sock.setblocking(False)
    except BaseException:
        sock.close()
        raise
    return sock


class _Connection:
    """One request, and what is left of its answer."""

    def __init__(self, accepted: socket.socket, began_s: float) -> None:
        accepted.setblocking(False)
        self.socket = accepted
        self.began_s = began_s
        self.request = bytearray()
        self.reply: bytes | None = None
        self._reads = 0

    def read(self) -> bool:
        """Take what has come; return whether it is a whole request.

        Raises:
            OSError: the client has gone, or is none that we would serve.
        """
        piece = self.socket.recv(LONGEST_REQUEST)
        self.request += piece
        self._reads += 1
        if b"\r\n\r\n" in self.request:
            return True
        if not piece or self._reads >= MOST_READS or len(self.request) >= LONGEST_REQUEST:
            raise ConnectionError("no request")
        return False

    def write(self) -> bool:
        """Send what fits; return whether anything is left."""
        assert self.reply is not None
        self.reply = self.reply[self.socket.send(self.reply) :]
        if not self.reply:
            with suppress(OSError):
                self.socket.shutdown(socket.SHUT_WR)
        return bool(self.reply)
