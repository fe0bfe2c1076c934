"""One worker's output stream: read from its pipe, written to its file unchanged and to the console with prefixes."""

import fcntl
import os
from contextlib import suppress

from elastic_core.processes.output.disk import Lane
from elastic_core.processes.output.lines import LineFilter, LinePrefixer
from elastic_core.processes.output.log_file import QueuedLog
from elastic_core.processes.output.sink import Sink
from elastic_core.system.reactor import Reactor, Timer

CHUNK_BYTES = 1 << 16
PIPE_BYTES = 1 << 18
"""The requested size of each pipe, for a worker's output while its pipe is not read."""
_CHUNKS_A_TURN = PIPE_BYTES // CHUNK_BYTES
_FINISH_CHUNKS = 4 * _CHUNKS_A_TURN  # a surviving process may write forever

# A worker that writes line by line would wake the loop for every line. So a busy stream is not read for a nap, in which
# its pipe fills: a long nap for a trickle, a short one for a flood, which would otherwise wait on a full pipe.
_LONGEST_NAP_S = 0.01
_SHORTEST_NAP_S = 0.001


def open_pipe() -> tuple[int, int]:
    """Return the reading end (non-blocking) and the writing end (blocking, as programs expect) of a worker's pipe."""
    read_fd, write_fd = os.pipe2(os.O_CLOEXEC)
    os.set_blocking(read_fd, False)  # each end has its own description: the worker's stays blocking
    with suppress(OSError):  # the user's pipe memory is used up: the default size works too
        fcntl.fcntl(write_fd, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
    return read_fd, write_fd


class Tee:
    """Reads one pipe until its end, or until `finish`.

    `file` gets the exact bytes, `sink` (the console's queue) lines with the prefix, and `line_filter` a copy of all
    bytes, for the file `filtered`; each may be `None`. The pipe and the file are closed at the end.

    Threading: the reactor's thread.
    """

    def __init__(
        self,
        reactor: Reactor,
        *,
        read_fd: int,
        file: QueuedLog | None,
        sink: Sink | None,
        prefix: str,
        line_filter: LineFilter | None = None,
        filtered: QueuedLog | None = None,
    ) -> None:
        self._reactor = reactor
        self._read_fd = read_fd
        self._file = file
        self._sink = sink
        self._lines = LinePrefixer(prefix.encode("utf-8", "surrogateescape"))
        self._line_filter = line_filter
        self.lanes = tuple(log.lane for log in (file, filtered) if log is not None)
        """The lanes that write the files."""
        self._brakes: tuple[Sink | Lane, ...] = self.lanes if sink is None else (sink, *self.lanes)
        self._paused = False
        self._nap: Timer | None = None
        self._nap_s = _LONGEST_NAP_S
        self._last_read_s = 0.0
        reactor.add_reader(read_fd, self._on_readable)

    def _on_readable(self) -> None:
        count = self._read(_CHUNKS_A_TURN)
        if not count or self._read_fd < 0 or self._paused:
            return
        now_s = self._reactor.now_s()
        if count >= PIPE_BYTES // 2:
            self._nap_s = max(_SHORTEST_NAP_S, self._nap_s / 2)
        elif count < PIPE_BYTES // 8:
            self._nap_s = min(_LONGEST_NAP_S, self._nap_s * 2)
        if count < PIPE_BYTES and now_s - self._last_read_s < 2 * self._nap_s:
            self._reactor.remove_reader(self._read_fd)
            self._nap = self._reactor.call_later(self._nap_s, self._wake)
        self._last_read_s = now_s

    def _wake(self) -> None:
        self._nap = None
        # Read at once: waiting for the selector would cost another turn.
        self._reactor.add_reader(self._read_fd, self._on_readable)
        self._on_readable()

    def _read(self, chunks: int, *, may_pause: bool = True) -> int:
        count = 0
        taken: list[bytes] = []
        for _ in range(chunks):
            try:
                data = os.read(self._read_fd, CHUNK_BYTES)
            except BlockingIOError:
                break
            if not data:
                self._write(taken)
                self._end()
                return count
            count += len(data)
            taken.append(data)
            self._take(data)
            if (may_pause and self._pause()) or len(data) < CHUNK_BYTES:
                break
        self._write(taken)
        if may_pause and self._read_fd >= 0:
            self._pause()
        return count

    def _write(self, taken: list[bytes]) -> None:
        # Once a turn, because it wakes a thread.
        if self._file is not None and taken:
            self._file.write(*taken)

    def _take(self, data: bytes) -> None:
        if self._line_filter is not None:
            self._line_filter.feed(data)
        if self._sink is not None and not self._sink.broken:
            lines = self._lines.feed(data)
            if lines:
                self._sink.submit(lines)

    # --- back-pressure

    def _pause(self) -> bool:
        # The pipe is not read while the console or a file is congested.
        congested = next((brake for brake in self._brakes if brake.congested), None)
        if congested is None:
            return False
        if not self._paused:
            self._paused = True
            self._reactor.remove_reader(self._read_fd)
            congested.when_relieved(self._resume)
        return True

    def _resume(self) -> None:
        self._paused = False
        if self._read_fd >= 0 and not self._pause() and self._nap is None:
            self._reactor.add_reader(self._read_fd, self._on_readable)

    # --- the end

    @property
    def open(self) -> bool:
        """Whether the pipe has not ended."""
        return self._read_fd >= 0

    def drain(self) -> None:
        """Read what is in the pipe now, after the worker has ended."""
        if self._read_fd >= 0:
            self._read(_CHUNKS_A_TURN + 1, may_pause=False)

    def finish(self) -> None:
        """Read what is in the pipe now, and close it, even if its other end is open; idempotent."""
        if self._read_fd >= 0:
            self._read(_FINISH_CHUNKS, may_pause=False)
        self._end()

    def _end(self) -> None:
        if self._read_fd < 0:
            return
        if self._nap is not None:
            self._nap.cancel()
        self._reactor.remove_reader(self._read_fd)
        os.close(self._read_fd)
        self._read_fd = -1
        rest = self._lines.end()
        if rest and self._sink is not None:
            self._sink.submit(rest)
        if self._line_filter is not None:
            self._line_filter.end()
        if self._file is not None:
            self._file.close()
