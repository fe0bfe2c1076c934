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
    """Open a log file for appending: existing content is kept, and several writers do not overwrite each other."""
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o666)


class LogFile:
    """Writes chunks of a stream at once, byte for byte.

    With `max_bytes`, a full file becomes `<path>.1`, `.1` becomes `.2`, and so on up to `backups`; the oldest is
    removed. A file ends with a whole line: a begun line is finished in the same file, even beyond the limit, and broken
    only if it is longer than the limit itself.

    The file's content is kept. Without `max_bytes` there is no limit, and with 0 `backups` no full file is kept.

    Raises:
        OSError: The file cannot be opened.
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
        # With `fd`, the file is open already.
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
        """Write a chunk. If that fails, the chunk is lost, and the first loss is reported."""
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
        """Close the file; idempotent."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _put(self, data: bytes) -> None:
        try:
            rest = memoryview(data)
            while rest:
                rest = rest[os.write(self._fd, rest) :]
        except OSError as error:
            # The next chunk is tried again: a full disk may be emptied. Reported once.
            if not self._failed:
                self._failed = True
                self._log.notice(
                    f"can't write {self.path!r}: {error.strerror}; the worker continues, its log has a gap"
                )

    def _end_of_file_in(self, data: bytes, limit: int) -> int:
        # How many bytes belong in this file; all if the file is not full then.
        room = max(0, limit - self._size)
        if len(data) <= room:
            return len(data)
        end = _last_line_end(data, room)
        if end:
            return end
        most = 2 * limit - self._size
        at_line_start = self._last == _LF or (self._last == _CR and data[0] != _LF)
        if (self._size and at_line_start) or most <= 0:
            return 0
        # In the middle of a line, or before one that is too long for any file.
        return _first_line_end(data, room, most) or min(len(data), most)

    # --- rotation

    def _rotate(self) -> None:
        # Counted anew in any case: a failed rotation is tried again after as many bytes.
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
                self._log.notice(f"can't rotate {self.path!r}: {error.strerror}; its log exceeds the size limit")
            return
        os.close(self._fd)
        self._fd = fresh

    def _shift(self) -> None:
        free = 1  # or the oldest, which is replaced
        while free < self._backups and os.path.lexists(f"{self.path}.{free}"):
            free += 1
        # From the oldest on, so that no file is overwritten; a failure stops it.
        for number in range(free - 1, 0, -1):
            os.rename(f"{self.path}.{number}", f"{self.path}.{number + 1}")  # noqa: PTH104  # as above

    def _open_fresh(self) -> int:
        try:
            return open_log(self.path)
        except OSError:
            with suppress(OSError):  # the old file is used further and keeps its name
                if self._backups:
                    os.rename(f"{self.path}.1", self.path)  # noqa: PTH104  # as above
            raise


class QueuedLog:
    """A log file that is written outside the loop. Threading: the reactor's thread."""

    def __init__(self, file: LogFile, disk: "Disk") -> None:
        self._file = file
        self.lane = disk.lane(file.path)

    def write(self, *chunks: bytes) -> None:
        """Write chunks after the earlier ones."""
        self.lane.put(partial(self._write, chunks), sum(map(len, chunks)))

    def _write(self, chunks: tuple[bytes, ...]) -> None:
        for chunk in chunks:
            self._file.write(chunk)

    def close(self) -> None:
        """Close the file after all is written; idempotent."""
        self.lane.put(self._file.close)


def _last_line_end(data: bytes, room: int) -> int:
    # The last line end (`\n`, else `\r`) within `room` bytes, or 0.
    end = data.rfind(b"\n", 0, room) + 1
    if end:
        return end
    end = data.rfind(b"\r", 0, room) + 1
    return 0 if data[end : end + 1] == b"\n" else end


def _first_line_end(data: bytes, room: int, most: int) -> int:
    # The first line end (`\n`, else `\r`) beyond `room` and within `most` bytes, or 0.
    end = data.find(b"\n", room, most) + 1
    if end:
        return end
    end = data.find(b"\r", room, most) + 1
    return 0 if end == len(data) else end
