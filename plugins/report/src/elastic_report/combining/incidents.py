"""The incidents of a run, each once, with what followed. Times are seconds on the report's clock."""

import bisect
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from elastic_core.api import FailedWorker, FailureClass, Ignore, Record, Restart, Stop
from elastic_core.api.commands import FoundIncident, Incident
from elastic_core.api.tools import duration_text
from elastic_report.combining.lanes import Lane
from elastic_report.combining.rounds import MergedRound
from elastic_report.ledger.states import LedgerState
from elastic_report.model import IncidentRow, WorkerBar

COSTS: Final = frozenset(
    {
        LedgerState.HUNG,
        LedgerState.STOPPING,
        LedgerState.DECIDING,
        LedgerState.RESTARTING,
        LedgerState.STORE_OUTAGE,
        LedgerState.RENDEZVOUS,
        LedgerState.STARTING,
        LedgerState.RESTORING,
    }
)
"""The states that an incident costs until training goes on. After that, `redone` is its cost."""
_TRAINING: Final = frozenset({LedgerState.PRODUCTIVE, LedgerState.REDONE, LedgerState.SAVING})
_COUNTED: Final = COSTS | {LedgerState.REDONE}


class PlacedIncident(Record, frozen=True, kw_only=True):
    """An incident with its attempt and time. `agent`: the position of the agent whose file it is."""

    agent: int
    attempt: int
    at_s: float
    incident: Incident
    log_paths: tuple[str, ...] = ()


def distinct(placed: Iterable[PlacedIncident]) -> list[PlacedIncident]:
    """Return each incident once, in order of time, with the most details that any node has.

    Each node of a round writes down the failure that ended it: all files of a round are about one incident, except
    several of the same node.
    """
    by_round: dict[tuple[int, int, int], list[PlacedIncident]] = defaultdict(list)
    for each in placed:
        by_round[each.attempt, each.incident.round_index, each.incident.round_token].append(each)
    found: list[PlacedIncident] = []
    for same_round in by_round.values():
        best = max(same_round, key=_details)
        own: dict[tuple[int, str], PlacedIncident] = {}
        for each in same_round:
            if each.agent == best.agent:
                own.setdefault((each.incident.at_ns, each.incident.summary), each)
        found += own.values()
    return sorted(found, key=lambda each: (each.at_s, each.incident.round_index))


def _details(placed: PlacedIncident) -> tuple[int, bool, bool, bool, int, float]:
    incident = placed.incident
    has_trace = incident.first is not None and incident.first.error is not None
    return (
        incident.report_count,
        incident.first is not None,
        has_trace,
        incident.decision is not None,
        len(incident.secondary) + len(incident.stopped),
        -placed.at_s,
    )


def placed_incidents(
    files: Iterable[tuple[int, FoundIncident]],
    *,
    run_id: str,
    lanes: Mapping[int, Sequence[Lane]],
    zeros_ns: Mapping[int, int],
    rounds: Sequence[MergedRound],
) -> list[PlacedIncident]:
    """Return the incidents of this run, each in its attempt. Those of other runs in a chosen directory are left out.

    Args:
        files: The incidents, and for each the position of its agent.
        run_id: The run's id.
        lanes: The lanes of each agent's node, by the agent's position; its own is the first.
        zeros_ns: What each agent's wall clock showed at the begin of the report.
        rounds: The run's rounds.
    """
    bounds = {(each.attempt, each.index, each.token): each for each in rounds}
    found = []
    for agent, file in files:
        incident = file.incident
        if incident.run_id != run_id:
            continue
        at_s = (incident.at_ns - zeros_ns[agent]) / 1e9
        own = lanes.get(agent, ())
        lane = next((each for each in own if each.begin_s - _SLACK_S <= at_s <= each.end_s + _SLACK_S), None)
        if lane is None:  # its wall clock was changed, or the file is from an earlier run in this directory
            if not own or (own[0].attempt, incident.round_index, incident.round_token) not in bounds:
                continue
            lane = own[0]
        this = bounds.get((lane.attempt, incident.round_index, incident.round_token))
        if this is not None:
            end_s = lane.end_s if this.end_s is None else this.end_s
            at_s = min(max(at_s, this.begin_s), max(this.begin_s, end_s))
        at_s = min(max(at_s, lane.begin_s), lane.end_s)
        logs = () if incident.first is None else incident.first.log_paths
        found.append(PlacedIncident(agent=agent, attempt=lane.attempt, at_s=at_s, incident=incident, log_paths=logs))
    return found


_SLACK_S: Final = 5.0
"""How far an incident may lie outside its agent's time, by its clock."""


class Costs:
    """Sums of lost states over all lanes, between any two moments.

    Args:
        spans: Begin and end of each part of a lane in these states.
    """

    def __init__(self, spans: Iterable[tuple[float, float]]) -> None:
        """Add the lanes up."""
        changes: dict[float, int] = defaultdict(int)
        for begin_s, end_s in spans:
            changes[begin_s] += 1
            changes[end_s] -= 1
        self._times = sorted(changes)
        self._counts: list[int] = []
        self._sums = [0.0]
        count = 0
        for number, at_s in enumerate(self._times):
            if number:
                self._sums.append(self._sums[-1] + count * (at_s - self._times[number - 1]))
            count += changes[at_s]
            self._counts.append(count)

    def between(self, begin_s: float, end_s: float) -> float:
        """Return the node-seconds between two moments."""
        return max(0.0, self._until(end_s) - self._until(begin_s)) if end_s > begin_s else 0.0

    def _until(self, at_s: float) -> float:
        number = bisect.bisect_right(self._times, at_s) - 1
        if number < 0:
            return 0.0
        return self._sums[number] + self._counts[number] * (at_s - self._times[number])


class Followed(Record, frozen=True, kw_only=True):
    """What followed an incident."""

    decided_s: float | None
    recovered_s: float | None
    begin_s: float
    """When its cost begins: at the last sign of progress, if it was a hang."""
    resumed_s: float | None
    """When the next round began. Steps that are executed again later are its cost. `None` if no round followed."""


def rows_of(
    incidents: Sequence[PlacedIncident],
    *,
    lanes: Sequence[Lane],
    rounds: Sequence[MergedRound],
    workers: Sequence[WorkerBar],
    saves: Sequence[float],
    decisions: Sequence[float],
    end_s: float,
) -> tuple[tuple[IncidentRow, ...], dict[int, float]]:
    """Return the rows of the report, and the redone seconds after each incident, by its number.

    Args:
        incidents: Each once, in order of time.
        lanes: All lanes.
        rounds: The run's rounds, in order.
        workers: All workers.
        saves: When saves ended, in order of time.
        decisions: When decisions were made, in order of time.
        end_s: When the run ended, or the present.
    """
    by_state, training = _scanned(lanes)
    started = _first_starts(workers)
    hangs = sorted(set(by_state[LedgerState.HUNG]))
    hung, redone = Costs(by_state[LedgerState.HUNG]), Costs(by_state[LedgerState.REDONE])
    costs = Costs(span for state in COSTS for span in by_state[state])
    followed = [_followed(each, rounds, training, started, decisions, hangs) for each in incidents]
    rows, redone_by = [], {}
    for position, (placed, after) in enumerate(zip(incidents, followed, strict=True)):
        number = position + 1
        next_s = followed[number].begin_s if number < len(followed) else end_s
        until_s = min(next_s, end_s if after.recovered_s is None else after.recovered_s)
        again_s = next((each.resumed_s for each in followed[number:] if each.resumed_s is not None), end_s)
        redone_by[number] = 0.0 if after.resumed_s is None else redone.between(after.resumed_s, again_s)
        lost_s = hung.between(after.begin_s, placed.at_s) + costs.between(placed.at_s, until_s) + redone_by[number]
        saved = bisect.bisect_right(saves, placed.at_s)
        rows.append(_row(number, placed, after, lost_s=lost_s, last_save_s=saves[saved - 1] if saved else None))
    return tuple(rows), redone_by


def _row(
    number: int, placed: PlacedIncident, after: Followed, *, lost_s: float, last_save_s: float | None
) -> IncidentRow:
    incident = placed.incident
    first = incident.first
    decision = incident.decision
    detect_s = incident.phases.detect_s if after.decided_s is None else max(0.0, after.decided_s - placed.at_s)
    origin_s = placed.at_s + (detect_s or 0.0)
    return IncidentRow(
        number=number,
        at_s=placed.at_s,
        incident=incident,
        sentence=sentence_of(incident),
        traceback="" if first is None or first.error is None else first.error.callstack,
        followers=_followers(incident),
        decision="" if decision is None else decision_text(decision),
        rule="" if decision is None else decision.rule,
        detect_s=detect_s,
        recover_s=None if after.recovered_s is None else max(0.0, after.recovered_s - origin_s),
        lost_s=lost_s,
        last_save_s=last_save_s,
        log_paths=placed.log_paths,
    )


def _followed(
    placed: PlacedIncident,
    rounds: Sequence[MergedRound],
    training: Mapping[tuple[int, int], float],
    started: Mapping[int, Sequence[float]],
    decisions: Sequence[float],
    hangs: Sequence[tuple[float, float]],
) -> Followed:
    at_s, incident = placed.at_s, placed.incident
    begin_s = at_s
    for low_s, high_s in hangs:
        if low_s < at_s and high_s >= at_s - _SLACK_S and (incident.hang is not None or high_s <= at_s + _SLACK_S):
            begin_s = min(begin_s, low_s)
    later = [each for each in rounds if each.begin_s > at_s]
    after = later[0] if later else None
    found = bisect.bisect_left(decisions, at_s)
    decided_s = decisions[found] if found < len(decisions) else None
    if decided_s is not None and after is not None and decided_s > after.begin_s:
        decided_s = None
    if after is None or isinstance(incident.decision, Ignore):
        return Followed(decided_s=decided_s, recovered_s=None, begin_s=begin_s, resumed_s=None)
    recovered_s = training.get((after.attempt, after.index))
    if recovered_s is None or recovered_s < after.begin_s:
        starts = started.get(after.index, ())
        next_start = bisect.bisect_left(starts, after.begin_s)
        recovered_s = starts[next_start] if next_start < len(starts) else None
    return Followed(decided_s=decided_s, recovered_s=recovered_s, begin_s=begin_s, resumed_s=after.begin_s)


def _scanned(
    lanes: Iterable[Lane],
) -> tuple[dict[LedgerState, list[tuple[float, float]]], dict[tuple[int, int], float]]:
    """Return begins and ends of what each state has, and when training began in each round, by attempt and index."""
    by_state: dict[LedgerState, list[tuple[float, float]]] = {state: [] for state in LedgerState}
    training: dict[tuple[int, int], float] = {}
    for lane in lanes:
        for each in lane.segments:
            state, index, begin_s = each.state, each.round, each.begin_s
            if state in _COUNTED:
                by_state[state].append((begin_s, each.end_s))
            if index is not None and state in _TRAINING:
                key = (lane.attempt, index)
                if begin_s < training.get(key, begin_s + 1):
                    training[key] = begin_s
    return by_state, training


def _first_starts(workers: Iterable[WorkerBar]) -> dict[int, list[float]]:
    found: dict[int, set[float]] = defaultdict(set)
    for bar in workers:
        found[bar.round].add(bar.begin_s)
    return {index: sorted(times) for index, times in found.items()}


def sentence_of(incident: Incident) -> str:
    """Return `round 0 failed: rank 2 on node-b raised ValueError: boom (train.py:11); restarted by max-restarts`."""
    where = f"round {incident.round_index} failed" if incident.round_index >= 0 else "the run failed before a round"
    return f"{where}: {cause_of(incident)}{_outcome(incident)}"


def cause_of(incident: Incident) -> str:
    """Return `rank 2 on node-b raised ValueError: boom (train.py:11)`."""
    first = incident.first
    summary = " ".join(incident.summary.split())
    if incident.failure_class is FailureClass.NODE_LOST and summary:
        return summary
    if first is None and incident.elsewhere_rank is None:
        source = f"hook {incident.reported_by}" if incident.reported_by else incident.failure_class.value
        return f"{source} on {incident.node_id or incident.host}: {summary}"
    rank = incident.elsewhere_rank if first is None else first.exit.global_rank
    node = incident.host if first is None else incident.node_id or incident.host
    if incident.hang is not None:
        return f"rank {rank} on {node} hung: {summary}"
    error = None if first is None else first.error
    raised = error is not None and error.type and summary.startswith(error.type.rpartition(".")[2])
    verb = "raised" if raised else "failed:"
    place = "" if first is None else _place(first)
    return f"rank {rank} on {node} {verb} {summary}{f' ({place})' if place and place not in summary else ''}"


def _place(worker: FailedWorker) -> str:
    """Return the innermost place in the script's own code, such as `train.py:12`."""
    frames = () if worker.error is None else worker.error.frames
    if not frames:
        return ""
    own = [each for each in frames if not any(mark in each[0] for mark in _LIBRARIES) and not each[0].startswith("<")]
    file, line = (own or list(frames))[-1][:2]
    return f"{file.rpartition('/')[2]}:{line}"


_LIBRARIES: Final = ("/site-packages/", "/dist-packages/", "/lib/python3")


def _outcome(incident: Incident) -> str:
    decision = incident.decision
    by = f" by {decision.rule}" if decision is not None and decision.rule else ""
    match decision:
        case Restart():
            return f"; restarted{by}"
        case Stop():
            return f"; the run was ended{by}"
        case Ignore():
            return f"; ignored{by}, and the other workers continued"
    return ""


def decision_text(decision: Restart | Stop | Ignore) -> str:
    """Return `restart in 2 s: restart 1 of 3`."""
    match decision:
        case Restart():
            delay = f" in {duration_text(decision.delay_s)}" if decision.delay_s > 0 else ""
            without = f" without {', '.join(decision.exclude_nodes)}" if decision.exclude_nodes else ""
            text, reason = f"restart{delay}{without}", decision.reason
        case Stop():
            text, reason = "stop", decision.reason
        case Ignore():
            text, reason = "ignore", ""
    return f"{text}: {reason}" if reason else text


def _followers(incident: Incident) -> str:
    failed = incident.failed_count if incident.report_count else len(incident.secondary)
    stopped = incident.stopped_count if incident.report_count else len(incident.stopped)
    parts = []
    if stopped:
        parts.append(f"{_count(stopped, 'other worker')} {'was' if stopped == 1 else 'were'} stopped because of it")
    if failed:
        parts.append(f"{_count(failed, 'other worker')} failed after it")
    return ", and ".join(parts)


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
