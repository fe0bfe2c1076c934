"""The seconds of one ledger: its lines as segments without gaps and overlaps, and sums over them."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from elastic_report.ledger.document import (
    Alive,
    Begin,
    Bound,
    Hung,
    Ledger,
    Line,
    Note,
    RoundLine,
    RoundOver,
    Span,
    Sum,
    WorkerLine,
)
from elastic_report.ledger.states import ORDER, LedgerState
from elastic_report.model import LaneSpan

FORMING: Final = (LedgerState.RENDEZVOUS, LedgerState.STARTING)
_BEFORE: Final = frozenset(
    {*FORMING, LedgerState.QUEUED, LedgerState.EXCLUDED, LedgerState.STORE_OUTAGE, LedgerState.RESTORING}
)
"""The states of a node before its workers have trained for the first time."""
_TAIL: Final = 64
"""How many of the last lines are searched for the last sign of life: lines are in order of time, except a few."""


class Parts:
    """The lines of a ledger by their kinds, in their order."""

    def __init__(self, ledger: Ledger) -> None:
        """Sort them."""
        self.ledger = ledger
        found: dict[type, list[Line]] = defaultdict(list)
        for line in ledger.lines:
            found[type(line)].append(line)
        # Each list has lines of the type that is its key.
        self.spans: Sequence[Span] = found[Span]  # type: ignore[assignment]
        self.sums: Sequence[Sum] = found[Sum]  # type: ignore[assignment]
        self.signs: Sequence[Alive] = found[Alive]  # type: ignore[assignment]
        self.hangs: Sequence[Hung] = found[Hung]  # type: ignore[assignment]
        self.bounds: Sequence[Bound] = found[Bound]  # type: ignore[assignment]
        self.rounds: Sequence[RoundLine] = found[RoundLine]  # type: ignore[assignment]
        self.overs: Sequence[RoundOver] = found[RoundOver]  # type: ignore[assignment]
        self.workers: Sequence[WorkerLine] = found[WorkerLine]  # type: ignore[assignment]
        self.notes: Sequence[Note] = found[Note]  # type: ignore[assignment]

    @property
    def last_sign_s(self) -> float:
        """The time of the last line, which is the agent's last sign of life."""
        latest = self.ledger.begin.started_s
        return max([latest, *map(_time_of, self.ledger.lines[-_TAIL:])])

    @property
    def bound_s(self) -> float:
        """How many of the productive seconds may have been redone."""
        return sum(line.seconds for line in self.bounds) + sum(line.bound_s for line in self.sums)

    @property
    def first_start_s(self) -> float:
        """The seconds of rendezvous and starting before the node's first training."""
        seconds = 0.0
        for total in self.sums:
            seconds += total.start_s
            if not _BEFORE.issuperset(total.states):
                return seconds
        for span in self.spans:
            if span.state not in _BEFORE:
                break
            if span.state in FORMING:
                seconds += span.end_s - span.begin_s
        return seconds


def segments_of(
    parts: Parts, *, begin_s: float, end_s: float, zero_s: float = 0.0, hung_from_s: float | None = None
) -> list[LaneSpan]:
    """Return a node's time from `begin_s` to `end_s`: in order, without gaps and overlaps.

    Arguments are seconds of the node's monotonic clock; `zero_s` is added to those of the result. Time before the
    agent's start is `queued`. Time after `hung_from_s` is `hung`. Time without a line, as after a lost line, counts for
    the state before it.
    """
    started_s = parts.ledger.begin.started_s
    found: list[LaneSpan] = []
    if begin_s < started_s:
        until_s = min(started_s, end_s)
        found.append(LaneSpan(state=LedgerState.QUEUED, begin_s=begin_s + zero_s, end_s=until_s + zero_s))
    _add_gapless(found, _recorded(parts), max(begin_s, started_s), end_s, zero_s)
    hangs = [(line.begin_s, line.end_s) for line in parts.hangs]
    if hung_from_s is not None and hung_from_s < end_s:
        hangs.append((hung_from_s, end_s))
    for low_s, high_s in hangs:
        found = _reclassified(found, low_s + zero_s, high_s + zero_s)
    return found


def state_seconds(segments: Iterable[LaneSpan]) -> dict[LedgerState, float]:
    """Return the seconds of each state that occurs, in the published order."""
    sums = dict.fromkeys(ORDER, 0.0)
    for segment in segments:
        sums[segment.state] += segment.end_s - segment.begin_s
    return {state: seconds for state, seconds in sums.items() if seconds > 0}


def state_share(states: Mapping[LedgerState, float], *which: LedgerState) -> float:
    """Return the seconds of these states together."""
    return sum(states.get(state, 0.0) for state in which)


def _time_of(line: Line) -> float:
    if isinstance(line, Begin):
        return line.started_s
    if isinstance(line, Span | Hung | Sum | WorkerLine):
        return line.begin_s if line.end_s is None else line.end_s
    return line.at_s


def _recorded(parts: Parts) -> Sequence[Span]:
    """Return what the lines record, in order of time: spans and sums, then the signs of life after the last span.

    A sign of life names the state since the last span.
    """
    found: list[Span] = list(parts.spans)
    for total in parts.sums:
        found += _summed_up(total)
    found.sort(key=lambda span: span.begin_s)
    at_s = max((span.end_s for span in found), default=0.0)
    for sign in parts.signs:
        if sign.at_s >= at_s:
            found.append(Span(state=sign.state, begin_s=at_s, end_s=sign.at_s, round=sign.round))
            at_s = sign.at_s
    return found


def _summed_up(line: Sum) -> list[Span]:
    """Return a span for each state of a sum, in the published order: their order in time is not known."""
    total = sum(seconds for seconds in line.states.values() if seconds > 0)
    if total <= 0 or line.end_s <= line.begin_s:
        return []
    reason = f"{line.rounds} rounds, summed up: the order of these states is not known"
    found, at_s, done = [], line.begin_s, 0.0
    for state in ORDER:
        if (seconds := line.states.get(state, 0.0)) <= 0:
            continue
        done += seconds
        until_s = line.begin_s + (line.end_s - line.begin_s) * min(1.0, done / total)
        found.append(Span(state=state, begin_s=at_s, end_s=until_s, reason=reason))
        at_s = until_s
    return found


def _add_gapless(found: list[LaneSpan], recorded: Sequence[Span], begin_s: float, end_s: float, zero_s: float) -> None:
    """Add what lies between two moments: the first of overlapping spans counts, and gaps extend what was before.

    The time before the first span counts for its state.
    """
    at_s = begin_s
    last = recorded[0] if recorded else Span(state=LedgerState.RENDEZVOUS, begin_s=begin_s, end_s=begin_s)
    for span in recorded:
        if at_s == span.begin_s < span.end_s <= end_s:  # nearly always
            _append(found, span, at_s + zero_s, span.end_s + zero_s)
            at_s, last = span.end_s, span
            continue
        start_s = min(max(span.begin_s, at_s), end_s)
        if start_s > at_s:
            _append(found, last, at_s + zero_s, start_s + zero_s)
        until_s = min(max(span.end_s, start_s), end_s)
        if until_s > start_s:
            _append(found, span, start_s + zero_s, until_s + zero_s)
        at_s = until_s
        if span.end_s >= at_s:
            last = span
    if at_s < end_s:
        _append(found, last, at_s + zero_s, end_s + zero_s)


def _append(found: list[LaneSpan], like: Span | LaneSpan, begin_s: float, end_s: float) -> None:
    """Append a segment like another one, or extend the last one if it has the same state and round."""
    reason = like.reason
    if found:
        before = found[-1]
        if before.state is like.state and before.round == like.round:
            found.pop()
            reason, begin_s = before.reason or reason, before.begin_s
    found.append(LaneSpan(state=like.state, begin_s=begin_s, end_s=end_s, round=like.round, reason=reason))


def _reclassified(segments: Sequence[LaneSpan], begin_s: float, end_s: float) -> list[LaneSpan]:
    """Return the segments with the time between two moments as `hung`."""
    found: list[LaneSpan] = []
    for segment in segments:
        low_s, high_s = max(segment.begin_s, begin_s), min(segment.end_s, end_s)
        if low_s >= high_s or segment.state is LedgerState.QUEUED:
            _append(found, segment, segment.begin_s, segment.end_s)
            continue
        if segment.begin_s < low_s:
            _append(found, segment, segment.begin_s, low_s)
        hung = LaneSpan(state=LedgerState.HUNG, begin_s=low_s, end_s=high_s, round=segment.round)
        _append(found, hung, low_s, high_s)
        if high_s < segment.end_s:
            _append(found, segment, high_s, segment.end_s)
    return found
