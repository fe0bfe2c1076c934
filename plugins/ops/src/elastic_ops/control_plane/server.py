"""A server on a unix socket: one daemon thread that waits for connections, and one more for each of them."""

import os
import socket
import threading
import weakref
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING

from elastic_core.api import ConfigError
from elastic_ops.control_plane import sockets
from elastic_ops.control_plane.paths import remove_socket

if TYPE_CHECKING:
    from elastic_ops.control_plane.http import Offer


class Server:
    """Serves what is offered on an owner-only unix socket until `shutdown`.

    Its threads never keep the process from ending, and a forked child has no part in it. There is no TCP: whoever
    reaches a port would run handlers in the training. Nothing of HTTP is loaded before the first request.

    Args:
        path: Where the socket is made. Its directory must be this user's (or root's, with the sticky bit), and not
            writable by others; what a server that is gone left there is replaced.
        make_offer: Called for each connection, on its thread: what is offered.

    Raises:
        ConfigError: the path can't be used.
        RuntimeError: there is no thread to be had.
    """

    def __init__(self, path: str, make_offer: "Callable[[], Offer]") -> None:
        """Listen, and begin to serve."""
        self._path = os.path.abspath(path)  # noqa: PTH100  # the process may go elsewhere
        self._make_offer = make_offer
        try:
            self._socket = sockets.listen(self._path)
        except OSError as err:
            raise ConfigError(f"no socket can be made at {path!r} ({err.strerror})") from err
        self._pid = os.getpid()
        self._open = threading.Event()
        self._open.set()
        self._room = threading.Semaphore(sockets.MOST_CONNECTIONS)
        self._thread = threading.Thread(target=self._accept, name="elastic-control", daemon=True)
        try:
            self._thread.start()
        except RuntimeError:
            remove_socket(self._path)
            self._socket.close()  # else clients would wait for nobody
            raise
        _SERVERS.add(self)

    @property
    def path(self) -> str:
        """Where it is reached."""
        return self._path

    def shutdown(self) -> None:
        """End it, and remove its socket; idempotent. What is being answered is not waited for."""
        if not self._open.is_set() or os.getpid() != self._pid:
            return
        self._open.clear()
        _SERVERS.discard(self)
        remove_socket(self._path)
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)  # wakes the thread that waits in it
        self._room.release()  # or for room
        self._thread.join()
        self._socket.close()
        self.end()

    def end(self) -> None:
        """Give back what else is held. Called: once, by `shutdown`."""

    def _accept(self) -> None:
        while self._open.is_set():
            self._room.acquire()
            try:
                connection, _ = self._socket.accept()
            except OSError:
                self._room.release()
                if self._open.is_set():
                    _PAUSE.wait(_PAUSE_S)  # out of descriptors, most often
                continue
            answer = threading.Thread(
                target=self._serve, args=(connection,), name="elastic-control-request", daemon=True
            )
            try:
                answer.start()
            except RuntimeError:  # no thread to be had: this client is sent away, the training goes on
                self._room.release()
                connection.close()

    def _serve(self, connection: socket.socket) -> None:
        try:
            from elastic_ops.control_plane.http import serve

            serve(connection, self._make_offer())
        finally:
            self._room.release()

    def forget(self) -> None:
        """Close what was inherited. Called: in a forked child."""
        self._open = threading.Event()  # the old one may be held by a thread that is not here
        self._socket.close()


_PAUSE = threading.Event()
_PAUSE_S = 0.1
_SERVERS: "weakref.WeakSet[Server]" = weakref.WeakSet()


def _after_fork() -> None:
    for server in list(_SERVERS):
        server.forget()
    _SERVERS.clear()


os.register_at_fork(after_in_child=_after_fork)
