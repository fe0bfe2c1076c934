"""A hang as a failure report: the first causes, their places, and the text of the incident."""

from collections.abc import Mapping
from typing import Final

import msgspec
from msgspec.structs import replace

from elastic_core.api import ErrorRecord, FailureClass, FailureReport, WorkerFault
from elastic_watch.collectives.evidence import Attribution, Cause
from elastic_watch.hangs.hang_report import HangReport, RankReport, summary
from elastic_watch.ras.findings import EVIDENCE

EXCEPTION_TYPE: Final = "Hang"
MAX_RANKS: Final = 16
"""The limit of named ranks, first causes first: incidents pass through the store."""


def failure_report(report: HangReport) -> FailureReport:
    """Return the report as a failure for the agent.

    If no rank of this node is blamed, the failure is that of the late ones: they are what this node knows.
    """
    text = summary(report)
    failed = report.blamed or tuple(each.local_rank for each in report.stall.late)
    return FailureReport(
        summary=text,
        failure_class=FailureClass.HANG,
        workers=tuple(_fault(report.rank(local_rank), text) for local_rank in failed),
        fields={"hang": hang_field(report)},
    )


def hang_field(report: HangReport) -> dict[str, object]:
    """Return the field `hang` of the incident."""
    named = report.global_ranks  # not those that may all wait for others
    first = sorted(report.ranks, key=lambda each: (each.global_rank not in named, each.local_rank))
    return {
        "ranks": [_hung_rank(each, blamed=each.global_rank in named) for each in first[:MAX_RANKS]],
        "step": report.stall.top_step,
        "section": report.stall.section,
        "stacks": report.folder,
        "attribution": _attribution(report),
        "evidence": list(evidence_kinds(report)),
        "recorder": report.recorder,
    }


def evidence_kinds(report: HangReport) -> tuple[str, ...]:
    """Return the kinds of evidence that were available, of all nodes if they responded."""
    ras = () if report.ras is None else (EVIDENCE,)
    if report.conclusion is not None:
        return (*report.conclusion.attribution.evidence, *ras)
    known = (
        ("stacks", any(each.stack.frames for each in report.ranks)),
        ("steps", any(each.step is not None for each in report.ranks)),
        ("heartbeats", report.stall.by_beats),
    )
    return (*(kind for kind, found in known if found), *ras)


def _attribution(report: HangReport) -> dict[str, object] | None:
    if report.conclusion is None and not report.ras:
        return None
    found = Attribution(cause=Cause.UNKNOWN) if report.conclusion is None else report.conclusion.attribution
    content: dict[str, object] = msgspec.to_builtins(replace(found, details=(*found.details, *(report.ras or ()))))
    return content


def _fault(rank: RankReport, text: str) -> WorkerFault:
    # Without the source's lines: reading them may hang as the worker does, if its file server is what is gone.
    stack = rank.stack
    stands = ErrorRecord(source=stack.source, type=EXCEPTION_TYPE, message=text, timestamp_ns=0, frames=stack.frames)
    error = stands if stack.frames else None
    return WorkerFault(local_rank=rank.local_rank, quiet_s=rank.quiet_s or 0.0, error=error)


def _hung_rank(rank: RankReport, *, blamed: bool) -> Mapping[str, object]:
    return {
        "global_rank": rank.global_rank,
        "blamed": blamed,
        "step": rank.step,
        "quiet_s": rank.quiet_s,
        "state": rank.state,
        "wait": rank.wait,
        "cpu_share": rank.cpu_share,
        "place": rank.stack.place,
        "stacks": rank.stack_file,
    }
