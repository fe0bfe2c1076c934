"""The marks on the timeline, each once although several nodes have recorded it."""

from collections.abc import Iterable, Sequence
from typing import Final

from elastic_core.api.tools import duration_text
from elastic_report.combining.rounds import PlacedLedger
from elastic_report.model import IncidentRow, NodeLane, RoundRow, TimelineEvent

MOST_EVENTS: Final = 20_000
_SAME_S: Final = 30.0
"""Nodes that record one event do so within this time."""
_ABOUT_OTHERS: Final = frozenset({"lost", "left", "joined", "decision", "failure", "hang", "drain", "excluded"})
"""Events that several nodes record about one node or about the whole run."""
_OWN_FIRST: Final = ("save", "worker_failed")
"""What is left out first if there are too many."""


def events_of(
    ledgers: Iterable[PlacedLedger],
    *,
    rounds: Sequence[RoundRow],
    incidents: Sequence[IncidentRow],
    lanes: Iterable[NodeLane],
) -> tuple[tuple[TimelineEvent, ...], int]:
    """Return the events in order of time, and how many were left out."""
    found = [*_notes(ledgers), *_rounds(rounds), *_failed_workers(lanes)]
    found += [
        TimelineEvent(
            at_s=row.at_s,
            name="incident",
            text=row.sentence,
            node=row.incident.node_id,
            rank=_rank(row),
            incident=row.number,
        )
        for row in incidents
    ]
    found.sort(key=lambda each: each.at_s)
    left_out = 0
    for name in _OWN_FIRST:
        if len(found) > MOST_EVENTS:
            kept = [each for each in found if each.name != name]
            left_out += len(found) - len(kept)
            found = kept
    if len(found) > MOST_EVENTS:
        left_out += len(found) - MOST_EVENTS
        found = found[-MOST_EVENTS:]
    return tuple(found), left_out


def _notes(ledgers: Iterable[PlacedLedger]) -> list[TimelineEvent]:
    all_notes = sorted(
        ((placed.zero_s + line.at_s, placed, line) for placed in ledgers for line in placed.parts.notes),
        key=lambda each: each[0],
    )
    found = []
    latest: dict[tuple[object, ...], tuple[float, set[int]]] = {}
    for at_s, placed, note in all_notes:
        node = note.node or placed.node_id
        if note.name in _ABOUT_OTHERS:
            key = (placed.attempt, note.name, note.node, note.rank, note.text)
            first_s, recorded_by = latest.get(key, (at_s, set()))
            if recorded_by and placed.agent not in recorded_by and at_s - first_s <= _SAME_S:
                recorded_by.add(placed.agent)
                continue
            latest[key] = (at_s, {placed.agent})
            node = note.node if note.node or note.rank is None else placed.node_id
        found.append(TimelineEvent(at_s=at_s, name=note.name, text=note.text, node=node, rank=note.rank))
    return found


def _rounds(rounds: Iterable[RoundRow]) -> list[TimelineEvent]:
    return [
        TimelineEvent(
            at_s=row.begin_s,
            name="round",
            text=f"round {row.index}: {_count(row.node_count, 'node')}, {_count(row.world_size, 'worker')}",
        )
        for row in rounds
    ]


def _failed_workers(lanes: Iterable[NodeLane]) -> list[TimelineEvent]:
    return [
        TimelineEvent(
            at_s=bar.end_s,
            name="worker_failed",
            text=f"rank {bar.global_rank} ended with {_end(bar.code)} after {duration_text(bar.end_s - bar.begin_s)}",
            node=lane.node_id,
            rank=bar.global_rank,
        )
        for lane in lanes
        for bar in lane.workers
        if bar.code and not bar.stopped
    ]


def _end(code: int) -> str:
    return f"signal {-code}" if code < 0 else f"exit code {code}"


def _rank(row: IncidentRow) -> int | None:
    first = row.incident.first
    return row.incident.elsewhere_rank if first is None else first.exit.global_rank


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
