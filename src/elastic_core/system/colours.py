"""Colours of lines on a terminal. The named groups of a pattern are the styles of a line's parts."""

import re
from collections.abc import Callable
from typing import Final

from elastic_core.encoding import clean
from elastic_core.types import Decision, FailureClass, Restart

Painter = Callable[[str], str]
"""Returns a line with colours. Called: with a line without control characters, for a stream that shows colours."""

_CODES: Final = {"red": "1;31", "yellow": "33", "green": "32", "bold": "1", "dim": "2"}
_TIME: Final = r"(?:\d\S* )?"  # of --log-times


def line_painter(pattern: str) -> Painter:
    """Return a painter of lines that begin with `pattern`; each other line stays as it is.

    Args:
        pattern: A regular expression. The names of its groups are styles: red, yellow, green, bold, dim. The name of a
            second group with a style has a suffix, such as `red_2`.
    """

    def paint(line: str) -> str:
        text, at = "", 0
        match = re.match(pattern, line)  # compiled at the first line: most runs have no terminal
        for name in match.re.groupindex if match else ():
            start, end = match.span(name)  # type: ignore[union-attr]  # the loop runs only with a match
            if end > start:
                text += f"{line[at:start]}\x1b[{_CODES[name.partition('_')[0]]}m{line[start:end]}\x1b[0m"
                at = end
        return text + line[at:]

    return paint


def report_painter(failure_class: FailureClass, summary: str, decision: Decision | None) -> Painter:
    """Return the painter of the block of an incident with this class, summary and decision."""
    head = "yellow" if isinstance(decision, Restart) else "red"
    paint = line_painter(
        rf"{_TIME}(?P<{head}>(?:──|--).*)|(?P<bold>{failure_class.value}: .*)|(?P<dim>source=.*)"
        r"|(?:(?:Logs|Stacks|Incident)\b[^:]*: | {2,})(?P<dim_2>/.*)"
    )
    summary, rest = clean(summary), line_painter(r"  (?P<bold>.*)")  # a long summary has several lines
    return lambda line: (rest if line.startswith("  ") and line[2:] in summary else paint)(line)


paint_notice = line_painter(rf"{_TIME}(?:(?P<red>elastic: error:)|(?P<yellow>elastic:))")
paint_restart = line_painter(rf"{_TIME}(?P<yellow>elastic: .*? failed\b.*?:)(?P<bold> .*)(?P<yellow_2>; restart \d.*)")
paint_failure = line_painter(rf"{_TIME}(?P<red>elastic: .*? failed:)")
