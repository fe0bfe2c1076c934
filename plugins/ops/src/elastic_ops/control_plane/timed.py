"""Connections with one deadline for all reads, and limits on received data."""

import math
import socket
from typing import TYPE_CHECKING, Final, Self

from elastic_core.api import SYSTEM_CLOCK, Clock, Record

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer, WriteableBuffer


class Bounds(Record, frozen=True, kw_only=True):
    """Limits of a client."""

    request_s: float = 10.0
    """Bytes of its whole request, and of all that is sent to it at once."""
    crowded_s: float | None = None
    """Seconds of a connection without proof while all connections are in use. `None` means no limit."""
    connections_per_s: float = math.inf
    request_bytes: float = math.inf
    request_pieces: float = math.inf
    """The number of pieces in which the request may come."""


OWNERS: Final = Bounds()
"""Limits on sockets that only their owner reaches."""
STRANGERS: Final = Bounds(request_s=5.0, crowded_s=1.0, connections_per_s=50, request_bytes=1 << 17, request_pieces=64)
"""Limits on ports."""


class TimedSocket(socket.socket):
    """A connection with one deadline for all reads, also for those of a file object made from it."""

    clock: Clock = SYSTEM_CLOCK
    end_s: float = math.inf
    """The deadline of reads, by the clock."""
    send_s: float | None = None
    """Time limit of one sending call in seconds. `None` means no limit."""
    bytes_left: float = math.inf
    """The number of bytes that may still be received."""
    reads_left: float = math.inf
    """The number of pieces in which they may come: a client that sends single bytes would wake the reader for each."""

    @classmethod
    def of(cls, connection: socket.socket) -> Self:
        """Return a connection in place of another socket, which is then detached."""
        return cls(fileno=connection.detach())

    def keep_to(self, bounds: Bounds) -> None:
        """Begin a request with these bounds."""
        self.end_s = self.clock.monotonic_s() + bounds.request_s
        self.send_s = bounds.request_s
        self.bytes_left, self.reads_left = bounds.request_bytes, bounds.request_pieces

    def recv_into(self, buffer: "WriteableBuffer", nbytes: int = 0, flags: int = 0) -> int:
        """Receive available data, or wait for data.

        Raises:
            TimeoutError: the deadline has passed.
            ConnectionError: the client sent more than the limit.
        """
        left_s = self.end_s - self.clock.monotonic_s()
        if left_s <= 0:
            raise TimeoutError("no answer in time")
        self.settimeout(left_s if left_s < math.inf else None)
        count = super().recv_into(buffer, nbytes, flags)
        self.bytes_left -= count
        self.reads_left -= 1
        if self.bytes_left < 0 or self.reads_left < 0:
            raise ConnectionError("more came than is read")
        return count

    def sendall(self, data: "ReadableBuffer", flags: int = 0) -> None:
        """Send all of it, or raise TimeoutError."""
        self.settimeout(self.send_s)
        super().sendall(data, flags)
