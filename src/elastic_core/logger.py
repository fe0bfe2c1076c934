"""The lines that a run prints for people, by one logger, which each part is given that has something to report."""

import sys
from collections.abc import Callable

WriteLines = Callable[[str, *tuple[str, ...]], None]
"""Writes lines that nothing comes between. Threading: any."""


class Logger:
    """The launcher's own lines. Not a logger of `logging`, whose import would be a fifth of a start. Threading: any.

    Args:
        write: Writes the lines.
        prefix: What each notice begins with.
    """

    def __init__(self, write: WriteLines, *, prefix: str = "elastic: ") -> None:
        self._write = write
        self._prefix = prefix

    def notice(self, text: str, *more: str) -> None:
        """Print one line, and right below it the lines of `more` as they are."""
        self._write(f"{self._prefix}{text}", *more)

    def block(self, *lines: str) -> None:
        """Print lines as they are."""
        self._write(*lines)


def print_line(*lines: str) -> None:
    """Write lines to stderr, where there is no loop that does."""
    from elastic_core.encoding import clean  # `elastic --help` has no time for it

    sys.stderr.write("".join(f"{clean(line)}\n" for line in lines))
