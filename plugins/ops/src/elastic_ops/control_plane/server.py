"""The HTTP server: a thread that waits for connections, and one for each of them, up to a limit."""

import os
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from elastic_core.api import SYSTEM_CLOCK, Clock
from elastic_core.api.feed import AgentChannel
from elastic_ops.control_plane.handlers import Offer
from elastic_ops.control_plane.timed import Bounds, TimedSocket

MOST_CONNECTIONS: Final = 16
"""The most connections that are served at the same time; others wait in the kernel's queue."""
REFUSED_PAUSE_S: Final = 1.0
"""How long no connection is accepted after the system rejects one, usually because descriptors are missing."""


class HttpServer:
    """Serves pages and handlers on a listening socket until `shutdown`.

    Its threads never prevent the end of the process, and a forked child does not serve. No HTTP module is loaded before
    the first request.

    Args:
        listening: The socket, which `shutdown` closes.
        make_offer: Called for each connection, on its thread: returns pages and handlers.
        name: Name of the thread that waits for connections.
        bounds: Limits of a client.
        channel: Returns the run's secret channel between agents; a POST then needs the proof. `None` means that it
            needs none, since only the owner reaches the socket. Threading: any.

    Raises:
        RuntimeError: no thread can be started.
    """

    clock: Clock = SYSTEM_CLOCK

    def __init__(
        self,
        listening: socket.socket,
        make_offer: Callable[[], Offer],
        *,
        name: str,
        bounds: Bounds,
        channel: Callable[[], AgentChannel | None] | None = None,
    ) -> None:
        """Begin to serve."""
        self._socket = listening
        self._make_offer = make_offer
        self._name = name
        self._bounds = bounds
        self._channel = channel
        self._pid = os.getpid()
        self._second_s, self._accepted = self.clock.monotonic_s(), 0
        self._closed = threading.Event()
        self._room = threading.Semaphore(MOST_CONNECTIONS)
        self._strangers: dict[TimedSocket, float] = {}
        """When the connections came that have proved nothing."""
        self._thread = threading.Thread(target=self._accept, name=name, daemon=True)
        try:
            self._thread.start()
        except RuntimeError:
            self._socket.close()  # else clients would wait in vain
            raise
        _SERVERS.add(self)

    def hide(self) -> None:
        """Make the server unreachable for new clients. Called: once, as `shutdown` begins."""

    def end(self) -> None:
        """Release other resources. Called: once, as `shutdown` ends."""

    def shutdown(self) -> None:
        """Accept no more connections; idempotent. Does not wait for requests of the owner."""
        if self._closed.is_set() or os.getpid() != self._pid:
            return
        self._closed.set()
        self.hide()
        _SERVERS.discard(self)
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)  # wakes the thread that waits in it
        self._room.release()  # or for room
        self._thread.join()
        self._socket.close()
        self._drop_strangers(0.0)
        self.end()

    def _accept(self) -> None:
        while not self._closed.is_set():
            while not self._room.acquire(timeout=self._bounds.crowded_s):
                self._drop_strangers(self._bounds.crowded_s or 0.0)
            try:
                accepted, _ = self._socket.accept()
            except OSError:
                self._room.release()
                self._closed.wait(REFUSED_PAUSE_S)
                continue
            connection = TimedSocket.of(accepted)
            if self._bounds.crowded_s is not None:
                self._strangers[connection] = self.clock.monotonic_s()
            self._pace()
            served = threading.Thread(target=self._serve, args=(connection,), name=f"{self._name}-request", daemon=True)
            try:
                served.start()
            except RuntimeError:  # no thread to be had: this client is sent away, the training goes on
                self._end_of(connection)

    def _pace(self) -> None:
        """Wait for the next second after too many connections in this one."""
        now_s = self.clock.monotonic_s()
        if now_s >= self._second_s + 1.0:
            self._second_s, self._accepted = now_s, 0
        self._accepted += 1
        if self._accepted > self._bounds.connections_per_s:
            self._closed.wait(self._second_s + 1.0 - now_s)

    def _drop_strangers(self, after_s: float) -> None:
        """Close connections without a proof after this time, so that waiting ones are served."""
        now_s = self.clock.monotonic_s()
        for connection, since_s in self._strangers.copy().items():
            if now_s >= since_s + after_s:
                with suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)

    def _serve(self, connection: TimedSocket) -> None:
        from elastic_ops.control_plane.http import serve

        try:
            serve(
                connection,
                self._make_offer(),
                bounds=self._bounds,
                channel=self._channel,
                on_proof=lambda: self._strangers.pop(connection, None),
            )
        finally:
            self._end_of(connection)

    def _end_of(self, connection: TimedSocket) -> None:
        self._strangers.pop(connection, None)
        connection.close()
        self._room.release()

    def forget(self) -> None:
        """Close inherited sockets. Called: in a forked child."""
        self._closed = threading.Event()  # the old one may be held by a thread that is not here
        self._socket.close()


_SERVERS: Final[set[HttpServer]] = set()
"""The servers whose threads run."""


def _after_fork() -> None:
    for server in list(_SERVERS):
        server.forget()
    _SERVERS.clear()


os.register_at_fork(after_in_child=_after_fork)
