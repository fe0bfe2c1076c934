"""The server's end of the named pipe of file timers."""

import os
import stat
from contextlib import suppress
from typing import Final

_CHUNK_BYTES: Final = 1 << 16


class PipeInUseError(FileExistsError):
    """The pipe has a reader already."""


class TimerPipe:
    """A pipe to which only its owner can write.

    Args:
        path: Its path. The pipe of an ended server is replaced, and so is an empty file.

    Raises:
        PipeInUseError: the pipe exists and has a reader.
        FileExistsError: the path is another kind of file.
        OSError: the pipe can't be made.
    """

    def __init__(self, path: str) -> None:
        """Make and open it."""
        self.path = path
        self.fd = self._writer = -1
        _clear(path)
        os.mkfifo(path, 0o600)
        made = os.lstat(path)  # beside the descriptors' own
        self._made = (made.st_dev, made.st_ino)
        flags = os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOFOLLOW
        try:
            self.fd = os.open(path, os.O_RDONLY | flags)
            # A writer of our own: without any the pipe would be readable all the time, at its end.
            self._writer = os.open(path, os.O_WRONLY | flags)
        except OSError:
            if self.fd >= 0:
                os.close(self.fd)
            self._remove()
            raise

    def read(self) -> bytes:
        """Return available data, up to a limit; empty if there are none."""
        try:
            return os.read(self.fd, _CHUNK_BYTES)
        except BlockingIOError:
            return b""

    def close(self) -> None:
        """Remove it if it is still this object's; idempotent."""
        if self.fd < 0:
            return
        self._remove()
        os.close(self.fd)
        os.close(self._writer)
        self.fd = self._writer = -1

    def _remove(self) -> None:
        with suppress(FileNotFoundError):
            found = os.lstat(self.path)
            if (found.st_dev, found.st_ino) == self._made:
                os.unlink(self.path)  # noqa: PTH108


def _clear(path: str) -> None:
    try:
        found = os.lstat(path)  # what it is itself
    except FileNotFoundError:
        return
    pipe = stat.S_ISFIFO(found.st_mode)
    if not pipe and not (stat.S_ISREG(found.st_mode) and found.st_size == 0):
        raise FileExistsError(f"{path!r} is there, and is no pipe")
    if pipe and _is_read(path):
        raise PipeInUseError(f"{path!r} is the pipe of another server")
    os.unlink(path)  # noqa: PTH108


def _is_read(path: str) -> bool:
    try:
        fd = os.open(path, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:  # ENXIO: there is no reader
        return False
    os.close(fd)
    return True
