"""The score of each rank and node: its own work compared with the others' and with its own past. Pure."""

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from math import hypot, sqrt
from statistics import median
from typing import Final

from msgspec.structs import replace

from elastic_core.api import Record
from elastic_watch.stragglers.measures import Pieces

SLOW: Final = 0.75
"""The score from which on a rank is not slow: the others' work, divided by its own."""
FLOOR_S: Final = 0.005
"""A difference below this is never reported."""
_OF_A_STEP: Final = 0.1
"""A difference below this part of a step is never reported."""
_SIGNIFICANT: Final = 4.0
_NORMAL: Final = 1.4826
"""The standard deviation of a normal distribution, divided by its median absolute deviation."""
_OF_A_MEDIAN: Final = 1.2533
"""The standard error of a median, divided by that of a mean."""
_LOW: Final = 1.15
"""Three quarters of a slow rank's values are longer than the others' median by this factor."""
CONTENDED: Final = 0.05
"""The part of the time in which a rank waits for a processor, from which on it counts."""
_NODE_RANKS: Final = 0.85
"""The score that all ranks of a slow node are below."""


class Work(Record, frozen=True, kw_only=True, omit_defaults=True):
    """The own work of one rank in one window."""

    rank: int
    """The global rank."""
    own_s: float
    """The median."""
    low_s: float
    """A quarter of the values is lower."""
    error_s: float
    """The standard error of the median."""
    waits: float = 0.0
    """The part of the time in which it waits for a processor, if it waits longer than the other ranks of its node."""
    excused_s: float = 0.0
    """The part of its work that it waited for a processor longer than others, on a node with too few processors."""


class Slow(Record, frozen=True, kw_only=True, omit_defaults=True):
    """A rank or node that is slow in one window."""

    rank: int | None = None
    """The global rank. `None` for a node."""
    node_id: str = ""
    own_s: float
    """Its own work per step, or between two collectives."""
    others_s: float
    """The same of the others: the median."""
    past_s: float | None = None
    """The same of the rank before. `None` if not known, or not lower."""
    waits: float = 0.0
    """The part of the time in which it waits for a processor, if it waits longer than the others."""

    @property
    def score(self) -> float:
        """The others' work, divided by its own."""
        return self.others_s / self.own_s if self.own_s > 0 else 1.0


def summarized(pieces: Mapping[int, Pieces], *, step_s: float, waits: Mapping[int, float]) -> tuple[Work, ...]:
    """Return the summaries of the durations of one node's ranks.

    If several ranks wait for processors, the machine has too few of them, and its scheduler may serve one rank later
    than another, which is excused. If one rank alone waits, the cause is its own: a processor that it shares with
    another program.

    Args:
        pieces: The durations, by global rank.
        step_s: The time of a step, or between two collectives.
        waits: The part of the time in which a rank waits for a processor, as far as it is known.
    """
    found = []
    for rank, durations in sorted(pieces.items()):
        others = [share for each, share in waits.items() if each != rank]
        usual = median(others) if others else 0.0
        more = max(0.0, waits.get(rank, 0.0) - usual)
        contended = usual >= CONTENDED
        ordered = sorted(durations)
        middle = median(ordered)
        spread_s = _NORMAL * median(abs(each - middle) for each in ordered)
        found.append(
            Work(
                rank=rank,
                own_s=middle,
                low_s=ordered[len(ordered) // 4],
                error_s=_OF_A_MEDIAN * spread_s / sqrt(len(ordered)),
                waits=more if more >= CONTENDED and not contended else 0.0,
                excused_s=more * step_s if contended else 0.0,
            )
        )
    return tuple(found)


def slow_ranks(
    works: Sequence[Work], *, step_s: float, past: Mapping[int, float], needs_past: bool = False
) -> tuple[Slow, ...]:
    """Return the ranks that are slow in this window, the slowest first.

    Args:
        works: The own work of all ranks that are compared.
        step_s: The time of a step, or between two collectives.
        past: The own work of ranks before, as far as it is known.
        needs_past: Whether ranks do different work, so that a rank must be slower than before, too.
    """
    if len(works) < 2:
        return ()
    owns, errors = _WithoutOne([each.own_s for each in works]), _WithoutOne([each.error_s for each in works])
    found = []
    for own in works:
        others_s = owns.median(own.own_s)
        if own.own_s * SLOW <= others_s:
            continue
        others = [each.own_s for each in works if each is not own]
        if not _is_slow(own, others, error_s=errors.median(own.error_s), step_s=step_s):
            continue
        before_s = past.get(own.rank)
        slower = before_s is not None and before_s < SLOW * own.own_s
        if slower or not needs_past:
            past_s = before_s if slower else None
            found.append(Slow(rank=own.rank, own_s=own.own_s, others_s=others_s, past_s=past_s, waits=own.waits))
    return tuple(sorted(found, key=lambda each: (each.score, each.rank or 0)))


class _WithoutOne:
    """The median of values without one of them, which a thousand ranks need a thousand times."""

    def __init__(self, values: Sequence[float]) -> None:
        self._ordered = sorted(values)

    def median(self, left_out: float) -> float:
        at, count = bisect_left(self._ordered, left_out), len(self._ordered) - 1
        low, high = (count - 1) // 2, count // 2
        return (self._ordered[low + (low >= at)] + self._ordered[high + (high >= at)]) / 2


def _is_slow(own: Work, others: Sequence[float], *, error_s: float, step_s: float) -> bool:
    reference_s = median(others)
    spread_s = _NORMAL * median(abs(each - reference_s) for each in others)
    error_s = hypot(own.error_s, error_s)
    own_s, low_s = own.own_s - own.excused_s, own.low_s - own.excused_s
    least_s = max(FLOOR_S, _OF_A_STEP * step_s, _SIGNIFICANT * spread_s, _SIGNIFICANT * error_s)
    return own_s * SLOW > reference_s and own_s - reference_s >= least_s and low_s > _LOW * reference_s


class NodeWork(Record, frozen=True, kw_only=True, omit_defaults=True):
    """The own work of a node's ranks in one window."""

    node_id: str
    works: tuple[Work, ...]
    step_s: float
    """The time of a step on this node."""
    waits: float = 0.0
    """The part of the time in which its ranks wait for a processor: the median."""


def slow_among_nodes(
    nodes: Sequence[NodeWork], *, past: Mapping[int, float], needs_past: bool = False
) -> tuple[Slow, ...]:
    """Return the nodes and ranks that are slow in this window. A rank of a slow node is not named by itself.

    A node is slow if all of its ranks are, compared with the ranks of the other nodes.
    """
    nodes = [node for node in nodes if node.works]
    if len(nodes) < 2:
        return ()
    step_s = median(node.step_s for node in nodes)
    sums = {node.node_id: _of_node(node) for node in nodes}
    slow = [found for node in nodes if (found := _slow_node(node, sums, step_s=step_s, past=past))]
    waits = {node.node_id: node.waits for node in nodes}
    slow = [replace(each, waits=_more(each.node_id, waits)) for each in slow]
    slow = [each for each in slow if not needs_past or each.past_s is not None]
    named = {each.node_id for each in slow}
    node_of = {work.rank: node.node_id for node in nodes if node.node_id not in named for work in node.works}
    works = [work for node in nodes if node.node_id not in named for work in node.works]
    ranks = slow_ranks(works, step_s=step_s, past=past, needs_past=needs_past)
    return (*slow, *(replace(each, node_id=node_of[each.rank]) for each in ranks if each.rank is not None))


def _more(node_id: str, waits: Mapping[str, float]) -> float:
    """Return how much a node's ranks wait for processors, if they wait longer than those of other nodes."""
    usual = median(share for node, share in waits.items() if node != node_id)
    return waits[node_id] if waits[node_id] - usual >= CONTENDED else 0.0


def _slow_node(node: NodeWork, sums: Mapping[str, Work], *, step_s: float, past: Mapping[int, float]) -> Slow | None:
    if len(node.works) < 2:
        return None  # its rank is named
    own, others = sums[node.node_id], [each for node_id, each in sums.items() if node_id != node.node_id]
    values = [each.own_s for each in others]
    reference_s = median(values)
    if not all(work.own_s * _NODE_RANKS > reference_s for work in node.works):
        return None
    if not _is_slow(own, values, error_s=median(each.error_s for each in others), step_s=step_s):
        return None
    before = [past[work.rank] for work in node.works if work.rank in past]
    before_s = median(before) if before else None
    return Slow(
        node_id=node.node_id,
        own_s=own.own_s,
        others_s=reference_s,
        past_s=before_s if before_s is not None and before_s < SLOW * own.own_s else None,
    )


def _of_node(node: NodeWork) -> Work:
    return Work(
        rank=-1,
        own_s=median(each.own_s for each in node.works),
        low_s=median(each.low_s for each in node.works),
        error_s=median(each.error_s for each in node.works),
    )
