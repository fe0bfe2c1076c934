"""The evidence of a failure that nodes exchange, and the incident of the whole run with the first cause of all. Pure.

Clocks of different hosts are never compared. Each node reports how long before the order to stop its first failure
happened. All nodes get that order at the same moment, except for the network delay: tenths of a second on a busy
machine.
"""

from collections.abc import Iterable, Sequence
from typing import TypeVar

import msgspec
from msgspec.structs import replace

from elastic_core.encoding import decode_json, encode_json, joined_spans
from elastic_core.failure.classify import ENDING_NS, LOST_PEER_S, rank_causes
from elastic_core.failure.incident import (
    MAX_CAUSE_CHARS,
    Incident,
    IncidentAbsence,
    IncidentNode,
    IncidentPhases,
    bounded,
    build_incident,
)
from elastic_core.reports import Absence, NodeReport
from elastic_core.types import FailedWorker, Failure, FailureClass, Origin, Record

CALLSTACK_CHARS = 8_192
MESSAGE_CHARS = 2_048
FRAMES = 16
LINE_CHARS = 200
NODE_WORKERS = 8
"""How many workers after the first a node's evidence has in full; it has only the ranks of further workers."""
RUN_WORKERS = 16
RUN_NODES = 32
FEW_NODES = 4
HOOKS_BYTES = 4_096
"""The most bytes of hooks' fields in a node's evidence, including a report's. Longer fields are left out."""
NODE_BYTES = 15_000
RUN_BYTES = 24_000
_T = TypeVar("_T")
_NOTHING_FAILED = "the run was stopped, and no node has said why"


class NodeEvidence(Record, frozen=True, kw_only=True, omit_defaults=True):
    """The evidence of one node; `incident` is `None` if no worker of it failed by itself, `stopped_ranks` are spans."""

    host: str
    incident: Incident | None = None
    stopped: tuple[FailedWorker, ...] = ()
    stopped_ranks: tuple[tuple[int, int], ...] = ()


def node_evidence(host: str, workers: Iterable[FailedWorker], incident: Incident | None) -> str:
    """Return a node's evidence as text; `workers` are those that failed or were stopped."""
    stopped = [worker for worker in rank_causes(workers) if worker.origin is Origin.STOPPED]
    small = None if incident is None else _in_small(incident)
    evidence = NodeEvidence(
        host=host,
        incident=small,
        stopped=tuple(bounded(worker) for worker in stopped[:NODE_WORKERS]),
        stopped_ranks=joined_spans((worker.exit.global_rank,) * 2 for worker in stopped),
    )
    if len(encode_json(evidence)) > NODE_BYTES:
        # Paths, summaries or lines are too long: keep the first failure.
        evidence = replace(evidence, stopped=(), incident=None)
        room = NODE_BYTES - len(encode_json(evidence))
        evidence = replace(evidence, incident=None if small is None else _bounded(small, room))
    return encode_json(evidence).decode()


def first_cause(reports: Iterable[NodeReport]) -> NodeReport | None:
    """Return the report of the node that failed first; `None` if no worker of any node failed by itself.

    A failure that only reports a lost peer ranks behind each other failure that is at most 0.5 s later (100 ms within a
    node, which has one clock). If the other failure is known only from a worker's exit, the limit is 1 s.
    """
    failed = sorted((report for report in reports if report.failure is not None), key=_order)
    if not failed:
        return None
    first = failed[0]
    oldest_s = first.age_s - ENDING_NS / 1e9
    slow = (report for report in failed if not report.collateral and not report.timed and report.age_s >= oldest_s)
    return next(slow, first) if first.collateral else first


def _order(report: NodeReport) -> tuple[float, bool, int, str]:
    allowance_s = LOST_PEER_S if report.collateral else 0.0
    rank = report.failure.global_rank if report.failure is not None else None
    return allowance_s - report.age_s, report.collateral, -1 if rank is None else rank, report.node_id


def run_incident(reports: Sequence[NodeReport], *, run_id: str, at_ns: int, restarts: int) -> tuple[Failure, Incident]:
    """Return the failure for the policy, and the incident of the whole run, without a decision.

    The reports may be in any order. `at_ns` is the time of the incident if no worker caused it, since the Unix epoch.
    `restarts` is the number of earlier failure restarts.
    """
    absent = [report for report in reports if report.absence is not None]
    reports = [report for report in reports if report.absence is None]
    first = first_cause(reports)
    if first is None or first.failure is None:
        failure = Failure(
            failure_class=FailureClass.NODE_LOST, summary=_NOTHING_FAILED, node_id="", round_index=-1, at_s=0.0,
            uptime_s=0.0, message=_NOTHING_FAILED, node_count=len(reports) or None,
        )  # fmt: skip
        first = NodeReport(node_id="", failure=failure)
    else:
        failure = first.failure
    steps = [report.progress for report in reports if report.progress is not None]
    stopped, kept = sum(report.stopped_count for report in reports), sum(report.kept_count for report in reports)
    progress = max(steps, default=failure.progress)
    failure = replace(failure, progress=progress, alive_count=stopped + kept, kept_count=kept)
    evidence = {report.node_id: _read(report.evidence, NodeEvidence) for report in reports}
    nodes = [known for known in evidence.values() if known is not None]
    mine = evidence.get(first.node_id)
    incident = mine.incident if mine is not None else None
    if incident is None:
        host = mine.host if mine is not None else first.node_id
        incident = build_incident(failure, run_id=run_id, host=host, at_ns=at_ns, restart_count=restarts)
    failed = sum(report.failed_count for report in reports) - (incident.first is not None)
    merged = replace(
        incident,
        secondary=(*incident.secondary, *_others_failed(first, reports, evidence))[:RUN_WORKERS],
        stopped=tuple(worker for known in nodes for worker in known.stopped)[:RUN_WORKERS],
        finished_count=sum(report.finished_count for report in reports),
        kept_count=kept,
        nodes=tuple(_node(report, evidence[report.node_id]) for report in _listed(first, reports)),
        absent=tuple(_absence(report.node_id, report.absence, at_ns) for report in absent[:RUN_NODES]),
        report_count=len(reports),
        progress=failure.progress,
        failed_count=max(0, failed),
        stopped_count=stopped,
        stopped_ranks=joined_spans(span for known in nodes for span in known.stopped_ranks)[:64],
        phases=IncidentPhases(detect_s=max(0.0, first.age_s)),
    )
    return failure, _bounded(merged, RUN_BYTES)


def read_run(text: str) -> Incident | None:
    """Return an incident that `run_incident` made on another node; `None` if there is none or it can't be parsed."""
    return _read(text, Incident)


# --- parts


def _read(text: str, kind: type[_T]) -> _T | None:
    try:
        return decode_json(text, kind) if text else None
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None


def _listed(first: NodeReport, reports: Sequence[NodeReport]) -> Sequence[NodeReport]:
    """Return the reports of the nodes that the incident names; the first failed node is always among them."""
    if first in reports[FEW_NODES:]:
        reports = (first, *(report for report in reports if report is not first))
    return reports[:RUN_NODES]


def _node(report: NodeReport, known: NodeEvidence | None) -> IncidentNode:
    return IncidentNode(
        node_id=report.node_id,
        host=known.host if known is not None else "",
        failed_count=report.failed_count,
        stopped_count=report.stopped_count,
        finished_count=report.finished_count,
        age_s=report.age_s if report.failure is not None else None,
        complete=report.final,
    )


def _absence(node_id: str, absence: Absence | None, at_ns: int) -> IncidentAbsence:
    assert absence is not None
    return IncidentAbsence(
        node_id=node_id,
        by=absence.by,
        reason=absence.reason[:LINE_CHARS],
        refused=absence.refused,
        until_ns=0 if absence.for_s is None else at_ns + int(absence.for_s * 1e9),
    )


def _others_failed(
    first: NodeReport, reports: Sequence[NodeReport], evidence: dict[str, NodeEvidence | None]
) -> list[FailedWorker]:
    """Return the failed workers of the other nodes, in the order of the nodes' failures."""
    found: list[FailedWorker] = []
    others = [report for report in reports if report.failure is not None and report.node_id != first.node_id]
    for report in sorted(others, key=_order):
        known = evidence[report.node_id]
        incident = known.incident if known is not None else None
        if incident is not None:
            workers = (incident.first, *incident.secondary)
            found += [_brief(worker) for worker in workers if worker is not None]
    return found


def _brief(worker: FailedWorker) -> FailedWorker:
    """Return the worker without its traceback."""
    error = worker.error
    if error is None:
        return worker
    error = replace(error, message=error.message[:LINE_CHARS], frames=(), callstack="", causes=(), notes=())
    return replace(worker, error=error)


def _bare(worker: FailedWorker) -> FailedWorker:
    return replace(worker, error=None, log_paths=())


def _in_small(incident: Incident) -> Incident:
    small = _cut(incident, CALLSTACK_CHARS)
    secondary = tuple(map(_brief, incident.secondary[:NODE_WORKERS]))
    fields = incident.fields if len(msgspec.json.encode(incident.fields)) <= HOOKS_BYTES else {}
    hooks = incident.hooks if len(msgspec.json.encode((fields, incident.hooks))) <= HOOKS_BYTES else {}
    return replace(small, secondary=secondary, stopped=(), fields=fields, hooks=hooks)


def _cut(incident: Incident, callstack_chars: int, frame_count: int = FRAMES) -> Incident:
    first = incident.first
    if first is None or first.error is None:
        return incident
    error = first.error
    frames = error.frames
    if len(frames) > frame_count:  # keep the outermost frames, and those next to the raise
        outer = frame_count // 4
        frames = (*frames[:outer], *frames[len(frames) - (frame_count - outer) :])
    error = replace(
        error,
        message=error.message[:MESSAGE_CHARS],
        frames=tuple((file, line, function, text[:LINE_CHARS]) for file, line, function, text in frames),
        callstack=error.callstack[-callstack_chars:],
        causes=tuple(
            (relation, kind, message[:MAX_CAUSE_CHARS], place) for relation, kind, message, place in error.causes
        ),
        notes=tuple(note[:MAX_CAUSE_CHARS] for note in error.notes),
    )
    return replace(incident, first=replace(first, error=error))


def _bounded(incident: Incident, most_bytes: int) -> Incident:
    """Return an incident of at most `most_bytes`; the least important parts are left out first."""
    for shorten in (_shortened, _barest):
        if len(encode_json(incident)) <= most_bytes:
            break
        incident = shorten(incident)
    return incident


def _shortened(incident: Incident) -> Incident:
    """Return the incident with a quarter of the first traceback, and with fewer workers and nodes."""
    return replace(
        _cut(incident, CALLSTACK_CHARS // 4, FRAMES // 4),
        secondary=tuple(map(_bare, incident.secondary[:NODE_WORKERS])),
        stopped=(),
        nodes=incident.nodes[: RUN_NODES // 2],
        absent=incident.absent[:FEW_NODES],
    )


def _barest(incident: Incident) -> Incident:
    """Return the incident without texts of unlimited length."""
    return replace(
        incident,
        first=incident.first and _bare(incident.first),
        secondary=(),
        nodes=incident.nodes[:FEW_NODES],
        fields={},
        hooks={},
        summary=incident.summary[:LINE_CHARS],
    )
