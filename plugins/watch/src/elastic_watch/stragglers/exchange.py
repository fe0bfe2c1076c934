"""The windows of all nodes: packed for the exchange, and judged on one of them for all. Pure.

Content from another node is untrusted: it has a strict form, and limits of size.
"""

from collections.abc import Mapping
from typing import Final, TypeVar

import msgspec

from elastic_core.api import Record, decode_json, encode_json
from elastic_watch.stragglers.scores import NodeWork, Slow, Work, slow_among_nodes
from elastic_watch.stragglers.window import NodeWindow, Past

MAX_BYTES: Final = 16_384
MAX_RANKS: Final = 64
"""The most ranks of a node that are compared with those of other nodes: the slowest and the fastest."""
MAX_NAMED: Final = 16
MAX_KNOWN: Final = 4
"""The most stragglers of a node that it reports to the others: the slowest."""
_VERSION: Final = 1
_LONGEST_US: Final = 10**12

_Row = tuple[int, int, int, int, int, int]
"""Rank, own, low and error in microseconds, waits in thousandths, excused in microseconds."""


class _Packed(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    v: int
    step: int
    waits: int
    intervals: tuple[_Row, ...]
    works: tuple[_Row, ...]
    mixed: bool
    known: tuple[Slow, ...] = ()


class Conclusion(Record, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """The result for all nodes."""

    slow: tuple[Slow, ...] = ()
    """The slowest ranks and nodes, at most 16."""
    count: int = 0
    """The number of slow ranks and nodes."""
    nodes: int = 0
    """The number of nodes that have responded with data."""


def pack(window: NodeWindow) -> bytes:
    """Return a node's window in at most `MAX_BYTES` bytes."""
    return encode_json(
        _Packed(
            v=_VERSION,
            step=_us(window.intervals.step_s),
            waits=round(window.intervals.waits * 1000),
            intervals=_rows(window.intervals.works),
            works=_rows(window.works.works),
            mixed=window.mixed,
            known=window.known[:MAX_KNOWN],
        )
    )


def _rows(works: tuple[Work, ...]) -> tuple[_Row, ...]:
    ordered = sorted(works, key=lambda each: each.own_s)
    half = MAX_RANKS // 2
    kept = ordered if len(ordered) <= MAX_RANKS else [*ordered[:half], *ordered[-half:]]
    return tuple(
        (each.rank, _us(each.own_s), _us(each.low_s), _us(each.error_s), round(each.waits * 1000), _us(each.excused_s))
        for each in sorted(kept, key=lambda each: each.rank)
    )


def _us(seconds: float) -> int:
    return max(0, min(round(seconds * 1e6), _LONGEST_US))


def unpack(node_id: str, data: bytes) -> NodeWindow:
    """Return a node's window.

    Raises:
        ValueError: the content has another form.
    """
    found = _decoded(data, _Packed)
    rows = (*found.intervals, *found.works)
    if found.v != _VERSION or len(found.intervals) > MAX_RANKS or len(found.works) > MAX_RANKS:
        raise ValueError("a window of another version, or with too many ranks")
    if any(not 0 <= number <= _LONGEST_US for row in rows for number in row) or not 0 <= found.step <= _LONGEST_US:
        raise ValueError("a number out of range")

    def work(rows: tuple[_Row, ...]) -> NodeWork:
        works = tuple(
            Work(
                rank=rank,
                own_s=own / 1e6,
                low_s=low / 1e6,
                error_s=error / 1e6,
                waits=waits / 1000,
                excused_s=excused / 1e6,
            )
            for rank, own, low, error, waits, excused in rows
        )
        return NodeWork(node_id=node_id, works=works, step_s=found.step / 1e6, waits=found.waits / 1000)

    known = tuple(msgspec.structs.replace(each, node_id=node_id) for each in found.known[:MAX_KNOWN])
    return NodeWindow(intervals=work(found.intervals), works=work(found.works), mixed=found.mixed, known=known)


def concluded(answers: Mapping[str, bytes], past: Past) -> Conclusion:
    """Return the result of all nodes' windows. Nodes with other content are left out."""
    windows = []
    for node_id, data in answers.items():
        try:
            windows.append(unpack(node_id, data))
        except ValueError:
            continue
    mixed = any(each.mixed for each in windows)
    slow = {(each.node_id, each.rank): each for window in windows for each in window.known}
    for measure, nodes in (
        ("works", [each.works for each in windows]),
        ("intervals", [each.intervals for each in windows]),
    ):
        found = slow_among_nodes(nodes, past=past.of(measure), needs_past=mixed)
        past.add(measure, (work for node in nodes for work in node.works), _ranks_of(found, nodes))
        for each in found:
            slow.setdefault((each.node_id, each.rank), each)
    whole = {node_id for node_id, rank in slow if rank is None}
    named = [each for (node_id, rank), each in slow.items() if rank is None or node_id not in whole]
    named.sort(key=lambda each: each.score)
    return Conclusion(slow=tuple(named[:MAX_NAMED]), count=len(named), nodes=len(windows))


def _ranks_of(found: tuple[Slow, ...], nodes: list[NodeWork]) -> tuple[Slow, ...]:
    """Return the slow ranks, with all ranks of slow nodes."""
    whole = {each.node_id: each for each in found if each.rank is None}
    of_nodes = [
        msgspec.structs.replace(whole[node.node_id], rank=work.rank)
        for node in nodes
        if node.node_id in whole
        for work in node.works
    ]
    return (*found, *of_nodes)


def pack_conclusion(conclusion: Conclusion) -> bytes:
    """Return the result for all nodes, in at most `MAX_BYTES` bytes."""
    return encode_json(conclusion)


def unpack_conclusion(data: bytes) -> Conclusion:
    """Return the result for all nodes.

    Raises:
        ValueError: the content has another form.
    """
    return _decoded(data, Conclusion)


_Content = TypeVar("_Content")


def _decoded(data: bytes, kind: type[_Content]) -> _Content:
    if len(data) > MAX_BYTES:
        raise ValueError(f"{len(data)} bytes; expected at most {MAX_BYTES}")
    try:
        return decode_json(data, kind)
    except (msgspec.DecodeError, UnicodeDecodeError) as err:
        raise ValueError(str(err)) from None
