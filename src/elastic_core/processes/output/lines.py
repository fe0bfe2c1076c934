"""The lines of a byte stream in whole chunks: adds prefixes, and copies matching lines to a file."""

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from elastic_core.processes.output.log_file import LogFile, QueuedLog

LINE_LIMIT_BYTES = 1 << 20
"""A line without an end is held up to this length, then broken by a newline."""

MOST_PIECES = 1_024
"""How many pieces of a line are kept before they are joined: small pieces take far more memory than their length."""

_CR = 0x0D


class LinePrefixer:
    r"""Turns chunks of a worker's output into whole, prefixed lines.

    `\n`, `\r\n` and `\r` (progress bars) end a line and are kept. An unfinished line is held, and so is a `\r` at the
    end of a chunk, until the next byte shows whether a `\n` follows. The output never begins or stops inside a line, so
    the lines of several workers can share one stream.
    """

    def __init__(self, prefix: bytes, *, line_limit_bytes: int = LINE_LIMIT_BYTES) -> None:
        self._prefix = prefix
        self._after_lf = b"\n" + prefix
        self._after_cr = b"\r" + prefix
        self._split_crlf = b"\r" + prefix + b"\n"
        self._limit_bytes = line_limit_bytes
        self._held: list[bytes] = []
        self._held_bytes = 0
        self._held_cr = False

    def feed(self, data: bytes) -> bytes:
        """Add bytes (at least one); return the lines that are complete now, perhaps none."""
        if self._held_cr:
            data = b"".join((*self._held, data))
            self._drop_held()
        has_cr = b"\r" in data
        end = data.rfind(b"\n") + 1
        if has_cr:
            end = max(end, data.rfind(b"\r", 0, -1) + 1)
        if not end:
            return self._hold(data, has_cr)
        whole = data if end == len(data) else data[:end]
        if self._held:
            whole = b"".join((*self._held, whole))
            self._drop_held()
        lines = self._with_prefixes(whole, has_cr)
        return lines if end == len(data) else lines + self._hold(data[end:], has_cr)

    def end(self) -> bytes:
        """Return the unfinished line."""
        rest = b"".join(self._held)
        ended = self._held_cr
        self._drop_held()
        if not rest:
            return b""
        return self._prefix + rest if ended else self._prefix + rest + b"\n"

    def _hold(self, rest: bytes, has_cr: bool) -> bytes:
        self._held.append(rest)
        if len(self._held) > MOST_PIECES:
            self._held = [b"".join(self._held)]
        self._held_bytes += len(rest)
        self._held_cr = has_cr and rest[-1] == _CR
        return self.end() if self._held_bytes >= self._limit_bytes else b""

    def _drop_held(self) -> None:
        self._held.clear()
        self._held_bytes = 0
        self._held_cr = False

    def _with_prefixes(self, whole: bytes, has_cr: bool) -> bytes:
        prefix = self._prefix
        if not prefix:
            return whole
        # `whole` ends a line, so the last prefix is surplus.
        if has_cr:
            # First treat each \r as a line end, then remove the prefix between \r and \n.
            whole = whole.replace(b"\r", self._after_cr).replace(self._split_crlf, b"\r\n")
        return prefix + whole.replace(b"\n", self._after_lf)[: -len(prefix)]


class LineFilter:
    r"""Copies the lines of a worker's output that contain one of the texts to a file, with the prefix.

    The texts are searched in a line without its prefix. In the file, each line ends with `\n`.

    There is at least one text, and none is empty. The file is closed at the end. Several filters may append to one
    file, because each write has whole lines.
    """

    def __init__(self, texts: Sequence[str], *, prefix: str, file: "LogFile | QueuedLog") -> None:
        self._needles = [text.encode("utf-8", "surrogateescape") for text in texts]
        self._pattern = re.compile(b"|".join(re.escape(needle) for needle in self._needles))
        self._prefix = prefix.encode("utf-8", "surrogateescape")
        self._file = file
        self._lines = LinePrefixer(b"")  # for its line ends

    def feed(self, data: bytes) -> None:
        """Add bytes (at least one)."""
        self._keep(self._lines.feed(data))

    def end(self) -> None:
        """Process the last line, and close the file."""
        self._keep(self._lines.end())
        self._file.close()

    def _keep(self, whole: bytes) -> None:
        # Most chunks contain none of the texts: then their lines are not searched.
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
