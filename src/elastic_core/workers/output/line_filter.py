"""Copies the lines of a stream that hold one of several texts to a file of their own."""

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from elastic_core.workers.output.lines import LinePrefixer

if TYPE_CHECKING:
    from elastic_core.workers.output.log_file import LogFile, QueuedLog


class LineFilter:
    r"""Takes chunks of a worker's output; lines that contain any of the texts go to the file, with the prefix.

    The texts are looked for in a line without its prefix. Whatever ended a line, `\n` ends it in the file.

    Args:
        texts: What to look for, at least one, none empty.
        prefix: What stands before each line in the file.
        file: Taken over; several filters may append to one file, for each write is of whole lines.
    """

    def __init__(self, texts: Sequence[str], *, prefix: str, file: "LogFile | QueuedLog") -> None:
        """Start at the beginning of a line."""
        self._needles = [text.encode("utf-8", "surrogateescape") for text in texts]
        self._pattern = re.compile(b"|".join(re.escape(needle) for needle in self._needles))
        self._prefix = prefix.encode("utf-8", "surrogateescape")
        self._file = file
        self._lines = LinePrefixer(b"")  # for its sense of what a line is

    def feed(self, data: bytes) -> None:
        """Take any number of bytes (at least one)."""
        self._keep(self._lines.feed(data))

    def end(self) -> None:
        """Take the last line, and close the file."""
        self._keep(self._lines.end())
        self._file.close()

    def _keep(self, whole: bytes) -> None:
        # A chunk without any of the texts, the ordinary one, costs a search each and no look at its lines.
        if not any(needle in whole for needle in self._needles):
            return
        if b"\r" in whole:
            whole = whole.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        kept: list[bytes] = []
        position = 0
        while match := self._pattern.search(whole, position):
            start = whole.rfind(b"\n", position, match.start()) + 1 or position
            position = whole.find(b"\n", match.start()) + 1
            kept += (self._prefix, whole[start:position])
        self._file.write(b"".join(kept))
