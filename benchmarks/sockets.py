"""What goes through the TCP sockets of this process, whichever client library sends it."""

import socket
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer, WriteableBuffer


class _Counting(socket.socket):
    def send(self, data: "ReadableBuffer", flags: int = 0, /) -> int:
        moved = super().send(data, flags)
        Sockets.sent += moved
        return moved

    def sendall(self, data: "ReadableBuffer", flags: int = 0, /) -> None:
        super().sendall(data, flags)
        Sockets.sent += len(memoryview(data))

    def recv(self, bufsize: int, flags: int = 0, /) -> bytes:
        data = super().recv(bufsize, flags)
        Sockets.received += len(data)
        return data

    def recv_into(self, buffer: "WriteableBuffer", nbytes: int = 0, flags: int = 0, /) -> int:
        moved = super().recv_into(buffer, nbytes, flags)
        Sockets.received += moved
        return moved


class Sockets:
    """The counters. One thread's increments may be lost to another's: the figures are lower bounds then."""

    sent = 0
    received = 0

    @classmethod
    def count(cls) -> None:
        """Count from now on, for every socket that Python code makes later."""
        socket.socket = _Counting  # type: ignore[misc]  # the class that every client library looks up here
