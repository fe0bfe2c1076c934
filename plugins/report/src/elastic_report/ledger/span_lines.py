"""The lines that the accounting has counted: parts of one state become one span. No I/O, no clock."""

from msgspec.structs import replace

from elastic_core.api import Record
from elastic_core.api.tools import duration_text
from elastic_report.ledger.document import Bound, Hung, Line, Note, Span
from elastic_report.ledger.states import LedgerState as S
from elastic_report.ledger.totals import Tally


class Part(Record, frozen=True, kw_only=True):
    """A part of the node's time. `state` is `None` while workers run: their progress determines it."""

    state: S | None
    begin_s: float
    end_s: float
    round: int | None
    reason: str


class SpanLines:
    """The lines in order, and the span that may still grow. Threading: one call at a time."""

    def __init__(self) -> None:
        self.tally = Tally()
        """The lines so far."""
        self.open: Span | None = None
        """The last span, which is not a line yet. `None` if there is none."""
        self._lines: list[Line] = []

    def take(self) -> list[Line]:
        """Return the lines that are new since the last call."""
        lines, self._lines = self._lines, []
        return lines

    def count(self, state: S, part: Part) -> None:
        """Add a part in a known state: it extends the last span, or begins the next one."""
        if part.end_s <= part.begin_s:
            return
        last = self.open
        if last is not None and last.state is state and last.round == part.round:
            self.open = replace(last, end_s=part.end_s)
            return
        self.flush()
        self.open = span_of(part, state)

    def flush(self) -> None:
        """Add the last span as a line; it grows no more."""
        span, self.open = self.open, None
        if span is not None:
            self._write(span)
            if span.state is S.SAVING:
                lasted = duration_text(round(span.end_s - span.begin_s, 2))
                self._write(Note(at_s=span.end_s, name="save", text=f"saved in {lasted}"))

    def add(self, line: Line) -> None:
        """Add a line; the last span comes before a correction of its time."""
        if isinstance(line, Hung | Bound):
            self.flush()
        self._write(line)

    def _write(self, line: Line) -> None:
        self.tally.add(line)
        self._lines.append(line)


def span_of(part: Part, state: S) -> Span:
    """Return a part of the node's time as a span in this state."""
    return Span(state=state, begin_s=part.begin_s, end_s=part.end_s, round=part.round, reason=part.reason)
