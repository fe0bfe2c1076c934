"""A log file that the agent writes: a full disk is reported once, and a size limit rotates it between two lines."""

import os
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

from elastic_core.logger import Logger

if TYPE_CHECKING:
    from elastic_core.processes.output.disk import Disk

_LF, _CR = 0x0A, 0x0D


def open_log(path: str) -> int:
    """Open a log file for appending: nothing that is there is lost, and several writers don't overwrite one another."""
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o666)


class LogFile:
    """Takes chunks of a stream and writes them at once, byte for byte.

    With `max_bytes` a file that is full becomes `<path>.1`, `.1` becomes `.2`, and so on up to `backups`; the oldest is
    dropped. A file ends with a whole line: a line that was begun is ended where it began, beyond the limit if need be,
    and broken only if it is longer than the limit itself.

    Args:
        path: The file; what is in it stays.
        log: Takes lines for people.
        max_bytes: More than this makes a new file; None: never.
        backups: How many full files stay; 0: none.

    Raises:
        OSError: the file can't be opened.
    """

    def __init__(
        self,
        path: str,
        *,
        log: Logger,
        max_bytes: int | None = None,
        backups: int = 0,
        fd: int | None = None,
    ) -> None:
        """Open the file, unless it is open as `fd`."""
        self.path = path
        self._log = log
        self._backups = backups
        self._fd = open_log(path) if fd is None else fd
        self._max_bytes = max_bytes
        self._size = os.fstat(self._fd).st_size if max_bytes is not None else 0
        self._last = _LF
        self._failed = False
        self._rotation_failed = False

    def write(self, data: bytes) -> None:
        """Write a chunk; a chunk that can't be written is lost, and the first loss is reported."""
        if self._fd < 0:
            return
        if self._max_bytes is None:
            self._put(data)
            return
        rest = data
        while rest:
            end = self._end_of_file_in(rest, self._max_bytes)
            if end:
                self._put(rest[:end])
                self._size += end
                self._last = rest[end - 1]
                rest = rest[end:]
            if rest:
                self._rotate()

    def close(self) -> None:
        """Give the descriptor back; idempotent."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _put(self, data: bytes) -> None:
        try:
            rest = memoryview(data)
            while rest:
                rest = rest[os.write(self._fd, rest) :]
        except OSError as error:
            # Tried again with the next chunk: a full disk may be emptied. Reported once.
            if not self._failed:
                self._failed = True
                self._log.notice(f"can't write {self.path!r}: {error.strerror}; the worker runs on, its log has a gap")

    def _end_of_file_in(self, data: bytes, limit: int) -> int:
        """Return how much of `data` belongs into this file; all of it if the file is not full then."""
        room = max(0, limit - self._size)
        if len(data) <= room:
            return len(data)
        end = _last_line_end(data, room)
        if end:
            return end
        most = 2 * limit - self._size
        if (self._size and self._at_line_start(data)) or most <= 0:
            return 0
        # In the middle of a line, or before one that no file can hold.
        return _first_line_end(data, room, most) or min(len(data), most)

    def _at_line_start(self, data: bytes) -> bool:
        return self._last == _LF or (self._last == _CR and data[0] != _LF)

    # --- rotation

    def _rotate(self) -> None:
        # Counted anew in any case: a rotation that failed is tried again after as many bytes.
        self._size = 0
        try:
            if self._backups:
                self._shift()
                os.rename(self.path, f"{self.path}.1")  # noqa: PTH104  # no path object for each of many
            else:
                os.unlink(self.path)  # noqa: PTH108  # as above
            fresh = self._open_fresh()
        except OSError as error:
            if not self._rotation_failed:
                self._rotation_failed = True
                self._log.notice(f"can't rotate {self.path!r}: {error.strerror}; its log goes on beyond the size limit")
            return
        os.close(self._fd)
        self._fd = fresh

    def _shift(self) -> None:
        free = 1  # or the oldest, which gives way
        while free < self._backups and os.path.lexists(f"{self.path}.{free}"):
            free += 1
        # From the oldest on, so that nothing is overwritten; a failure stops it before it could be.
        for number in range(free - 1, 0, -1):
            os.rename(f"{self.path}.{number}", f"{self.path}.{number + 1}")  # noqa: PTH104  # as above

    def _open_fresh(self) -> int:
        try:
            return open_log(self.path)
        except OSError:
            with suppress(OSError):  # the old file, which goes on, should have its name
                if self._backups:
                    os.rename(f"{self.path}.1", self.path)  # noqa: PTH104  # as above
            raise


class QueuedLog:
    """A log file that is written beside the loop. Threading: the reactor's thread."""

    def __init__(self, file: LogFile, disk: "Disk") -> None:
        """Take the file over."""
        self._file = file
        self.lane = disk.lane(file.path)

    def write(self, *chunks: bytes) -> None:
        """Have chunks written after those before them."""
        self.lane.put(partial(self._write, chunks), sum(map(len, chunks)))

    def _write(self, chunks: tuple[bytes, ...]) -> None:
        for chunk in chunks:
            self._file.write(chunk)

    def close(self) -> None:
        """Give the descriptor back once all is written; idempotent."""
        self.lane.put(self._file.close)


def _last_line_end(data: bytes, room: int) -> int:
    r"""Return the last end of a line (`\n`, else `\r`) within `room` bytes, 0 if there is none."""
    end = data.rfind(b"\n", 0, room) + 1
    if end:
        return end
    end = data.rfind(b"\r", 0, room) + 1
    return 0 if data[end : end + 1] == b"\n" else end


def _first_line_end(data: bytes, room: int, most: int) -> int:
    r"""Return the first end of a line (`\n`, else `\r`) beyond `room` and within `most` bytes, 0 if there is none."""
    end = data.find(b"\n", room, most) + 1
    if end:
        return end
    end = data.find(b"\r", room, most) + 1
    return 0 if end == len(data) else end
