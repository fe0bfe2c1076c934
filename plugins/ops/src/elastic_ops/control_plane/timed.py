"""Connections whose reads have one deadline together, and bounds on how much may come."""

import math
import socket
from typing import TYPE_CHECKING, Final, Self

from elastic_core.api import SYSTEM_CLOCK, Clock, Record

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer, WriteableBuffer


class Bounds(Record, frozen=True, kw_only=True):
    """What a client may use up."""

    request_s: float = 10.0
    """Its whole request; and, once more, all that it is sent at once."""
    crowded_s: float | None = None
    """The whole connection of a client without proof while all connections are in use; `None` means no limit."""
    connections_per_s: float = math.inf
    request_bytes: float = math.inf
    request_pieces: float = math.inf
    """Pieces in which the request may come."""


OWNERS: Final = Bounds()
"""Those of sockets that only their owner reaches."""
STRANGERS: Final = Bounds(request_s=5.0, crowded_s=1.0, connections_per_s=50, request_bytes=1 << 17, request_pieces=64)
"""Those of ports."""


class TimedSocket(socket.socket):
    """A connection on which one deadline holds for all reads, also for those of a file that is made of it."""

    clock: Clock = SYSTEM_CLOCK
    end_s: float = math.inf
    """The deadline of reads, by the clock."""
    send_s: float | None = None
    """Seconds that one call that sends may take; `None` means no limit."""
    bytes_left: float = math.inf
    """Bytes that may still come."""
    reads_left: float = math.inf
    """Pieces in which they may still come: a client that sends byte by byte would wake the reader for each."""

    @classmethod
    def of(cls, connection: socket.socket) -> Self:
        """Return a connection in the place of another socket, which is used up."""
        return cls(fileno=connection.detach())

    def keep_to(self, bounds: Bounds) -> None:
        """Begin a request with these bounds."""
        self.end_s = self.clock.monotonic_s() + bounds.request_s
        self.send_s = bounds.request_s
        self.bytes_left, self.reads_left = bounds.request_bytes, bounds.request_pieces

    def recv_into(self, buffer: "WriteableBuffer", nbytes: int = 0, flags: int = 0) -> int:
        """Read what is there, or wait for it.

        Raises:
            TimeoutError: the deadline has passed.
            ConnectionError: more came than may.
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
