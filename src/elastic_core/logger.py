"""The logger that prints a run's lines for users; each part that reports something receives one."""

import sys
from collections.abc import Callable

WriteLines = Callable[[str, *tuple[str, ...]], None]
"""Writes several lines without other lines between them. Threading: any."""


class Logger:
    """Prints the launcher's own lines. It does not use `logging`, whose import is slow. Threading: any.

    Args:
        write: Writes the lines.
        prefix: The beginning of each notice.
    """

    def __init__(self, write: WriteLines, *, prefix: str = "elastic: ") -> None:
        self._write = write
        self._prefix = prefix

    def notice(self, text: str, *more: str) -> None:
        """Print one line with the prefix, then the lines of `more` without it."""
        self._write(f"{self._prefix}{text}", *more)

    def block(self, *lines: str) -> None:
        """Print lines without the prefix."""
        self._write(*lines)


def print_line(*lines: str) -> None:
    """Write lines to stderr, for code that runs without a loop."""
    from elastic_core.encoding import clean  # `elastic --help` has no time for it

    sys.stderr.write("".join(f"{clean(line)}\n" for line in lines))
