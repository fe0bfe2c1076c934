"""What a run was: its result, its first cause in a sentence, and the lines that show it."""

from collections.abc import Callable, Sequence

from elastic_core.api.tools import duration_text
from elastic_report.combining.evidence import AgentEvidence, RunEvidence
from elastic_report.combining.incidents import cause_of
from elastic_report.combining.lanes import RUNNING, Lane
from elastic_report.masking import masked
from elastic_report.model import IncidentRow, RoundRow, RunFacts

_MOST_TRACE_LINES = 3


def facts_of(
    evidence: RunEvidence,
    agents: Sequence[AgentEvidence],
    *,
    lanes: Sequence[Lane],
    rounds: Sequence[RoundRow],
    incidents: Sequence[IncidentRow],
    attempt_count: int,
    began_ns: int,
    end_s: float,
    clock_time: Callable[[float], str],
) -> RunFacts:
    """Return the facts.

    Args:
        evidence: Everything that was found.
        agents: The agents of the run's last attempt.
        lanes: All lanes.
        rounds: All rounds.
        incidents: All incidents.
        attempt_count: The number of attempts.
        began_ns: When the run began, on the common clock.
        end_s: When it ended, or the last sign of life.
        clock_time: Returns the time of day of a moment of the report.
    """
    last = [lane for lane in lanes if lane.attempt == attempt_count - 1]
    state = _state(evidence, agents, last)
    codes = [agent.exit_code for agent in agents if agent.exit_code is not None and agent.outcome == state]
    ledger_codes = [
        end.exit_code for agent in agents if agent.ledger and (end := agent.ledger.end) and end.outcome == state
    ]
    store_code = None if evidence.store is None or state in (RUNNING, "unknown") else evidence.store.exit_code
    exit_code = next(iter([*codes, *ledger_codes]), store_code)
    known = [agent.ledger.begin for agent in agents if agent.ledger is not None]
    return RunFacts(
        run_id=evidence.run_id,
        script=next((each for each in (*(b.script for b in known), *(a.script for a in agents)) if each), ""),
        backend=next((each for each in (*(b.backend for b in known), *(a.backend for a in agents)) if each), ""),
        state=state,
        exit_code=exit_code,
        began_ns=began_ns,
        ended_s=None if state == RUNNING else end_s,
        attempt_count=attempt_count,
        node_count=max((row.node_count for row in rounds), default=max(1, len(last))),
        world_size=max((row.world_size for row in rounds), default=sum(b.local_world_size for b in known) or 1),
        restart_count=_ended(rounds, "failure", "restart"),
        membership_changes=_ended(rounds, "membership", "drain"),
        sentence=_sentence(evidence, agents, state, exit_code, rounds, incidents, end_s, clock_time),
        evidence=_evidence(incidents, state, agents),
    )


def _state(evidence: RunEvidence, agents: Sequence[AgentEvidence], lanes: Sequence[Lane]) -> str:
    if evidence.store is not None and evidence.store.outcome:
        outcome = evidence.store.outcome
        return "succeeded" if outcome == "done" else outcome
    outcomes = {lane.outcome for lane in lanes} | {agent.outcome for agent in agents}
    if RUNNING in outcomes or any(agent.alive for agent in agents):
        return RUNNING
    for outcome in ("failed", "succeeded", "stopped"):
        if outcome in outcomes:
            return outcome
    return "unknown"


def _ended(rounds: Sequence[RoundRow], *by: str) -> int:
    """Return how many rounds ended so and were followed by another one of their attempt."""
    return sum(
        row.ended_by in by and rounds[number + 1].attempt == row.attempt for number, row in enumerate(rounds[:-1])
    )


def _sentence(
    evidence: RunEvidence,
    agents: Sequence[AgentEvidence],
    state: str,
    exit_code: int | None,
    rounds: Sequence[RoundRow],
    incidents: Sequence[IncidentRow],
    end_s: float,
    clock_time: Callable[[float], str],
) -> str:
    name = f"Run {evidence.run_id!r}"
    took = duration_text(end_s)
    last = incidents[-1] if incidents else None
    if state == "failed":
        code = "" if exit_code is None else f" with exit code {exit_code}"
        if last is not None:
            return f"{name} failed after {took}{code}: {_cause(last, clock_time)}."
        reason = _reason(evidence, agents)
        return f"{name} failed after {took}{code}{f': {reason}' if reason else ''}."
    restarts = _ended(rounds, "failure", "restart")
    after = f", with {restarts} restart{'' if restarts == 1 else 's'}" if restarts else ""
    first = f"; the last failure: {_cause(last, clock_time)}" if last else ""
    if state == RUNNING:
        return f"{name} has run for {took}{after}{first}."
    if state == "succeeded":
        return f"{name} succeeded after {took}{after}{first}."
    if state == "stopped":
        reason = _reason(evidence, agents)
        return f"{name} was stopped after {took}{after}{f' ({reason})' if reason else ''}{first}."
    return f"{name}: no end was recorded. The last sign of life was after {took}, at {clock_time(end_s)}{first}."


def _cause(row: IncidentRow, clock_time: Callable[[float], str]) -> str:
    where = f" in round {row.incident.round_index}" if row.incident.round_index >= 0 else ""
    return f"{cause_of(row.incident)}{where}, at {clock_time(row.at_s)}"


def _reason(evidence: RunEvidence, agents: Sequence[AgentEvidence]) -> str:
    reasons = [end.reason for agent in agents if agent.ledger and (end := agent.ledger.end) and end.reason]
    store = () if evidence.store is None else (evidence.store.reason,)
    results = [agent.result for agent in agents if agent.result]
    text = masked(next((each for each in (*store, *results, *reasons) if each), ""))
    return " ".join(text.split())


def _evidence(incidents: Sequence[IncidentRow], state: str, agents: Sequence[AgentEvidence]) -> tuple[str, ...]:
    if not incidents:
        return tuple(dict.fromkeys(masked(agent.result) for agent in agents if agent.result and agent.outcome == state))
    row = incidents[-1]
    incident, first = row.incident, row.incident.first
    lines = [f"{incident.failure_class.value}: {' '.join(incident.summary.split())}"]
    if first is not None:
        end = f"signal {first.exit.signal}" if first.exit.signal is not None else f"exit code {first.exit.code}"
        lines.append(
            f"rank {first.exit.global_rank} (local rank {first.exit.local_rank}) on {incident.node_id}, "
            f"pid {first.exit.pid}, {end}, after {duration_text(first.exit.runtime_s)}"
        )
        if first.error is not None and first.error.frames:
            lines += [
                f"{file}:{line}, in {function}: {source.strip()}"
                for file, line, function, source in first.error.frames[-_MOST_TRACE_LINES:]
            ]
    if row.followers:
        lines.append(row.followers)
    if row.decision:
        lines.append(f"decision: {row.decision}{f' (rule {row.rule})' if row.rule else ''}")
    return tuple(lines)
