"""The starter's end of the connection over which a worker function sends its result."""

import os
import socket
from collections.abc import Callable
from contextlib import suppress

from elastic_core.api.starters import AgentLoop
from elastic_core.api.workers import WorkerError

LENGTH_BYTES = 8
_READS_A_TURN = 16


def open_result_pipe() -> tuple[int, int]:
    """Return the starter's end (non-blocking) and the worker's end (blocking)."""
    ours, its = socket.socketpair()
    ours.setblocking(False)
    its.setblocking(True)  # whatever the process's default is
    return ours.detach(), its.detach()


class ResultPipe:
    """Receives one pickled value of any size, after its length.

    The length marks the end of the value, since a process that the worker started may keep the connection open for
    longer. The worker then waits until `close` closes the connection.

    Args:
        loop: The agent's.
        read_fd: The starter's end, which this object then owns.
        on_complete: Called once, when the value is complete.

    Threading: the loop's thread; any thread may call `value` after the worker has ended.
    """

    def __init__(self, loop: AgentLoop, read_fd: int, *, on_complete: Callable[[], None] = lambda: None) -> None:
        """Start reading."""
        self._loop = loop
        self._read_fd = read_fd
        self._on_complete = on_complete
        self._buffer = bytearray(LENGTH_BYTES)
        self._filled = 0
        self._has_length = False
        self._no_room_for = 0
        self.complete = False
        self._value: object = None
        loop.add_reader(read_fd, lambda: self._read(_READS_A_TURN))

    def drain(self) -> None:
        """Read the rest of the pipe. Called: when the worker has ended."""
        self._read(None)

    def _read(self, reads: int | None) -> None:
        while self._read_fd >= 0 and reads != 0 and not self.complete:
            reads = None if reads is None else reads - 1
            try:
                count = os.readv(self._read_fd, [memoryview(self._buffer)[self._filled :]])
            except BlockingIOError:
                return
            self._filled += count
            if not count:
                self.close()
            elif self._filled == len(self._buffer):
                self._next()

    def _next(self) -> None:
        if not self._has_length:
            self._has_length, length = True, int.from_bytes(self._buffer, "little")
            try:
                self._buffer, self._filled = bytearray(length), 0
            except (MemoryError, OverflowError):  # what `value` tells: the loop has others to watch
                self._no_room_for = length
                self.close()
            return
        self.complete = True
        self._loop.remove_reader(self._read_fd)
        self._on_complete()

    def close(self) -> None:
        """Close the connection, so that the worker ends, too; idempotent. Received data are kept."""
        if self._read_fd >= 0:
            self._loop.remove_reader(self._read_fd)
            # A process that our own process has forked may hold a copy of the descriptor: closing ours is not enough.
            with socket.socket(fileno=self._read_fd) as ours, suppress(OSError):
                ours.shutdown(socket.SHUT_RDWR)
            self._read_fd = -1

    def value(self, name: str) -> object:
        """Return the value. `None` if it is missing or incomplete.

        Args:
            name: The function, for people.

        Raises:
            WorkerError: it can't be loaded in this process.
        """
        if self._no_room_for:
            raise WorkerError(
                f"function {name!r} returned {self._no_room_for} bytes, for which its caller has no memory",
                hint="write it to a file, and return its name",
            )
        if self.complete and self._buffer:
            import pickle  # only functions return something

            try:
                # From this agent's own worker, over a private descriptor: pickle is safe here.
                self._value = pickle.loads(self._buffer)
            except Exception as error:
                reason = f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
                raise WorkerError(
                    f"what function {name!r} returned can't be loaded by its caller: {reason}",
                    hint="return values of classes that both sides can import",
                ) from error
            self._buffer = bytearray()
        return self._value
