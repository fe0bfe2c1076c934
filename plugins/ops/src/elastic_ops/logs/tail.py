"""Complete lines of a log file that other processes write and rotate."""

import os
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from typing import Final

LONGEST_LINE: Final = 1 << 20
"""The most bytes of a line that are shown; a longer line is shown in pieces of that length."""
_PIECE: Final = 1 << 16


class LogTail:
    """Reads a file from its oldest backup, and then new lines. Threading: one thread.

    Args:
        path: The file, which need not exist yet. Its backups are `path.1`, newer, to `path.N`, the oldest.
        last: The number of last lines to begin with. `None` means all.
    """

    def __init__(self, path: str, *, last: int | None = None) -> None:
        """Open nothing yet."""
        self._path = path
        self._last = last
        self._fd = -1
        self._begun = b""
        self._started = False

    def lines(self) -> Iterator[str]:
        """Yield the complete lines since the last call."""
        if not self._started:
            self._started = True
            yield from self._first()
            return
        yield from self._more()

    def rest(self) -> Iterator[str]:
        """Yield the rest, also a line without an end: no process writes to the file any more."""
        yield from self.lines()
        begun, self._begun = self._begun, b""
        if begun:
            yield _shown(begun)

    def close(self) -> None:
        """Release the descriptor; idempotent."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _first(self) -> Iterator[str]:
        if self._last is None:
            for number in reversed(range(1, self._backups() + 1)):
                yield from self._whole(f"{self._path}.{number}")
        else:
            with ExitStack() as held:  # by descriptor: names move on while a long file is counted
                for fd, begin in reversed(self._tails(self._last, held)):
                    os.lseek(fd, begin, os.SEEK_SET)
                    yield from self._all(fd)
        yield from self._more()

    def _tails(self, wanted: int, held: ExitStack) -> list[tuple[int, int]]:
        """Set the file to the start of its share of the last lines.

        Return backups, newest first, with their positions.
        """
        if self._fd >= 0 or self._open():
            found, begin = _last_lines(self._fd, wanted)
            os.lseek(self._fd, begin, os.SEEK_SET)
            wanted -= found
        tails: list[tuple[int, int]] = []
        for number in range(1, self._backups() + 1):
            if wanted <= 0:
                break
            with suppress(OSError):  # it was rotated away
                fd = os.open(f"{self._path}.{number}", os.O_RDONLY | os.O_CLOEXEC)
                held.callback(os.close, fd)
                if self._fd >= 0 and os.path.sameopenfile(fd, self._fd):  # rotated since it was opened
                    continue
                found, begin = _last_lines(fd, wanted, complete=True)
                tails.append((fd, begin))
                wanted -= found
        return tails

    def _more(self) -> Iterator[str]:
        """Yield new lines, across all rotations since the last call."""
        while True:
            if self._fd < 0 and not self._open():
                return
            yield from self._read(self._fd)
            newer = self._newer()
            if newer is None:
                return
            yield from self._read(self._fd)  # what came between the two looks
            self.close()
            if self._begun:  # its writer ends files with whole lines, unless one is longer than a file
                begun, self._begun = self._begun, b""
                yield _shown(begun)
            for number in reversed(range(1, newer)):
                yield from self._whole(f"{self._path}.{number}")

    def _open(self) -> bool:
        with suppress(OSError):
            self._fd = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
        return self._fd >= 0

    def _newer(self) -> int | None:
        """Return the backup number of the open file, beyond the last if it is none. `None` if it is still the file."""
        own = os.fstat(self._fd)
        for number in range(self._backups() + 1):
            with suppress(OSError):
                found = os.stat(self._path if not number else f"{self._path}.{number}")  # noqa: PTH116  # as below
                if (found.st_dev, found.st_ino) == (own.st_dev, own.st_ino):
                    return number or None
        return self._backups() + 1 if os.path.lexists(self._path) else None  # may be gone as a whole

    def _backups(self) -> int:
        number = 0
        while os.path.lexists(f"{self._path}.{number + 1}"):
            number += 1
        return number

    def _whole(self, path: str) -> Iterator[str]:
        try:
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:  # it was rotated away
            return
        try:
            yield from self._all(fd)
        finally:
            os.close(fd)

    def _all(self, fd: int) -> Iterator[str]:
        """Yield the lines of a backup, whose last line does not continue."""
        begun, self._begun = self._begun, b""
        yield from self._read(fd)
        if self._begun:
            yield _shown(self._begun)
        self._begun = begun

    def _read(self, fd: int) -> Iterator[str]:
        while piece := os.read(fd, _PIECE):
            *whole, self._begun = (self._begun + piece).split(b"\n")
            yield from map(_shown, whole)
            while len(self._begun) > LONGEST_LINE:
                yield _shown(self._begun[:LONGEST_LINE])
                self._begun = self._begun[LONGEST_LINE:]


def _last_lines(fd: int, wanted: int, *, complete: bool = False) -> tuple[int, int]:
    """Return how many of the last `wanted` lines a file has, and the position of the first of them.

    Args:
        fd: The file; only a part of it is in memory at a time.
        wanted: The most lines.
        complete: No process writes to it any more, so the text after its last line end is a line, too.
    """
    end = position = os.fstat(fd).st_size
    ends = 0
    while position > 0:
        begin = max(0, position - _PIECE)
        piece = os.pread(fd, position - begin, begin)
        if complete and position == end and not piece.endswith(b"\n"):
            ends += 1
        here = piece.count(b"\n")
        if ends + here > wanted:
            at = len(piece)
            for _ in range(wanted + 1 - ends):
                at = piece.rfind(b"\n", 0, at)
            return wanted, begin + at + 1
        ends += here
        position = begin
    return ends, 0


def _shown(line: bytes) -> str:
    """Return a line as a terminal that redraws at each carriage return would leave it."""
    return line.rstrip(b"\r").rpartition(b"\r")[2].decode("utf-8", "replace")
