"""Nodes that a decision left out: for how long they stay so, and when they are needed after all. Pure.

How long is counted by each member for itself, from when it first saw the decision: no clock of another host is asked.
"""

from collections.abc import Collection
from typing import Final

from elastic_core.rendezvous.member.documents import Ending, RoundDocument

_FOR_GOOD: Final = float("inf")


def out_until(ending: Ending | None, current: RoundDocument | None, seen_s: float) -> dict[str, float]:
    """Return which nodes are left out, and until when.

    Args:
        ending: The last one of the run, of the current round or of the one before.
        current: The last round; who is in it is not left out.
        seen_s: When the ending was first seen.
    """
    if ending is None or not ending.exclude:
        return {}
    over = current is not None and (ending.token, ending.nonce) == (current.token, current.nonce)
    here = {entry.node for entry in current.roster} if current is not None and not over else frozenset()
    times = (*ending.exclude_s, *(_FOR_GOOD for _ in ending.exclude[len(ending.exclude_s) :]))
    return {node: seen_s + for_s for node, for_s in zip(ending.exclude, times, strict=False) if node not in here}


def still_out(
    ending: Ending | None, current: RoundDocument, seen_s: float, now_s: float
) -> tuple[frozenset[str], float | None]:
    """Return which nodes don't count as newcomers, and when the next one does (None: not before a decision)."""
    until = {node: end_s for node, end_s in out_until(ending, current, seen_s).items() if end_s > now_s}
    next_s = min(until.values(), default=_FOR_GOOD)
    return frozenset(until), None if next_s == _FOR_GOOD else next_s


def carried(
    ending: Ending | None, current: RoundDocument, seen_s: float, now_s: float
) -> tuple[tuple[str, ...], tuple[float, ...]]:
    """Return the nodes that stay out, and for how long, where a round ends for another reason than a failure."""
    left = {node: end_s - now_s for node, end_s in out_until(ending, current, seen_s).items() if end_s > now_s}
    names = sorted(left, key=lambda node: (left[node], node))  # those for good come last, without a time
    return tuple(names), tuple(left[node] for node in names if left[node] != _FOR_GOOD)


def needed(names: Collection[str], others: int, min_nodes: int) -> frozenset[str]:
    """Return the nodes left out; none where the others are too few for a round."""
    return frozenset(names) if others >= min_nodes else frozenset()
