"""The lanes of a run: in which state each agent was, from its ledger, or else inferred from other nodes.

Times are seconds on the report's clock. What another node can't know is not invented: an agent without a ledger is
assumed to have been in the state of the live node with the lowest rank.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from msgspec.structs import replace

from elastic_core.api import Record
from elastic_report.combining.evidence import AgentEvidence
from elastic_report.combining.rounds import MergedRound, PlacedLedger
from elastic_report.combining.seconds import FORMING, segments_of
from elastic_report.ledger.states import LedgerState
from elastic_report.model import LaneSpan

LOST: Final = "lost"
RUNNING: Final = "running"


class Lane(Record, frozen=True, kw_only=True):
    """One agent's time. `agent`: its position in the evidence; `None` if only other nodes know it."""

    agent: int | None
    node_id: str
    attempt: int
    begin_s: float
    end_s: float
    live_until_s: float
    """The last sign of life."""
    outcome: str = ""
    inferred: bool = False
    bound_s: float = 0.0
    """How much of the productive time may have been redone."""
    first_start_s: float = 0.0
    """How much of `rendezvous` and `starting` belongs to the run's first round."""
    segments: tuple[LaneSpan, ...] = ()


def lane_of(
    agent: AgentEvidence,
    placed: PlacedLedger,
    *,
    now_s: float,
    not_before_s: float | None,
    lost_at: Sequence[float],
    next_begin_s: float | None,
) -> Lane:
    """Return the lane of an agent with a ledger.

    Args:
        agent: What was found about it.
        placed: Its ledger.
        now_s: The present on its monotonic clock.
        not_before_s: When the attempt before it ended: the job was not queued before that. `None` if it is the first.
        lost_at: When other nodes declared it lost.
        next_begin_s: When the next agent of this node began. `None` if there was none.
    """
    parts, zero_s = placed.parts, placed.zero_s
    begin, end = parts.ledger.begin, parts.ledger.end
    begin_s = begin.started_s
    if 0 < begin.queued_ns < begin.started_ns:
        begin_s -= (begin.started_ns - begin.queued_ns) / 1e9
        if not_before_s is not None:
            begin_s = min(begin.started_s, max(begin_s, not_before_s - zero_s))
    sign_s = parts.last_sign_s
    hung_from_s = None
    if end is not None:
        sign_s, end_s, outcome = end.at_s, max(end.at_s, begin.started_s), end.outcome
    elif agent.alive:
        end_s, outcome = (sign_s if agent.current else max(sign_s, now_s)), RUNNING
    elif agent.ended_ns:
        recorded_s = begin.started_s + (agent.ended_ns - (agent.started_ns or begin.started_ns)) / 1e9
        sign_s = end_s = max(sign_s, recorded_s)
        outcome = agent.outcome
    else:
        end_s, outcome = sign_s, LOST
        declared_s = next((at_s - zero_s for at_s in lost_at if at_s - zero_s > sign_s), None)
        if declared_s is not None:
            hung_from_s = sign_s
            end_s = declared_s if next_begin_s is None else max(sign_s, min(declared_s, next_begin_s - zero_s))
    segments = segments_of(parts, begin_s=begin_s, end_s=end_s, zero_s=zero_s, hung_from_s=hung_from_s)
    return Lane(
        agent=placed.agent,
        node_id=placed.node_id,
        attempt=placed.attempt,
        begin_s=zero_s + begin_s,
        end_s=zero_s + end_s,
        live_until_s=zero_s + min(sign_s, end_s),
        outcome=outcome,
        bound_s=parts.bound_s,
        first_start_s=_first_start_s(placed, segments),
        segments=tuple(segments),
    )


def _first_start_s(placed: PlacedLedger, segments: Sequence[LaneSpan]) -> float:
    """Return the seconds that belong to the run's first round: none in later attempts, or if the node joined later."""
    first = placed.parts.rounds[0].index if placed.parts.rounds else 0
    if placed.attempt or first:
        return 0.0
    own = sum(each.end_s - each.begin_s for each in segments if each.state in FORMING)
    return min(own, placed.parts.first_start_s)


def inferred_lanes(
    lanes: Sequence[Lane],
    rounds: Sequence[MergedRound],
    *,
    lost_at: Mapping[tuple[int, str], Sequence[float]],
    unseen: Iterable[Lane],
) -> list[Lane]:
    """Return the lanes of agents without a ledger.

    Args:
        lanes: Those with a ledger.
        rounds: The run's rounds.
        lost_at: When nodes were declared lost, by attempt and node id.
        unseen: Agents that left a record of their start and end, but no ledger; without segments.
    """
    by_attempt: dict[int, list[Lane]] = defaultdict(list)
    for lane in lanes:
        by_attempt[lane.attempt].append(lane)
    records: dict[tuple[int, str], list[Lane]] = defaultdict(list)
    for lane in unseen:
        records[lane.attempt, lane.node_id].append(lane)
    found: list[Lane] = []
    for attempt, known in by_attempt.items():
        of_attempt = [each for each in rounds if each.attempt == attempt]
        states = _States(known, of_attempt)
        for name, first, last in _absences(of_attempt):
            lane = _absent_lane(name, of_attempt, first, last, known, lost_at.get((attempt, name), ()))
            if recorded := records.get((attempt, name)):
                record = recorded.pop(0)
                lane = replace(
                    lane,
                    agent=record.agent,
                    begin_s=record.begin_s,
                    end_s=max(lane.end_s if record.outcome in (LOST, "") else record.end_s, record.begin_s),
                    outcome=record.outcome or lane.outcome,
                )
            found.append(states.filled(lane))
        for (other, _), rest in records.items():
            if other == attempt:
                found += [states.filled(lane) for lane in rest]
    return [lane for lane in found if lane.segments]


def _absences(rounds: Sequence[MergedRound]) -> list[tuple[str, int, int]]:
    """Return the nodes without a ledger: name, first and last position of consecutive rounds in which it was."""
    found: list[tuple[str, int, int]] = []
    open_since: dict[tuple[str, int], int] = {}
    for position, this in enumerate(rounds):
        with_ledger = set(this.ranks.values())
        absent = Counter(name for rank, name in enumerate(this.members) if rank not in with_ledger)
        here = {(name, copy) for name, count in absent.items() for copy in range(count)}
        over = [each for each in open_since if each not in here]
        found += [(each[0], open_since.pop(each), position - 1) for each in over]
        for who in sorted(here):
            open_since.setdefault(who, position)
        ended = {*this.lost, *this.left}
        over = [each for each in open_since if each[0] in ended]
        found += [(each[0], open_since.pop(each), position) for each in over]
    found += [(name, first, len(rounds) - 1) for (name, _), first in open_since.items()]
    return sorted(found, key=lambda each: (each[1], each[0]))


def _absent_lane(
    name: str, rounds: Sequence[MergedRound], first: int, last: int, known: Sequence[Lane], lost_at: Sequence[float]
) -> Lane:
    """Return the lane of a node that was in these rounds, still without segments."""
    final = rounds[last]
    begin_s = rounds[first].begin_s
    declared = [at_s for at_s in lost_at if at_s >= final.begin_s]
    after = rounds[last + 1] if last + 1 < len(rounds) else None
    outcome = ""
    if name in final.lost or (declared and (after is None or declared[0] <= after.begin_s)):
        end_s = declared[0] if declared else final.begin_s if final.end_s is None else final.end_s
        outcome = LOST
    elif name in final.left and final.end_s is not None:
        end_s = final.end_s
    elif after is not None:
        end_s = after.begin_s
    else:
        end_s = max(lane.live_until_s for lane in known)
        outcomes = {lane.outcome for lane in known}
        outcome = outcomes.pop() if len(outcomes) == 1 and LOST not in outcomes else ""
    end_s = max(begin_s, end_s)
    return Lane(
        agent=None,
        node_id=name,
        attempt=final.attempt,
        begin_s=begin_s,
        end_s=end_s,
        live_until_s=end_s,
        outcome=outcome,
        inferred=True,
    )


class _States:
    """The states of an attempt's live node with the lowest rank."""

    def __init__(self, lanes: Sequence[Lane], rounds: Sequence[MergedRound]) -> None:
        self._lanes = lanes
        self._rounds = rounds
        self._made: dict[tuple[float, float], tuple[LaneSpan, ...]] = {}

    def filled(self, lane: Lane) -> Lane:
        """Return a lane with the states of the live node with the lowest rank."""
        key = (lane.begin_s, lane.end_s)
        if key not in self._made:
            self._made[key] = self._between(*key)
        return replace(lane, inferred=True, segments=self._made[key])

    def _between(self, begin_s: float, end_s: float) -> tuple[LaneSpan, ...]:
        found: list[LaneSpan] = []
        at_s = begin_s
        state = LedgerState.RENDEZVOUS
        while at_s < end_s:
            lane, until_s = self._lowest(at_s, end_s)
            pieces = () if lane is None else _slice(lane.segments, at_s, until_s)
            if not pieces:
                pieces = (LaneSpan(state=state, begin_s=at_s, end_s=until_s),)
            found += pieces
            state = pieces[-1].state
            at_s = until_s
        return tuple(found)

    def _lowest(self, at_s: float, end_s: float) -> tuple[Lane | None, float]:
        """Return the live lane with the lowest rank at a moment, and until when it is that."""
        ranks: Mapping[int, int] = {}
        until_s = end_s
        for this in self._rounds:
            if this.begin_s <= at_s:
                ranks = this.ranks
            else:
                until_s = min(until_s, this.begin_s)
                break
        live = [lane for lane in self._lanes if lane.begin_s <= at_s < lane.live_until_s]
        if not live:
            later = [lane.begin_s for lane in self._lanes if at_s < lane.begin_s < until_s]
            return None, min(later, default=until_s)
        lane = min(live, key=lambda each: ranks.get(-1 if each.agent is None else each.agent, 1 << 30))
        return lane, min(until_s, lane.live_until_s)


def _slice(segments: Sequence[LaneSpan], begin_s: float, end_s: float) -> tuple[LaneSpan, ...]:
    found = []
    for each in segments:
        low_s, high_s = max(each.begin_s, begin_s), min(each.end_s, end_s)
        if low_s < high_s:
            state = LedgerState.RENDEZVOUS if each.state is LedgerState.QUEUED else each.state
            found.append(LaneSpan(state=state, begin_s=low_s, end_s=high_s, round=each.round))
    if found:
        found[0] = replace(found[0], begin_s=begin_s)
        found[-1] = replace(found[-1], end_s=end_s)
    return tuple(found)
