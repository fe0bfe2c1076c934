"""Connections that are served each on a thread of its own, so many at a time."""

import os
import socket
import threading
import weakref
from contextlib import suppress
from typing import ClassVar, Final

from elastic_core.api import SYSTEM_CLOCK, Clock

MOST_CONNECTIONS: Final = 16
"""Connections that are served at the same time; the rest waits in the kernel's queue."""


class Acceptor:
    """Serves what connects to a socket that listens, until `shutdown`.

    Its threads never keep the process from ending, and a forked child has no part in it.

    Args:
        listening: The socket; closed with this.
        name: Of the thread that waits for connections.

    Raises:
        RuntimeError: there is no thread to be had.
    """

    most_a_second: ClassVar[int | None] = None
    """Connections that are accepted in a second; None: as many as come, for who has nothing to fear from them."""
    clock: Clock = SYSTEM_CLOCK

    def __init__(self, listening: socket.socket, *, name: str) -> None:
        """Begin to serve."""
        self._socket = listening
        self._name = name
        self._pid = os.getpid()
        self._second_s, self._accepted = self.clock.monotonic_s(), 0
        self._closed = threading.Event()
        self._room = threading.Semaphore(MOST_CONNECTIONS)
        self._thread = threading.Thread(target=self._accept, name=name, daemon=True)
        try:
            self._thread.start()
        except RuntimeError:
            self._socket.close()  # else clients would wait for nobody
            raise
        _ACCEPTORS.add(self)

    def serve(self, connection: socket.socket) -> None:
        """Serve one connection, and close it. Called: on a thread of its own."""
        raise NotImplementedError

    def hide(self) -> None:
        """Let nobody find it any more. Called: once, as `shutdown` begins."""

    def end(self) -> None:
        """Give back what else is held. Called: once, as `shutdown` ends."""

    def shutdown(self) -> None:
        """Accept nobody any more; idempotent. What is being served is not waited for."""
        if self._closed.is_set() or os.getpid() != self._pid:
            return
        self._closed.set()
        self.hide()
        _ACCEPTORS.discard(self)
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)  # wakes the thread that waits in it
        self._room.release()  # or for room
        self._thread.join()
        self._socket.close()
        self.end()

    def _accept(self) -> None:
        while not self._closed.is_set():
            self._room.acquire()
            try:
                connection, _ = self._socket.accept()
            except OSError:
                self._room.release()
                self._closed.wait(_PAUSE_S)  # out of descriptors, most often
                continue
            self._pace()
            served = threading.Thread(target=self._one, args=(connection,), name=f"{self._name}-request", daemon=True)
            try:
                served.start()
            except RuntimeError:  # no thread to be had: this client is sent away, the training goes on
                self._room.release()
                connection.close()

    def _pace(self) -> None:
        """Wait for the next second where so many have come in this one."""
        if self.most_a_second is None:
            return
        now_s = self.clock.monotonic_s()
        if now_s >= self._second_s + 1.0:
            self._second_s, self._accepted = now_s, 0
        self._accepted += 1
        if self._accepted > self.most_a_second:
            self._closed.wait(self._second_s + 1.0 - now_s)

    def _one(self, connection: socket.socket) -> None:
        try:
            self.serve(connection)
        finally:
            self._room.release()

    def forget(self) -> None:
        """Close what was inherited. Called: in a forked child."""
        self._closed = threading.Event()  # the old one may be held by a thread that is not here
        self._socket.close()


_PAUSE_S = 0.1
_ACCEPTORS: "weakref.WeakSet[Acceptor]" = weakref.WeakSet()


def _after_fork() -> None:
    for acceptor in list(_ACCEPTORS):
        acceptor.forget()
    _ACCEPTORS.clear()


os.register_at_fork(after_in_child=_after_fork)
