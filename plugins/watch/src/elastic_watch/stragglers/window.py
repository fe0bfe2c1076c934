"""The judgement of one window of one node: which measures its data allows, and which ranks are slow. Pure."""

from collections import deque
from collections.abc import Iterable, Mapping
from statistics import median
from typing import Final

from msgspec.structs import replace

from elastic_core.api import Record
from elastic_watch.stragglers.measures import (
    FEWEST,
    FEWEST_POINTS,
    Arrivals,
    Pieces,
    StepTimes,
    between_collectives,
    between_reports,
    intervals,
    step_s,
    until_first_collective,
)
from elastic_watch.stragglers.scores import NodeWork, Slow, Work, slow_ranks, summarized

MANY: Final = 64
"""A window with so many steps of each rank does not wait for collectives, which are rare then."""
_RATE: Final = 0.96
"""A rank is slow by the times between its steps only if their mean, multiplied by this, is, too."""
_PAST_WINDOWS: Final = 20
_FEWEST_PAST: Final = 3


class Window(Record, frozen=True, kw_only=True):
    """The data of one node's ranks since the last window, by global rank. Times are nanoseconds."""

    node_id: str
    steps: Mapping[int, StepTimes] = {}
    """The reports of steps of ranks that report any."""
    arrivals: Mapping[int, Arrivals] = {}
    """The collectives of ranks with torch's flight recorder."""
    waits: Mapping[int, float] = {}
    """The part of the time in which a rank waited for a processor."""
    mixed: bool = False
    """Whether ranks are in process groups with different members, so that they may do different work."""


class NodeWindow(Record, frozen=True, kw_only=True, omit_defaults=True):
    """What other nodes need of one window, in durations: clocks of nodes are never compared."""

    intervals: NodeWork
    """The times between steps, which differ if ranks do not wait for each other."""
    works: NodeWork
    """The times from the report of a step until the first collective."""
    mixed: bool = False
    known: tuple[Slow, ...] = ()
    """Stragglers among the node's own ranks."""


class Judged(Record, frozen=True, kw_only=True):
    """The result of one window."""

    slow: tuple[Slow, ...]
    """The ranks that are slow, compared with the other ranks of the node."""
    shared: NodeWindow
    measures: tuple[str, ...] = ()
    """The measures that the data allowed: `collectives`, `reports`, `intervals`, `first collective`."""


class Past:
    """The own work of ranks in earlier windows of the round, by measure, except where they were slow.

    The first window does not count: the first steps take longer.
    """

    def __init__(self) -> None:
        self._known: dict[tuple[str, int], deque[float]] = {}
        self._windows: dict[str, int] = {}

    def of(self, measure: str) -> Mapping[int, float]:
        """Return the median of each rank with enough windows."""
        return {
            rank: median(values)
            for (name, rank), values in self._known.items()
            if name == measure and len(values) >= _FEWEST_PAST
        }

    def add(self, measure: str, works: Iterable[Work], slow: Iterable[Slow]) -> None:
        """Add a window."""
        self._windows[measure] = self._windows.get(measure, 0) + 1
        if self._windows[measure] == 1:
            return
        left_out = {each.rank for each in slow}
        for work in works:
            if work.rank not in left_out:
                self._known.setdefault((measure, work.rank), deque(maxlen=_PAST_WINDOWS)).append(work.own_s)


def is_whole(steps: Mapping[int, StepTimes], arrivals: Mapping[int, Arrivals]) -> bool:
    """Return whether a window has enough steps of each rank that reports any, and enough collectives if it has any."""
    counts = [len(own) - 1 for own in steps.values() if own]
    entered = [{key[:2] for key in own} for own in arrivals.values() if own]
    common = len(set.intersection(*entered)) if entered else 0
    if not counts:
        return common >= FEWEST_POINTS
    return min(counts) >= FEWEST and (not entered or common >= FEWEST_POINTS or min(counts) >= MANY)


def judge(window: Window, past: Past) -> Judged:
    """Judge one window, and add it to the past."""
    steps = {rank: own for rank, own in window.steps.items() if len(own) > FEWEST}
    rate = {rank: step_s(own) for rank, own in steps.items()}
    step = median(rate.values()) if rate else 0.0
    pieces: dict[str, Mapping[int, Pieces]] = {"collectives": between_collectives(_with_any(window.arrivals))}
    if not pieces["collectives"]:
        pieces["reports"] = between_reports(steps)
    pieces["intervals"] = {rank: intervals(own) for rank, own in steps.items()}
    first = {rank: until_first_collective(own, window.arrivals.get(rank, ())) for rank, own in steps.items()}
    pieces["first collective"] = {rank: own for rank, own in first.items() if len(own) >= FEWEST}
    slow: dict[int | None, Slow] = {}
    works: dict[str, tuple[Work, ...]] = {}
    for measure, durations in pieces.items():
        # The last rank waits for none, so its own work is the whole time.
        scale = max((sum(own) / len(own) for own in durations.values()), default=0.0)
        own = summarized(durations, step_s=step if measure == "first collective" else scale, waits=window.waits)
        if measure == "intervals":
            own = tuple(_with_rate(each, rate[each.rank]) for each in own)
        works[measure] = own
        if measure == "first collective" and pieces["collectives"]:
            continue  # the collectives show more
        cycle = scale if measure == "collectives" else step
        found = slow_ranks(own, step_s=cycle, past=past.of(measure), needs_past=window.mixed)
        past.add(measure, own, found)
        for each in found:
            slow.setdefault(each.rank, each)
    waits = median(window.waits.values()) if window.waits else 0.0

    def shared(measure: str) -> NodeWork:
        return NodeWork(node_id=window.node_id, works=works[measure], step_s=step, waits=waits)

    return Judged(
        slow=tuple(slow.values()),
        shared=NodeWindow(intervals=shared("intervals"), works=shared("first collective"), mixed=window.mixed),
        measures=tuple(measure for measure, own in works.items() if own),
    )


def _with_any(arrivals: Mapping[int, Arrivals]) -> Mapping[int, Arrivals]:
    return {rank: own for rank, own in arrivals.items() if own}


def _with_rate(work: Work, rate_s: float) -> Work:
    """Return a summary that is only slow if the mean is, too: ranks that wait for each other have the same mean."""
    return replace(work, low_s=min(work.low_s, rate_s * _RATE))
