"""The data that `elastic status` shows of a run from any source, which are also its `--json` output."""

import datetime
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

from msgspec.structs import replace

from elastic_core.api import ConfigError, Decision, Record, Restart
from elastic_core.api.commands import FoundIncident, find_incidents
from elastic_core.api.tools import duration_text
from elastic_ops.run_directories import FoundRun
from elastic_ops.status.document import AgentStatus, PastRound, WorkerStatus

SCHEMA_VERSION: Final = 1

_SHOWN_AS_THEY_ARE: Final = tuple(name for name in PastRound.__struct_fields__ if not name.endswith("_ns"))
OUT: Final = "out"
"""The state of a node that is left out, by its own hook or by the policy."""
_STATES: Final = {
    "created": "starting",
    "gating": "starting",
    "joining": "waiting for a round",
    "preparing": "starting",
    "deciding": "failing",
    "waiting": "restarting",
    "refused": OUT,
}
"""The agent's states as text for people; other states are shown unchanged."""


class AbsenceView(Record, frozen=True, kw_only=True):
    """Why a node is left out: one of its hooks rejects rounds (`refused`), or the run's policy excludes it.

    `since` and `until` are ISO 8601 in UTC: when the hook is called again, or the policy's time is over; empty if not
    known. `for_s`: the time from the node's publication, as in the store.
    """

    by: str
    reason: str
    refused: bool
    since: str = ""
    until: str = ""
    for_s: float | None = None


class NodeView(Record, frozen=True, kw_only=True):
    """One node. `first_rank` is that of its first worker. `None` if it has no place in the round.

    `since` is ISO 8601 in UTC, empty if not known.
    """

    node_id: str
    address: str = ""
    state: str
    node_rank: int | None = None
    first_rank: int | None = None
    worker_count: int = 0
    role: str = ""
    since: str = ""
    absence: AbsenceView | None = None


class RoundView(Record, frozen=True, kw_only=True):
    """The current round, or the last one."""

    index: int
    token: int = 0
    node_count: int = 0
    world_size: int = 0
    master_addr: str = ""
    master_port: int = 0


class PastRoundView(Record, frozen=True, kw_only=True):
    """One of the last rounds of the node. `ended` is empty if it is not over, or its agent did not see its end.

    `ended_by`: `membership` (nodes joined or left), `failure`, or `restart` (a requested restart). `began_s` and
    `ended_s`: the same times from a store, in seconds since the run began; `None` with a directory, or if not known.
    `joined`, `left` and `lost` are as in `PastRound`.
    """

    index: int
    token: int = 0
    node_count: int = 1
    world_size: int = 1
    began: str = ""
    ended: str = ""
    ended_by: str = ""
    reason: str = ""
    began_s: float | None = None
    ended_s: float | None = None
    joined: tuple[str, ...] = ()
    joined_count: int = 0
    left: tuple[str, ...] = ()
    left_count: int = 0
    lost: tuple[str, ...] = ()
    lost_count: int = 0


class IncidentView(Record, frozen=True, kw_only=True):
    """A summary of the last incident. `at` is ISO 8601 in UTC, empty if not known."""

    failure_class: str
    summary: str
    node_id: str
    rank: int | None = None
    round_index: int = -1
    decision: str = ""
    at: str = ""
    path: str = ""


class StoreView(Record, frozen=True, kw_only=True):
    """The rendezvous store. `latency_s`: of the read behind this view; `trouble`: the problem that agents report."""

    where: str
    reachable: bool | None = None
    latency_s: float | None = None
    unreachable_since: str = ""
    trouble: str = ""


class VerdictView(Record, frozen=True, kw_only=True):
    """How the run ended: `done`, `failed` or `stopped`."""

    outcome: str
    exit_code: int
    reason: str = ""
    by: str = ""


class AgentView(Record, frozen=True, kw_only=True):
    """The agent of the run directory. `alive` is `None` if it can't be checked from here."""

    pid: int
    host: str
    alive: bool | None
    started: str


class RunView(Record, frozen=True, kw_only=True):
    """One run. `source`: `directory` or `store`; `run_dir` is empty with the latter.

    `waiting`: ids of nodes that have no place in the round and are not left out. `hooks`: the fields that hooks of this
    node publish, by their names; empty with a store. `rounds`: its last ones, the oldest first, and `earlier_rounds`
    how many came before them; with a store only with `--history`, as far as the store and agents here have them.
    """

    run_id: str
    source: str
    state: str
    backend: str = ""
    run_dir: str = ""
    agent: AgentView | None = None
    round: RoundView | None = None
    restart_count: int = 0
    max_restarts: int | None = None
    membership_changes: int = 0
    max_membership_changes: int | None = None
    nodes: tuple[NodeView, ...] = ()
    waiting: tuple[str, ...] = ()
    workers: tuple[WorkerStatus, ...] = ()
    incident_count: int = 0
    last_incident: IncidentView | None = None
    store: StoreView | None = None
    verdict: VerdictView | None = None
    hooks: Mapping[str, Mapping[str, object]] = {}
    rounds: tuple[PastRoundView, ...] = ()
    earlier_rounds: int = 0


class StatusDocument(Record, frozen=True, kw_only=True):
    """The output of `elastic status --json`."""

    schema_version: int = SCHEMA_VERSION
    runs: tuple[RunView, ...]


def view_of_directory(found: FoundRun) -> RunView:
    """Return the view of a run directory: its node, and the run as far as this node knows it."""
    incidents: list[FoundIncident] = []
    with suppress(ConfigError):  # they are of another version: the state can be shown all the same
        incidents = find_incidents(Path(found.path))
    last = short_incident(incidents[-1]) if incidents else None
    status = found.status
    if status is None:
        run_id = incidents[-1].incident.run_id if incidents else Path(found.path).name
        return RunView(
            run_id=run_id,
            source="directory",
            state="unknown",
            run_dir=found.path,
            incident_count=len(incidents),
            last_incident=last,
        )
    return RunView(
        run_id=status.run_id,
        source="directory",
        state=_state(found, status),
        backend=status.backend,
        run_dir=found.path,
        agent=AgentView(
            pid=status.agent.pid,
            host=status.agent.host,
            alive=found.running,
            started=iso_time(status.agent.started_ns),
        ),
        round=_round(status),
        restart_count=status.restart_count,
        max_restarts=status.max_restarts,
        membership_changes=status.membership_changes,
        max_membership_changes=status.max_membership_changes,
        nodes=(_node(found, status),),
        workers=status.workers
        if found.running is not False
        else tuple(replace(worker, state="unknown") for worker in status.workers),
        incident_count=len(incidents),
        last_incident=last,
        store=_store(status),
        verdict=_verdict(status),
        hooks=status.hooks,
        rounds=past_rounds(status),
        earlier_rounds=status.earlier_rounds,
    )


def _state(found: FoundRun, status: AgentStatus) -> str:
    if status.end is not None:
        return "done" if status.end.outcome == "succeeded" else status.end.outcome
    if found.running is False:
        return "agent dead"
    return OUT if status.absence is not None else _STATES.get(status.state, status.state)


def _round(status: AgentStatus) -> RoundView | None:
    place = status.round
    if place is None:
        return None
    return RoundView(**{field: getattr(place, field) for field in RoundView.__struct_fields__})


def past_rounds(status: AgentStatus) -> tuple[PastRoundView, ...]:
    """Return the last rounds of an agent's node."""
    return tuple(
        PastRoundView(
            began=iso_time(past.began_ns),
            ended=iso_time(past.ended_ns),
            **{name: getattr(past, name) for name in _SHOWN_AS_THEY_ARE},
        )
        for past in status.rounds
    )


def _node(found: FoundRun, status: AgentStatus) -> NodeView:
    absence = _absence(status)
    place = status.round if absence is None else None
    return NodeView(
        node_id=status.node_id,
        address=status.agent.host,
        state=_state(found, status),
        node_rank=None if place is None else place.node_rank,
        first_rank=None if place is None else place.base_rank,
        worker_count=0 if place is None else place.local_world_size,
        role="" if place is None else place.role,
        since=iso_time(status.since_ns),
        absence=absence,
    )


def _absence(status: AgentStatus) -> AbsenceView | None:
    absence = status.absence
    if absence is None or status.end is not None:
        return None
    return AbsenceView(
        by=absence.by,
        reason=absence.reason,
        refused=absence.refused,
        since=iso_time(absence.since_ns),
        until=iso_time(absence.until_ns),
    )


def _store(status: AgentStatus) -> StoreView | None:
    if not (status.where or status.trouble):
        return None
    return StoreView(
        where=status.where or status.backend,
        reachable=False if status.trouble else None,
        unreachable_since=iso_time(status.trouble_since_ns),
        trouble=status.trouble,
    )


def _verdict(status: AgentStatus) -> VerdictView | None:
    end = status.end
    if end is None:
        return None
    outcome = "done" if end.outcome == "succeeded" else end.outcome
    return VerdictView(outcome=outcome, exit_code=end.exit_code, reason=end.reason, by=status.node_id)


def short_incident(found: FoundIncident) -> IncidentView:
    """Return the summary of an incident."""
    incident = found.incident
    first = incident.first
    decision = incident.decision
    return IncidentView(
        failure_class=incident.failure_class.value,
        summary=incident.summary,
        node_id=incident.node_id,
        rank=incident.elsewhere_rank if first is None else first.exit.global_rank,
        round_index=incident.round_index,
        decision="" if decision is None else decision_words(decision),
        at=incident.at,
        path=found.path,
    )


def decision_words(decision: Decision) -> str:
    """Return `restart in 2 s (intensity)`."""
    delay_s = decision.delay_s if isinstance(decision, Restart) else 0.0
    delay = f" in {duration_text(delay_s)}" if delay_s > 0 else ""
    return f"{type(decision).__name__.lower()}{delay}" + (f" ({decision.rule})" if decision.rule else "")


def iso_time(at_ns: int) -> str:
    """Return `2026-01-31T12:00:00.123Z`; empty for 0, an unknown time."""
    if not at_ns:
        return ""
    whole = datetime.datetime.fromtimestamp(at_ns // 10**9, tz=datetime.UTC)
    return f"{whole:%Y-%m-%dT%H:%M:%S}.{at_ns // 10**6 % 1000:03d}Z"
