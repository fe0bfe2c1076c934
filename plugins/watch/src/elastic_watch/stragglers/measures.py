"""The work of each rank between synchronisations, from times of steps and of collectives. Pure.

All times are nanoseconds of one host's monotonic clock. Results are durations in seconds, so that an offset between the
clocks of two hosts has no effect on them.
"""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from statistics import median
from typing import Final

StepTimes = Sequence[tuple[int, int]]
"""Steps of one rank with the times of their reports, oldest first."""
Arrivals = Sequence[tuple[str, int, int]]
"""Collectives that one rank has entered: group, number in the group, and time. Any order."""
Pieces = tuple[float, ...]
"""Durations of one rank, one for each piece of the window."""

FEWEST: Final = 8
"""The fewest steps of each rank in a window."""
FEWEST_POINTS: Final = 16
"""The fewest synchronisations that ranks have in common in a window."""
FEWEST_COUPLED: Final = 24
"""The fewest common steps from which a synchronisation is concluded."""
MOST_PIECES: Final = 16
_COUPLED: Final = 0.85
_CAUSAL: Final = 0.95


def since(times: StepTimes, after_ns: int) -> StepTimes:
    """Return the steps that were reported after a time, with the one before them."""
    first = next((index for index, (_, ns) in enumerate(times) if ns > after_ns), len(times))
    return times[max(0, first - 1) :]


def step_s(times: StepTimes) -> float:
    """Return the mean time of a step, in seconds. 0 if there are less than two."""
    if len(times) < 2:
        return 0.0
    (first, begin_ns), (last, end_ns) = times[0], times[-1]
    return (end_ns - begin_ns) / (last - first) / 1e9


def intervals(times: StepTimes) -> Pieces:
    """Return the times between reports, per step. Ranks that wait for each other in every step have the same."""
    return tuple((end - begin) / (after - before) / 1e9 for (before, begin), (after, end) in pairwise(times))


def until_first_collective(times: StepTimes, arrivals: Arrivals) -> Pieces:
    """Return the times from the report of a step until the rank's first collective after it.

    If the rank reports right after the last synchronisation of a step, it is the rank's own work. No other rank's time
    is needed.
    """
    entered = sorted(ns for _, _, ns in arrivals)
    found: list[float] = []
    index = 0
    for (_, begin), (_, end) in pairwise(times):
        while index < len(entered) and entered[index] < begin:
            index += 1
        if index < len(entered) and entered[index] < end:
            found.append((entered[index] - begin) / 1e9)
    return tuple(found)


def between_collectives(arrivals: Mapping[int, Arrivals]) -> dict[int, Pieces]:
    """Return the own work of each rank of one host between the collectives that all of them enter.

    A rank waits in a collective until the last rank has entered it, unless it enters another one before. The rest of
    the time is its own work, with the duration of the collective itself, which is the same for all.
    """
    return _own_work({rank: {(group, seq): ns for group, seq, ns in own} for rank, own in arrivals.items()})


def between_reports(steps: Mapping[int, StepTimes]) -> dict[int, Pieces]:
    """Return the own work of each rank of one host between the reports of steps, if ranks wait for each other.

    The times between the reports must show that: otherwise the result is empty. A rank that begins a step a constant
    time after the others, and never waits, is not slow.
    """
    points = {rank: {("", step): ns for step, ns in own} for rank, own in steps.items()}
    if not _are_coupled(points):
        return {}
    return _own_work(points)


_Points = Mapping[int, Mapping[tuple[str, int], int]]


def _common(points: _Points) -> list[tuple[str, int]]:
    """Return the synchronisations of all ranks, in the order of their ends."""
    if len(points) < 2:
        return []
    keys = set.intersection(*(set(own) for own in points.values()))
    return sorted(keys, key=lambda key: (max(own[key] for own in points.values()), key))


def _own_work(points: _Points) -> dict[int, Pieces]:
    keys = _common(points)
    if len(keys) < FEWEST_POINTS:
        return {}
    released = [max(own[key] for own in points.values()) for key in keys]
    found = {}
    for rank, own in points.items():
        gaps = []
        for (key, following), end in zip(pairwise(keys), released, strict=False):
            # It entered the next one before the others came to this one, so it did not wait.
            begin = end if own[following] >= end else own[key]
            gaps.append(max(0, own[following] - begin) / 1e9)
        found[rank] = _pieces(gaps)
    return found


def _pieces(gaps: Sequence[float]) -> Pieces:
    """Return the means of consecutive parts: a step has collectives after short and after long work."""
    count = min(MOST_PIECES, len(gaps) // 2)
    edges = [len(gaps) * index // count for index in range(count + 1)]
    return tuple(sum(gaps[begin:end]) / (end - begin) for begin, end in pairwise(edges))


def _are_coupled(points: _Points) -> bool:
    """Return whether each rank begins a step after the last one has begun the step before.

    Then the time since the last rank's report varies less than the time since the rank's own. Without waiting it is the
    other way round, as the distance between two ranks then changes with each step of both.
    """
    keys = _common(points)
    if len(keys) < FEWEST_COUPLED:
        return False
    released = [max(own[key] for own in points.values()) for key in keys]
    last = [max(points, key=lambda rank: points[rank][key]) for key in keys]
    ratios = []
    for rank, own in points.items():
        if last.count(rank) * 2 > len(keys):
            continue  # it waits for none
        after = [own[following] - end for following, end in zip(keys[1:], released, strict=False)]
        if sum(each >= 0 for each in after) < _CAUSAL * len(after):
            return False
        alone = _spread([own[following] - own[key] for key, following in pairwise(keys)])
        ratios.append(_spread(after) / alone if alone else 1.0)
    return bool(ratios) and median(ratios) < _COUPLED


def _spread(values: Sequence[float]) -> float:
    middle = median(values)
    return median(abs(value - middle) for value in values)
