"""Incidents for `elastic incidents`, from run directories or from a store."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

import msgspec
from msgspec.structs import replace

from elastic_core.api import ConfigError, FailureClass, Record, Restart
from elastic_core.api.commands import FoundIncident, Incident, decode_incident, find_incidents
from elastic_ops.run_directories import FoundRun
from elastic_ops.stored_run import StoredFailure

SCHEMA_VERSION: Final = 2
SAME_LOSS_S: Final = 120
"""How far apart nodes record the same lost node, in seconds: later records are of another run with the same id."""


class ListedIncident(Record, frozen=True, kw_only=True):
    """One incident, with its number in the list, from 1. `path` is empty if it is from a store."""

    number: int
    incident: Incident
    path: str = ""


class IncidentDocument(Record, frozen=True, kw_only=True):
    """The output of `elastic incidents --json`."""

    schema_version: int = SCHEMA_VERSION
    incidents: tuple[ListedIncident, ...]


def incidents_of_directories(runs: Sequence[FoundRun]) -> list[ListedIncident]:
    """Return all incidents in these run directories, oldest first.

    Raises:
        ConfigError: there is only one directory, and its incidents have another schema version.
    """
    distinct: dict[tuple[str, int, int, str], FoundIncident] = {}
    found: list[FoundIncident] = []
    for run in runs:
        try:
            found += find_incidents(Path(run.path))
        except ConfigError:  # of another version: the list has those of the other directories
            if len(runs) == 1:
                raise
    found.sort(key=lambda one: one.incident.at_ns)
    seen: dict[tuple[str, int, str], int] = {}
    for one in found:
        incident = one.incident
        # Agents on one machine may have written the same incident of the whole run. Each writes an incident of a lost
        # node with its own time.
        at_ns, key = incident.at_ns, (incident.run_id, incident.round_token, incident.summary)
        if incident.failure_class is FailureClass.NODE_LOST:
            if at_ns - seen.get(key, at_ns) < SAME_LOSS_S * 10**9:
                at_ns = seen.get(key, at_ns)
            seen[key] = at_ns
        distinct.setdefault((incident.run_id, at_ns, incident.round_index, incident.summary), one)
    ordered = sorted(distinct.values(), key=lambda one: one.incident.at_ns)
    return [
        ListedIncident(number=number, incident=one.incident, path=one.path)
        for number, one in enumerate(ordered, start=1)
    ]


def incidents_of_store(run_id: str, history: Iterable[StoredFailure], evidence: str = "") -> list[ListedIncident]:
    """Return a run's failures in a store, as incidents: with their first cause only, and without the time of day.

    `evidence` may have the whole last incident, as JSON.
    """
    incidents = [_incident(run_id, failure, restarts) for failure, restarts in _counted(history)]
    if incidents:
        incidents[-1] = _with_evidence(incidents[-1], evidence)
    return [ListedIncident(number=number, incident=incident) for number, incident in enumerate(incidents, start=1)]


def _with_evidence(known: Incident, evidence: str) -> Incident:
    try:
        full = decode_incident(evidence, "the store")
    except (msgspec.DecodeError, ConfigError):  # there is none, or it is another version's
        return known
    if (full.round_index, full.summary) != (known.round_index, known.summary):
        return known  # it is about an earlier one
    return replace(full, decision=full.decision or known.decision)


def _counted(history: Iterable[StoredFailure]) -> Iterable[tuple[StoredFailure, int]]:
    restarts = None
    for failure in history:
        cost = isinstance(failure.decision, Restart)
        if restarts is None:  # what was before the first that is kept is in its count
            restarts = max(0, failure.spent - cost)
        yield failure, restarts
        restarts += cost


def _incident(run_id: str, failure: StoredFailure, restarts: int) -> Incident:
    return Incident(
        run_id=run_id,
        node_id=failure.node_id,
        host=failure.node_id,
        round_index=failure.round_index,
        restart_count=restarts,
        at_ns=0,
        at=f"{failure.at_s:.1f} s into the run",
        source="launcher" if failure.global_rank is None else "worker",
        failure_class=_class(failure.failure_class),
        summary=failure.summary,
        exit_code=failure.exit_code,
        elsewhere_rank=failure.global_rank,
        decision=failure.decision,
    )


def _class(text: str) -> FailureClass:
    try:
        return FailureClass(text)
    except ValueError:  # of a later version
        return FailureClass.EXIT
