"""The rounds of a run, merged from the ledgers of their nodes. Times are seconds on the report's clock."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from msgspec.structs import replace

from elastic_core.api import Record
from elastic_report.combining.seconds import Parts
from elastic_report.ledger.document import RoundLine, RoundOver
from elastic_report.model import RoundRow

_ENDINGS = ("failure", "restart", "drain", "membership", "end")
"""If nodes recorded several reasons for a round's end, equally often, the first of these counts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacedLedger:
    """A ledger with its attempt, and the report's time at which its clock was 0."""

    agent: int
    """Its position in the evidence."""
    node_id: str
    attempt: int
    zero_s: float
    parts: Parts
    """The lines of the ledger."""


class MergedRound(Record, frozen=True, kw_only=True):
    """One round of all its nodes."""

    attempt: int
    index: int
    token: int
    begin_s: float
    end_s: float | None
    """`None` if no node recorded the end."""
    node_count: int
    world_size: int
    ended_by: str = ""
    reason: str = ""
    members: tuple[str, ...] = ()
    """Node ids in rank order. Empty if not known."""
    lost: tuple[str, ...] = ()
    left: tuple[str, ...] = ()
    ranks: Mapping[int, int] = {}
    """The node ranks of the agents with a ledger, by their positions in the evidence."""


def merged_rounds(ledgers: Iterable[PlacedLedger]) -> list[MergedRound]:
    """Return the rounds in order of attempts and time."""
    begins: dict[tuple[int, int, int], list[tuple[PlacedLedger, RoundLine]]] = defaultdict(list)
    ends: dict[tuple[int, int, int], list[tuple[float, RoundOver]]] = defaultdict(list)
    for placed in ledgers:
        tokens: dict[int, int] = {}
        for line in placed.parts.rounds:
            tokens[line.index] = line.token
            begins[placed.attempt, line.index, line.token].append((placed, line))
        for over in placed.parts.overs:
            if over.index in tokens:
                key = (placed.attempt, over.index, tokens[over.index])
                ends[key].append((placed.zero_s + over.at_s, over))
    rounds = [_merged(key, lines, ends.get(key, [])) for key, lines in begins.items()]
    return sorted(rounds, key=lambda each: (each.attempt, each.token, each.index, each.begin_s))


def own_names(ledgers: Iterable[PlacedLedger], rounds: Iterable[MergedRound]) -> dict[int, str]:
    """Return the names that rounds have for agents whose node id several agents have, such as two of one host.

    The rounds' names are by the agents' positions in the evidence. An agent that was alone before has its later name.
    """
    node_ids = {placed.agent: placed.node_id for placed in ledgers}
    found = {}
    for this in rounds:
        for agent, rank in this.ranks.items():
            name = this.members[rank] if rank < len(this.members) else ""
            if name.startswith(f"{node_ids[agent]}#"):
                found[agent] = name
    return found


def renamed(rounds: Iterable[MergedRound], names: Mapping[int, str]) -> list[MergedRound]:
    """Return the rounds with these names of agents among their members."""
    found = []
    for this in rounds:
        own = {rank: names[agent] for agent, rank in this.ranks.items() if agent in names}
        members = tuple(own.get(rank, name) for rank, name in enumerate(this.members))
        found.append(replace(this, members=members))
    return found


def lost_times(ledgers: Iterable[PlacedLedger]) -> dict[tuple[int, str], list[float]]:
    """Return when other nodes declared nodes lost, in order of time, by attempt and node id."""
    found: dict[tuple[int, str], list[float]] = defaultdict(list)
    for placed in ledgers:
        declared = [(over.at_s, name) for over in placed.parts.overs for name in over.lost]
        declared += [(note.at_s, note.node) for note in placed.parts.notes if note.name == "lost"]
        for at_s, name in declared:
            if name and name != placed.node_id:
                found[placed.attempt, name].append(placed.zero_s + at_s)
    return {key: sorted(times) for key, times in found.items()}


def round_rows(rounds: Sequence[MergedRound], ends: Mapping[int, float], *, live: bool) -> tuple[RoundRow, ...]:
    """Return the rows of the report.

    Args:
        rounds: The rounds in order.
        ends: When each attempt ended: that is the end of a last round without a recorded one.
        live: Whether the last round goes on.
    """
    rows = []
    for number, this in enumerate(rounds):
        before = rounds[number - 1] if number and rounds[number - 1].attempt == this.attempt else None
        after = rounds[number + 1] if number + 1 < len(rounds) else None
        followed = after is not None and after.attempt == this.attempt
        joined = _only_in(this.members, before.members) if before is not None and before.members else ()
        gone = _only_in(this.members, after.members) if followed and after is not None and after.members else ()
        left = tuple(dict.fromkeys((*this.left, *(name for name in gone if name not in this.lost))))
        end_s = this.end_s
        if end_s is None and (after is not None or not live):
            end_s = after.begin_s if followed and after is not None else ends.get(this.attempt)
        rows.append(
            RoundRow(
                attempt=this.attempt,
                index=this.index,
                token=this.token,
                begin_s=this.begin_s,
                end_s=None if end_s is None else max(this.begin_s, end_s),
                node_count=this.node_count,
                world_size=this.world_size,
                ended_by=this.ended_by,
                reason=this.reason,
                joined=joined,
                left=left,
                lost=this.lost,
            )
        )
    return tuple(rows)


def _merged(
    key: tuple[int, int, int],
    lines: Sequence[tuple[PlacedLedger, RoundLine]],
    ends: Sequence[tuple[float, RoundOver]],
) -> MergedRound:
    attempt, index, token = key
    first = lines[0][1]
    ended_by, reason = _ending(ends)
    lost = tuple(dict.fromkeys(name for _, line in ends for name in line.lost))
    left = tuple(dict.fromkeys(name for _, line in ends for name in line.left))
    return MergedRound(
        attempt=attempt,
        index=index,
        token=token,
        begin_s=min(placed.zero_s + line.at_s for placed, line in lines),
        end_s=min((at_s for at_s, _ in ends), default=None),
        node_count=first.node_count,
        world_size=first.world_size,
        ended_by=ended_by,
        reason=reason,
        members=next((line.members for _, line in lines if line.members), ()),
        lost=lost,
        left=tuple(name for name in left if name not in lost),
        ranks={placed.agent: line.node_rank for placed, line in lines},
    )


def _ending(ends: Sequence[tuple[float, RoundOver]]) -> tuple[str, str]:
    if not ends:
        return "", ""
    counts = Counter(line.by for _, line in ends)
    order = {name: number for number, name in enumerate(_ENDINGS)}
    by = min(counts, key=lambda name: (-counts[name], order.get(name, len(order))))
    reasons = Counter(line.reason for _, line in ends if line.by == by and line.reason)
    return by, (reasons.most_common(1)[0][0] if reasons else "")


def _only_in(these: Sequence[str], those: Sequence[str]) -> tuple[str, ...]:
    """Return the names that occur more often in the first. Nodes of one host may have equal names."""
    return tuple((Counter(these) - Counter(those)).elements()) if these and those else ()
