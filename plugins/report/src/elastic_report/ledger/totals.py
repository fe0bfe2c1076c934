"""Totals of one ledger: the seconds of each state, and both goodput ratios. No I/O, no clock."""

from collections import deque
from collections.abc import Iterable, Mapping
from typing import Final

from elastic_core.api import Record
from elastic_report.ledger.document import Alive, Begin, Bound, Hung, Ledger, Line, RoundLine, Span, Sum
from elastic_report.ledger.states import LedgerState as S

MOST_RECENT: Final = 4096
"""The number of the last spans that a `Hung` can correct exactly. In front of them, productive time is corrected."""
_STARTS: Final = (S.RENDEZVOUS, S.STARTING)
_BEFORE: Final = (*_STARTS, S.QUEUED, S.EXCLUDED, S.STORE_OUTAGE, S.RESTORING)
"""The states of a node before its workers have trained for the first time."""
_NOT_CORRECTED: Final = (S.QUEUED, S.HUNG)


class Totals(Record, frozen=True, kw_only=True):
    """The seconds of one node, from its presence's begin to a moment."""

    states: Mapping[S, float]
    """Without states of zero seconds."""
    bound_s: float = 0.0
    """How much of the productive time may have been redone later, where steps are not known."""
    start_s: float = 0.0
    """The rendezvous and the start of the first round: the seconds that no earlier round made necessary."""
    rounds: int = 0
    """How many rounds the node was in."""

    @property
    def present_s(self) -> float:
        """The sum of the states."""
        return sum(self.states.values())

    @property
    def goodput(self) -> tuple[float, float] | None:
        """Google's formula: productive ÷ (present - queued), lowest and highest value. `None` without time."""
        whole_s = self.present_s - self.states.get(S.QUEUED, 0.0)
        return self._range(self.states.get(S.PRODUCTIVE, 0.0), whole_s)

    @property
    def goodput_nvidia(self) -> tuple[float, float] | None:
        """NVIDIA's formula: (t_w - t_ch - t_rm - t_re - t_save) ÷ (t_w - t_re), lowest and highest value.

        t_w is the presence; t_ch is lost work (redone, hung); t_rm is what follows an interruption (restoring,
        stopping, deciding, restarting, and rendezvous and starting of rounds after the first); t_re is queued; t_save
        is saving.
        """
        lost = (S.REDONE, S.HUNG, S.RESTORING, S.STOPPING, S.DECIDING, S.RESTARTING, *_STARTS, S.SAVING)
        lost_s = sum(self.states.get(state, 0.0) for state in lost) - self.start_s
        whole_s = self.present_s - self.states.get(S.QUEUED, 0.0)
        return self._range(whole_s - lost_s, whole_s)

    def _range(self, good_s: float, whole_s: float) -> tuple[float, float] | None:
        if whole_s <= 0:
            return None
        bound_s = min(self.bound_s, self.states.get(S.PRODUCTIVE, 0.0))
        return max(0.0, min(1.0, (good_s - bound_s) / whole_s)), max(0.0, min(1.0, good_s / whole_s))


class Tally:
    """Adds up the lines of one ledger, in order. Threading: one call at a time."""

    def __init__(self) -> None:
        self.began_s: float | None = None
        """The begin of the first span. `None` if there was none."""
        self.end_s = 0.0
        """The end of the last span."""
        self.rounds = 0
        self._states: dict[S, float] = {}
        self._bound_s = 0.0
        self._start_s = 0.0
        self._started = False
        self._recent: deque[tuple[S, float, float]] = deque(maxlen=MOST_RECENT)

    def add(self, line: Line) -> None:
        """Add the next line."""
        match line:
            case Begin():
                if queued_s := queued_seconds(line):
                    self._count(S.QUEUED, queued_s)
            case Span():
                self._span(line)
            case Sum():
                self._extend(line.begin_s, line.end_s)
                for state, seconds in line.states.items():
                    self._count(state, seconds)
                self._bound_s += line.bound_s
                self._start_s += line.start_s
                self.rounds += line.rounds
                self._started = self._started or not set(line.states).issubset(_BEFORE)
            case Hung():
                self._correct(line.begin_s, min(line.end_s, self.end_s))
            case Bound():
                self._bound_s += line.seconds
            case RoundLine():
                self.rounds += 1
            case _:
                pass  # it has no seconds

    def totals(self, more: Iterable[Span] = (), *, maybe_s: float = 0.0) -> Totals:
        """Return the totals so far, with spans that are not counted yet.

        Args:
            more: Those spans.
            maybe_s: How much of their productive time is not certain.
        """
        states, start_s = dict(self._states), self._start_s
        for span in more:
            states[span.state] = states.get(span.state, 0.0) + max(0.0, span.end_s - span.begin_s)
            if span.state in _STARTS and not self._started:
                start_s += max(0.0, span.end_s - span.begin_s)
        return Totals(
            states={state: states[state] for state in S if states.get(state, 0.0) > 0},
            bound_s=self._bound_s + maybe_s,
            start_s=start_s,
            rounds=self.rounds,
        )

    def _span(self, span: Span) -> None:
        self._extend(span.begin_s, span.end_s)
        seconds = max(0.0, span.end_s - span.begin_s)
        self._count(span.state, seconds)
        self._recent.append((span.state, span.begin_s, span.end_s))
        self._started = self._started or span.state not in _BEFORE
        if span.state in _STARTS and not self._started:
            self._start_s += seconds

    def _extend(self, begin_s: float, end_s: float) -> None:
        if self.began_s is None:
            self.began_s = begin_s
        self.end_s = end_s

    def _count(self, state: S, seconds: float) -> None:
        self._states[state] = self._states.get(state, 0.0) + seconds

    def _correct(self, begin_s: float, end_s: float) -> None:
        kept: list[tuple[S, float, float]] = []
        oldest_s = self._recent[0][1] if self._recent else end_s
        while self._recent and self._recent[-1][2] > begin_s:
            state, from_s, to_s = self._recent.pop()
            low_s, high_s = max(from_s, begin_s), min(to_s, end_s)
            if high_s <= low_s or state in _NOT_CORRECTED:
                kept.append((state, from_s, to_s))
                continue
            self._move(state, high_s - low_s)
            parts = ((state, from_s, low_s), (S.HUNG, low_s, high_s), (state, high_s, to_s))
            kept += [part for part in reversed(parts) if part[2] > part[1]]
        self._recent.extend(reversed(kept))
        before_s = min(oldest_s, end_s) - max(begin_s, self.began_s if self.began_s is not None else end_s)
        if before_s > 0:  # it was summed up
            self._move(S.PRODUCTIVE, min(before_s, self._states.get(S.PRODUCTIVE, 0.0)))

    def _move(self, state: S, seconds: float) -> None:
        self._count(state, -seconds)
        self._count(S.HUNG, seconds)


def queued_seconds(begin: Begin) -> float:
    """Return how long the scheduler had the job before the agent's start. 0 if not known."""
    return max(0.0, (begin.started_ns - begin.queued_ns) / 1e9) if begin.queued_ns else 0.0


def totals_of(ledger: Ledger) -> Totals:
    """Return the totals of a ledger. Without an `End`, its time ends with its last sign of life."""
    tally = Tally()
    tally.add(ledger.begin)
    for line in ledger.lines:
        tally.add(line)
    return tally.totals(last_span(ledger, tally))


def last_span(ledger: Ledger, tally: Tally) -> tuple[Span, ...]:
    """Return the time from the last span to the last sign of life, in the state that this sign names."""
    alive = next((line for line in reversed(ledger.lines) if isinstance(line, Alive)), None)
    since_s = ledger.begin.started_s if tally.began_s is None else tally.end_s
    if alive is None or alive.at_s <= since_s:
        return ()
    return (Span(state=alive.state, begin_s=since_s, end_s=alive.at_s, round=alive.round),)
