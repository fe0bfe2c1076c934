"""The server in the agent: the loop listens, and a thread answers, from its first byte to its last.

While nobody asks, it is one descriptor: no thread, no module for HTTP.
"""

import os
import socket
import threading
import weakref
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Final, Generic, TypeVar

from elastic_core.control_plane.paths import remove_socket
from elastic_core.control_plane.sockets import MOST_CONNECTIONS
from elastic_core.errors import WaitExpiredError
from elastic_core.reactor import Reactor

if TYPE_CHECKING:
    from elastic_core.control_plane.http import Offer

_AGAIN_S: Final = 1.0
"""How long to accept nothing after the system refused, most often for want of descriptors."""

_T = TypeVar("_T")


class AgentServer:
    """Answers at a listening socket until `close`.

    Args:
        reactor: The loop.
        listener: The socket, which is the server's from now on.
        path: Where it is, to be removed at the end.
        make_offer: Called on the first connection's thread: what is to be offered.
    """

    def __init__(
        self, reactor: Reactor, listener: socket.socket, path: str, *, make_offer: "Callable[[], Offer]"
    ) -> None:
        """Begin to answer."""
        self._reactor = reactor
        self._path = path
        self._make_offer = make_offer
        self._offer: Offer | None = None
        self._lock = threading.Lock()
        self._open = 0
        self._socket = listener
        self._socket.setblocking(False)
        self._fd = self._socket.fileno()
        self._pid = os.getpid()
        self._listen()
        _SERVERS.add(self)

    def _listen(self) -> None:
        if self._fd >= 0:
            self._reactor.add_reader(self._fd, self._accept)

    def _accept(self) -> None:
        try:
            connection, _ = self._socket.accept()
        except BlockingIOError:  # the client has gone again
            return
        except OSError:
            self._reactor.remove_reader(self._fd)
            self._reactor.call_later(_AGAIN_S, self._listen)
            return
        try:
            threading.Thread(target=self._serve, args=(connection,), name="elastic-control", daemon=True).start()
        except RuntimeError:  # no thread to be had: this client is sent away
            connection.close()
            return
        self._open += 1
        if self._open == MOST_CONNECTIONS:
            self._reactor.remove_reader(self._fd)

    def _serve(self, connection: socket.socket) -> None:
        from elastic_core.control_plane.http import serve

        try:
            with self._lock:
                if self._offer is None:
                    self._offer = self._make_offer()
            serve(connection, self._offer)
        finally:
            self._reactor.post(self._served)

    def _served(self) -> None:
        self._open -= 1
        if self._open == MOST_CONNECTIONS - 1:
            self._listen()

    def close(self, *, remove: bool = True) -> None:
        """Listen no more, and `remove` the socket; idempotent. What is being answered is not waited for."""
        if self._fd < 0 or os.getpid() != self._pid:
            return
        self._reactor.remove_reader(self._fd)
        self._fd = -1
        _SERVERS.discard(self)
        if remove:
            remove_socket(self._path)
        self._socket.close()

    def forget(self) -> None:
        """Close what was inherited. Called: in a forked child, which has no part in the loop either."""
        self._fd = -1
        with suppress(OSError):
            self._socket.close()


class LoopCall(Generic[_T]):
    """A question to the loop, from a thread that may wait for the answer."""

    def __init__(self, post: Callable[[Callable[[], None]], None]) -> None:
        """Ask nothing yet."""
        self._post = post
        self._answered = threading.Event()
        self._value: _T
        self._error: Exception | None = None

    def answer(self, value: _T) -> None:
        """Give the answer. Called: on the loop, once."""
        self._value = value
        self._answered.set()

    def ask(self, begin: Callable[[Callable[[_T], None]], None], *, within_s: float) -> _T:
        """Have the loop call `begin` with what takes the answer, then or later, and return that.

        Raises:
            WaitExpiredError: there was none in time.
            Exception: what `begin` raised.
        """

        def run() -> None:
            try:
                begin(self.answer)
            except Exception as err:  # noqa: BLE001  # it is raised where it was asked
                self._error = err
                self._answered.set()

        self._post(run)
        if not self._answered.wait(within_s):
            raise WaitExpiredError(f"the agent's loop has not answered within {within_s:g} s")
        if self._error is not None:
            raise self._error
        return self._value


_SERVERS: "weakref.WeakSet[AgentServer]" = weakref.WeakSet()


def _after_fork() -> None:
    for server in list(_SERVERS):
        server.forget()
    _SERVERS.clear()


os.register_at_fork(after_in_child=_after_fork)
