"""Combines everything that was found about a run into its report."""

import dataclasses
import datetime
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from msgspec.structs import replace

from elastic_core.api.commands import Incident
from elastic_report.combining.account import account_of, sums_of
from elastic_report.combining.attempts import Presence, attempts_of, since_last_success
from elastic_report.combining.clocks import Alignment, align
from elastic_report.combining.differences import differences, first_facts
from elastic_report.combining.events import events_of
from elastic_report.combining.evidence import AgentEvidence, RunEvidence
from elastic_report.combining.facts import facts_of
from elastic_report.combining.incidents import PlacedIncident, distinct, placed_incidents, rows_of
from elastic_report.combining.lanes import LOST, RUNNING, Lane, inferred_lanes, lane_of
from elastic_report.combining.rounds import (
    MergedRound,
    PlacedLedger,
    lost_times,
    merged_rounds,
    own_names,
    renamed,
    round_rows,
)
from elastic_report.combining.seconds import Parts, state_seconds
from elastic_report.ledger.document import Note
from elastic_report.ledger.states import LedgerState
from elastic_report.masking import masked_incident
from elastic_report.model import NodeLane, Report, RoundRow, WorkerBar

_MOST_NAMED: Final = 4
"""How many nodes a line about missing data names."""
_NO_LEDGER: Final = (
    "no ledger was found, so that no time is shown "
    "(none is written with -p no:ledger, or if the run succeeds within half a second)"
)


def combine(evidence: RunEvidence, *, zone: datetime.tzinfo | None = None) -> Report:
    """Return the report of a run.

    Args:
        evidence: What was found.
        zone: Time zone of times of day in texts. `None` means the local one.
    """
    return _Combination(evidence, zone).report()


class _Combination:
    """The parts of a report, each made from those before it."""

    def __init__(self, evidence: RunEvidence, zone: datetime.tzinfo | None) -> None:
        self._evidence, self._zone = evidence, zone
        parts = [None if agent.ledger is None else Parts(agent.ledger) for agent in evidence.agents]
        clocks = align(evidence.agents, parts)
        # Seconds since the Unix epoch would lose microseconds.
        self._origin_ns = min(
            (agent.started_ns for agent in evidence.agents if agent.started_ns), default=evidence.now_ns
        )
        presences = [
            _presence(agent, own, zero_ns - self._origin_ns, offset_s, evidence.now_ns - self._origin_ns)
            for agent, own, zero_ns, offset_s in zip(
                evidence.agents, parts, clocks.zeros_ns, clocks.offsets_s, strict=True
            )
        ]
        groups = attempts_of(presences)
        kept = since_last_success(groups, presences)
        before = [presences[number].end_s for group in groups[: len(groups) - len(kept)] for number in group]
        self.attempts = {number: attempt for attempt, group in enumerate(kept) for number in group}
        self.order = [number for group in kept for number in group]
        self._agents = evidence.agents
        self._clocks: Alignment = clocks
        self._before_s = max(before, default=None)
        self._presences = presences
        self.began_ns = self._first_ns()
        self._began_s = (self.began_ns - self._origin_ns) / 1e9
        self.ledgers = [self._placed(number, own) for number in self.order if (own := parts[number]) is not None]
        self._parts = {placed.agent: placed.parts for placed in self.ledgers}
        self.rounds = self._with_store_members(merged_rounds(self.ledgers))
        if names := own_names(self.ledgers, self.rounds):
            self._rename(names)
        self.lost_at = lost_times(self.ledgers)
        self.lanes = self._lanes()

    def _rename(self, names: Mapping[int, str]) -> None:
        self._agents = tuple(
            replace(agent, node_id=names.get(number, agent.node_id)) for number, agent in enumerate(self._agents)
        )
        self.ledgers = [dataclasses.replace(each, node_id=self._agents[each.agent].node_id) for each in self.ledgers]
        self.rounds = renamed(self.rounds, names)

    # --- time

    def _first_ns(self) -> int:
        """Return when the run began, on the common clock."""
        begins = []
        for number in self.order:
            if self.attempts[number] == 0:
                begin_s = self._presences[number].begin_s
                ledger = self._agents[number].ledger
                if ledger is not None and 0 < ledger.begin.queued_ns < ledger.begin.started_ns:
                    queued_s = begin_s - (ledger.begin.started_ns - ledger.begin.queued_ns) / 1e9
                    begin_s = min(begin_s, queued_s if self._before_s is None else max(queued_s, self._before_s))
                begins.append(begin_s)
        return self._origin_ns + round(min(begins) * 1e9) if begins else self._evidence.now_ns

    def _zero_s(self, number: int) -> float:
        """Return when an agent's monotonic clock was 0 (without a ledger: its wall clock), on the report's clock."""
        return (self._clocks.zeros_ns[number] - self.began_ns) / 1e9

    def _placed(self, number: int, parts: Parts) -> PlacedLedger:
        return PlacedLedger(
            agent=number,
            node_id=self._agents[number].node_id,
            attempt=self.attempts[number],
            zero_s=self._zero_s(number),
            parts=parts,
        )

    def _presence_s(self, number: int) -> tuple[float, float]:
        presence = self._presences[number]
        return presence.begin_s - self._began_s, presence.end_s - self._began_s

    def clock_time(self, at_s: float) -> str:
        """Return the time of day of a moment: with the date or seconds, if the run's length needs them."""
        end_s = self.end_s
        form = "%Y-%m-%d %H:%M %Z" if end_s > 86_400 else "%H:%M %Z" if end_s > 1200 else "%H:%M:%S %Z"
        at = datetime.datetime.fromtimestamp(self.began_ns / 1e9 + at_s, tz=datetime.UTC)
        return at.astimezone(self._zone).strftime(form)

    @property
    def end_s(self) -> float:
        """When the run ended, or the present."""
        ends = [lane.end_s for lane in self.lanes] or [self._presence_s(number)[1] for number in self.order]
        return max(0.0, max(ends, default=0.0))

    # --- lanes

    def _with_store_members(self, rounds: list[MergedRound]) -> list[MergedRound]:
        """Return the rounds; the last one has the members that the store knows, if no ledger has them."""
        store = self._evidence.store
        if store is None or not rounds or not store.members or rounds[-1].members:
            return rounds
        last = rounds[-1]
        if (last.index, last.token) != (store.round_index, store.round_token):
            return rounds
        return [*rounds[:-1], replace(last, members=store.members)]

    def _lanes(self) -> list[Lane]:
        own: list[Lane] = []
        before_s = None if self._before_s is None else self._before_s - self._began_s
        for attempt in range(max(self.attempts.values(), default=-1) + 1):
            of_attempt = [placed for placed in self.ledgers if placed.attempt == attempt]
            begins = defaultdict(list)
            for placed in of_attempt:
                begin = placed.parts.ledger.begin
                begins[placed.node_id, begin.host].append(placed.zero_s + begin.started_s)
            lanes = [self._lane(placed, begins, before_s) for placed in of_attempt]
            own += lanes
            ends = [lane.end_s for lane in lanes]
            ends += [self._presence_s(number)[1] for number, each in self.attempts.items() if each == attempt]
            before_s = max(ends, default=before_s)
        unseen = [self._bare(number) for number in self.order if self._agents[number].ledger is None]
        inferred = inferred_lanes(own, self.rounds, lost_at=self.lost_at, unseen=unseen)
        return sorted([*own, *inferred], key=lambda lane: (lane.attempt, lane.begin_s, lane.node_id))

    def _lane(
        self, placed: PlacedLedger, begins: Mapping[tuple[str, str], Sequence[float]], before_s: float | None
    ) -> Lane:
        agent = self._agents[placed.agent]
        begin = placed.parts.ledger.begin
        begin_s = placed.zero_s + begin.started_s
        later = [each for each in begins[placed.node_id, begin.host] if each > begin_s]
        wall_zero_ns = self._clocks.zeros_ns[placed.agent] + round(self._clocks.offsets_s[placed.agent] * 1e9)
        return lane_of(
            agent,
            placed,
            now_s=(self._evidence.now_ns - wall_zero_ns) / 1e9,
            not_before_s=before_s,
            lost_at=self.lost_at.get((placed.attempt, placed.node_id), ()),
            next_begin_s=min(later, default=None),
        )

    def _bare(self, number: int) -> Lane:
        """Return the time of an agent without a ledger, without states."""
        agent = self._agents[number]
        begin_s, end_s = self._presence_s(number)
        return Lane(
            agent=number,
            node_id=agent.node_id,
            attempt=self.attempts[number],
            begin_s=begin_s,
            end_s=max(begin_s, end_s),
            live_until_s=max(begin_s, end_s),
            outcome=agent.outcome or (RUNNING if agent.alive else LOST),
            inferred=True,
        )

    # --- the report

    def report(self) -> Report:
        """Return the report."""
        evidence = self._evidence
        seconds = [state_seconds(lane.segments) for lane in self.lanes]
        nodes = tuple(self._node(lane, own) for lane, own in zip(self.lanes, seconds, strict=True))
        last = [self._agents[number] for number in self.order if self.attempts[number] == self._attempt_count - 1]
        live = any(agent.alive for agent in last) and not (evidence.store is not None and evidence.store.outcome)
        rows = round_rows(self.rounds, self._attempt_ends(), live=live)
        incidents, redone_by = rows_of(
            self._incidents(),
            lanes=self.lanes,
            rounds=self.rounds,
            workers=[bar for node in nodes for bar in node.workers],
            saves=self._saves(nodes),
            decisions=sorted(at_s for at_s, note in self._notes() if note.name == "decision"),
            end_s=self.end_s,
        )
        facts = first_facts(last) or first_facts(self._agents[number] for number in self.order)
        events, left_out = events_of(self.ledgers, rounds=rows, incidents=incidents, lanes=nodes)
        return Report(
            generated_ns=evidence.now_ns,
            source=evidence.source,
            live=live,
            run=facts_of(
                evidence,
                last,
                lanes=self.lanes,
                rounds=rows,
                incidents=incidents,
                attempt_count=self._attempt_count,
                began_ns=self.began_ns,
                end_s=self.end_s,
                clock_time=self.clock_time,
            ),
            account=account_of(
                sums_of(self.lanes, seconds),
                incidents=incidents,
                redone_by=redone_by,
                round_count=len(rows),
                node_count=len({lane.node_id for lane in self.lanes}),
                attempt_count=self._attempt_count,
                clock_time=self.clock_time,
                frozen=not live,
            ),
            nodes=nodes,
            rounds=rows,
            events=events,
            incidents=incidents,
            options=() if facts is None else facts.options,
            versions={} if facts is None else facts.versions,
            compared_with=self._compared_with(),
            differences=differences(evidence.earlier, last),
            clocks=self._clocks.sentence,
            missing=(*evidence.missing, *self._missing(rows, left_out)),
        )

    @property
    def _attempt_count(self) -> int:
        return max(self.attempts.values(), default=0) + 1

    def _attempt_ends(self) -> dict[int, float]:
        ends: dict[int, float] = {}
        for lane in self.lanes:
            ends[lane.attempt] = max(ends.get(lane.attempt, lane.live_until_s), lane.live_until_s)
        return ends

    def _node(self, lane: Lane, states: Mapping[LedgerState, float]) -> NodeLane:
        agent = None if lane.agent is None else self._agents[lane.agent]
        return NodeLane(
            node_id=lane.node_id,
            host="" if agent is None else agent.host,
            attempt=lane.attempt,
            inferred=lane.inferred,
            outcome=lane.outcome,
            begin_s=lane.begin_s,
            end_s=lane.end_s,
            states=states,
            spans=lane.segments,
            workers=() if agent is None else self._workers(lane),
            run_dir="" if agent is None else agent.run_dir,
            log_paths=() if agent is None else agent.log_paths[:64],
            clock_offset_s=0.0 if lane.agent is None else self._clocks.offsets_s[lane.agent],
        )

    def _workers(self, lane: Lane) -> tuple[WorkerBar, ...]:
        if lane.agent is None or (parts := self._parts.get(lane.agent)) is None:
            return ()
        zero_s = self._zero_s(lane.agent)
        bars = []
        for line in parts.workers:
            begin_s = line.begin_s + zero_s
            end_s = lane.end_s if line.end_s is None else line.end_s + zero_s
            bars.append(
                WorkerBar(
                    local_rank=line.local_rank,
                    global_rank=line.global_rank,
                    round=line.round,
                    begin_s=begin_s,
                    end_s=max(begin_s, end_s),
                    code=line.code,
                    stopped=line.stopped,
                    marks=tuple((kind, low_s + zero_s, high_s + zero_s) for kind, low_s, high_s in line.marks),
                    first_step=line.first_step,
                    last_step=line.last_step,
                )
            )
        return tuple(bars)

    def _notes(self) -> Iterable[tuple[float, Note]]:
        for placed in self.ledgers:
            for note in placed.parts.notes:
                yield placed.zero_s + note.at_s, note

    def _saves(self, nodes: Iterable[NodeLane]) -> list[float]:
        """Return when saves ended, in order of time."""
        ends = {at_s for at_s, note in self._notes() if note.name == "save"}
        for node in nodes:
            for bar in node.workers:
                ends.update(high_s for kind, low_s, high_s in bar.marks if kind == "save" and high_s > low_s)
        return sorted(ends)

    def _incidents(self) -> list[PlacedIncident]:
        by_agent = {lane.agent: lane for lane in self.lanes if lane.agent is not None}
        lanes: dict[int, list[Lane]] = {}
        of_node: dict[tuple[str, str], list[int]] = defaultdict(list)
        for number in self.order:
            by_agent.setdefault(number, self._bare(number))
            of_node[self._agents[number].node_id, self._agents[number].host].append(number)
        for number in self.order:
            same = of_node[self._agents[number].node_id, self._agents[number].host]
            lanes[number] = [by_agent[number], *(by_agent[other] for other in same if other != number)]
        files = [(number, file) for number in self.order for file in self._agents[number].incidents]
        found = placed_incidents(
            files,
            run_id=self._evidence.run_id,
            lanes=lanes,
            zeros_ns={number: self.began_ns + round(self._clocks.offsets_s[number] * 1e9) for number in self.order},
            rounds=self.rounds,
        )
        known = self._with_store_failures(distinct(found))
        return [replace(each, incident=masked_incident(each.incident)) for each in known]

    def _with_store_failures(self, found: list[PlacedIncident]) -> list[PlacedIncident]:
        """Return the incidents, with those of the last attempt that only the store has."""
        store = self._evidence.store
        if store is None:
            return found
        attempt = self._attempt_count - 1
        known = {(each.incident.round_index, each.incident.summary) for each in found if each.attempt == attempt}
        whole = {each.incident.round_index for each in found if each.attempt == attempt}
        added = [
            PlacedIncident(agent=-1, attempt=attempt, at_s=self._time_in_store(failure), incident=failure)
            for failure in store.failures
            if (failure.round_index, failure.summary) not in known and failure.round_index not in whole
        ]
        return sorted([*found, *added], key=lambda each: (each.at_s, each.incident.round_index))

    def _time_in_store(self, failure: Incident) -> float:
        for this in reversed(self.rounds):
            if this.index == failure.round_index:
                return self.end_s if this.end_s is None else this.end_s
        return self.end_s

    def _compared_with(self) -> str:
        earlier = self._evidence.earlier
        if not earlier:
            return ""
        first = min(earlier, key=lambda agent: agent.started_ns)
        began = datetime.datetime.fromtimestamp(first.started_ns / 1e9, tz=datetime.UTC).astimezone(self._zone)
        run_id = first.ledger.begin.run_id if first.ledger is not None else self._evidence.run_id
        return f"run {run_id!r} of {began:%Y-%m-%d %H:%M %Z}"

    def _missing(self, rows: Sequence[RoundRow], left_out: int) -> Iterable[str]:
        if not self.ledgers:
            yield _NO_LEDGER
        inferred = [lane.node_id for lane in self.lanes if lane.inferred]
        if inferred:
            yield (
                f"{_named(inferred)}: no ledger was found, and the time was inferred from other nodes. Try: elastic "
                "report with the run directories of all nodes"
            )
        for placed in self.ledgers:
            if placed.parts.ledger.torn:
                yield f"{placed.node_id}: {_count(placed.parts.ledger.torn, 'line')} of its ledger can't be read"
        summed: dict[str, int] = defaultdict(int)
        for placed in self.ledgers:
            for total in placed.parts.sums:
                summed[placed.node_id] += total.rounds
        if summed:
            yield (
                f"{_named(list(summed))}: the ledger has a sum in place of old rounds (up to {max(summed.values())}), "
                "which are missing in the list of rounds"
            )
        unknown = sum(max(0, each.node_count - len(each.ranks)) > 0 and not each.members for each in self.rounds)
        if unknown:
            yield (f"the names of some nodes in {_count(unknown, 'round')} are not known: their time is missing")
        if left_out:
            yield f"{_count(left_out, 'event')} of the timeline were left out, as there are too many"


def _presence(agent: AgentEvidence, parts: Parts | None, zero_ns: int, offset_s: float, now_ns: int) -> Presence:
    """Return when an agent ran, on the common clock. `zero_ns` and `now_ns` count from the origin of these seconds."""
    if parts is None:
        begin_ns = agent.started_ns + zero_ns
        end_ns = (agent.ended_ns or agent.started_ns) + zero_ns
        if agent.alive:
            end_ns = now_ns - round(offset_s * 1e9)
        return Presence(begin_s=begin_ns / 1e9, end_s=max(begin_ns, end_ns) / 1e9, outcome=agent.outcome)
    zero_s = zero_ns / 1e9
    ledger = parts.ledger
    end_s = zero_s + parts.last_sign_s
    if agent.alive:
        end_s = max(end_s, now_ns / 1e9 - offset_s)
    first = parts.rounds[0].index if parts.rounds else None
    outcome = ledger.end.outcome if ledger.end is not None else agent.outcome
    return Presence(begin_s=zero_s + ledger.begin.started_s, end_s=end_s, outcome=outcome, first_round=first)


def _named(names: Sequence[str]) -> str:
    distinct_names = list(dict.fromkeys(names))
    more = len(distinct_names) - _MOST_NAMED
    return ", ".join(distinct_names[:_MOST_NAMED]) + (f" and {more} more" if more > 0 else "")


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
