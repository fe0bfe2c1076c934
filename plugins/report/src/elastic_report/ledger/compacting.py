"""The text of one ledger: its lines as JSON, of bounded size. No I/O, no clock."""

from collections.abc import Iterable, Sequence
from typing import Final

from elastic_core.api import encode_json
from elastic_report.ledger.document import LINE, MOST_BYTES, Begin, Hung, Line, RoundLine, RoundOver, Span, Sum
from elastic_report.ledger.totals import Tally

_KEPT: Final = 0.5
"""The share of the bound that the last lines may need after older ones were summed up."""


class LedgerText:
    """The lines of one ledger. Threading: one call at a time.

    Args:
        begin: The first line.
        most_bytes: The bound of the text's size.
    """

    def __init__(self, begin: Begin, *, most_bytes: int = MOST_BYTES) -> None:
        self.begin = begin
        self.content = bytearray(_encoded(begin))
        """The whole text."""
        self.edition = 0
        """Changes if older lines were replaced. Otherwise the text only grows."""
        self._most_bytes = most_bytes

    def add(self, lines: Iterable[Line]) -> None:
        """Append lines."""
        for line in lines:
            self.content += _encoded(line)
        if len(self.content) > self._most_bytes:
            self._replace(compacted(self._lines(), most_bytes=int(self._most_bytes * _KEPT)))

    def set_begin(self, begin: Begin) -> None:
        """Replace the first line."""
        self.begin = begin
        self._replace(self._lines())

    def _lines(self) -> list[Line]:
        return [LINE.decode(each) for each in bytes(self.content).splitlines()[1:]]

    def _replace(self, lines: Sequence[Line]) -> None:
        self.content = bytearray(_encoded(self.begin))
        for line in lines:
            self.content += _encoded(line)
        self.edition += 1


def compacted(lines: Sequence[Line], *, most_bytes: int) -> list[Line]:
    """Return a `Sum` and the last lines, which have at most `most_bytes`; all totals stay the same.

    A `Hung` that corrects lines which the `Sum` replaces is part of it. The line of a round that is not over is kept.
    """
    cut, size = len(lines), 0
    while cut and (size := size + len(_encoded(lines[cut - 1]))) <= most_bytes:
        cut -= 1
    at, end_s = cut, _end_s(lines[:cut])
    while at < len(lines):  # a correction of what is in front of the cut moves it, and so on
        line = lines[at]
        at += 1
        if isinstance(line, Hung) and line.begin_s < end_s:
            cut, end_s = at, _end_s(lines[:at])
    head, rest = lines[:cut], list(lines[cut:])
    rounds = [line for line in head if isinstance(line, RoundLine)]
    over = {line.index for line in head if isinstance(line, RoundOver)}
    if rounds and rounds[-1].index not in over:
        rest.insert(0, rounds[-1])
    tally = Tally()
    for line in head:
        tally.add(line)
    if tally.began_s is None:  # no time in them
        return rest
    totals = tally.totals()
    summed = Sum(
        begin_s=tally.began_s,
        end_s=tally.end_s,
        states=totals.states,
        bound_s=totals.bound_s,
        start_s=totals.start_s,
        rounds=totals.rounds - (1 if rest and rounds and rest[0] is rounds[-1] else 0),
    )
    return [summed, *rest]


def _end_s(lines: Sequence[Line]) -> float:
    return max((line.end_s for line in lines if isinstance(line, Span | Sum)), default=float("-inf"))


def _encoded(line: Line) -> bytes:
    return encode_json(line) + b"\n"
