"""A hang as a failure report: the first causes, their places, and the text of the incident."""

from collections.abc import Mapping
from typing import Final

from elastic_core.api import ErrorRecord, FailureClass, FailureReport, WorkerFault
from elastic_watch.hangs.hang_report import HangReport, RankReport, summary

EXCEPTION_TYPE: Final = "Hang"
MAX_RANKS: Final = 16
"""The limit of named ranks, first causes first: incidents pass through the store."""


def failure_report(report: HangReport) -> FailureReport:
    """Return the report as a failure for the agent."""
    text = summary(report)
    blamed_first = sorted(report.ranks, key=lambda each: (each.local_rank not in report.blamed, each.local_rank))
    hang = {
        "ranks": [_hung_rank(each, blamed=each.local_rank in report.blamed) for each in blamed_first[:MAX_RANKS]],
        "step": report.stall.top_step,
        "section": report.stall.section,
        "stacks": report.folder,
    }
    return FailureReport(
        summary=text,
        failure_class=FailureClass.HANG,
        workers=tuple(_fault(report.rank(local_rank), text) for local_rank in report.blamed),
        fields={"hang": hang},
    )


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
