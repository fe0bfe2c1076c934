"""Operations of one group that differ between its members. Pure."""

import math
import re
from collections.abc import Mapping, Sequence
from typing import Final

from elastic_core.api import Record
from elastic_core.api.tools import rank_ranges
from elastic_watch.collectives.evidence import GroupState, Operation

_SAME_SIZES: Final = frozenset(
    {"all_reduce", "allreduce", "broadcast", "reduce", "reduce_scatter_tensor", "_reduce_scatter_base",
     "all_gather_into_tensor", "_all_gather_base"}
)  # fmt: skip
"""Operations in which all members' tensors have the same type and number of elements."""
_TENSOR: Final = re.compile(r"(\w+)\[([\d, x]*)\]")
_MOST_KINDS: Final = 4


class Mismatch(Record, frozen=True, kw_only=True):
    """An operation that members entered in different ways."""

    seq: int
    odd: tuple[int, ...]
    """The ranks that differ from more than half of all members; empty if no such majority exists."""
    lines: tuple[str, ...]
    """One sentence for each way."""


def mismatch_of(states: Mapping[int, GroupState], members: Sequence[int], *, first: int) -> Mismatch | None:
    """Return the first operation, from number `first` on, that members have entered in different ways."""
    by_seq: dict[int, dict[int, Operation]] = {}
    for rank, state in states.items():
        for each in state.last:
            if each.seq >= first:
                by_seq.setdefault(each.seq, {})[rank] = each
    for seq, entered in sorted(by_seq.items()):
        names: dict[str, list[int]] = {}
        for rank, each in entered.items():
            names.setdefault(each.name, []).append(rank)
        ways = names if len(names) > 1 else _sizes(entered)
        if len(ways) > 1:
            return _found(seq, ways, len(members))
    return None


def _sizes(entered: Mapping[int, Operation]) -> dict[str, list[int]]:
    """Return ranks by tensors, as far as they must be the same."""
    meanings: dict[tuple[tuple[str, int], ...], tuple[str, list[int]]] = {}
    for rank, each in entered.items():
        tensors = _tensors(each.signature) if each.name in _SAME_SIZES else ()
        if tensors:
            meanings.setdefault(tensors, (f"{each.name} {each.signature}", []))[1].append(rank)
    return dict(meanings.values())


def _tensors(signature: str) -> tuple[tuple[str, int], ...]:
    """Return types and numbers of elements; empty if not known."""
    return tuple(
        (kind, math.prod(int(number) for number in re.findall(r"\d+", sizes)))
        for kind, sizes in _TENSOR.findall(signature.partition("->")[0])
    )


def _found(seq: int, ways: Mapping[str, list[int]], size: int) -> Mismatch:
    by_count = sorted(ways.items(), key=lambda each: (-len(each[1]), each[1]))
    odd: tuple[int, ...] = ()
    if len(by_count[0][1]) * 2 > size:
        odd = tuple(sorted(rank for _, ranks in by_count[1:] for rank in ranks))
    lines = [
        f"Rank{'s' if len(ranks) > 1 else ''} {rank_ranges(sorted(ranks))} entered {way} as #{seq}."
        for way, ranks in by_count[:_MOST_KINDS]
    ]
    return Mismatch(seq=seq, odd=odd, lines=tuple(lines))
