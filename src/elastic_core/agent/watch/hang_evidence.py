"""A hang as the report of a failure: the workers to blame, where they stand, and what the incident says of it."""

from collections.abc import Mapping
from typing import Final, Protocol

from elastic_core.agent.watch.hang_report import HangReport, RankReport, summary
from elastic_core.failure.incident import IncidentHang, IncidentHungRank
from elastic_core.reports import FailureReport, WorkerFault
from elastic_core.types import ErrorRecord, Failure, FailureClass, Round

EXCEPTION_TYPE: Final = "Hang"
MAX_RANKS: Final = 16
"""How many ranks are named, those to blame first: incidents travel through the store."""


class Reporter(Protocol):
    """The reporter of the run."""

    def reported(self, round_: Round, report: FailureReport, pids: Mapping[int, int], *, uptime_s: float) -> Failure:
        """Take a report for the first cause."""
        ...


def report_hang(reporter: Reporter, round_: Round, report: HangReport) -> Failure:
    """Report a hang, and return it as a failure that is not yet placed in time."""
    pids = {rank.local_rank: rank.pid for rank in report.ranks}
    return reporter.reported(round_, failure_report(report), pids, uptime_s=report.uptime_s)


def failure_report(report: HangReport) -> FailureReport:
    """Return what the agent takes for a failure."""
    text = summary(report)
    blamed_first = sorted(report.ranks, key=lambda each: (each.local_rank not in report.blamed, each.local_rank))
    hang = IncidentHang(
        ranks=tuple(_hung_rank(each, blamed=each.local_rank in report.blamed) for each in blamed_first[:MAX_RANKS]),
        step=report.stall.top_step,
        section=report.stall.section,
        stacks=report.folder,
    )
    return FailureReport(
        summary=text,
        failure_class=FailureClass.HANG,
        workers=tuple(_fault(report.rank(local_rank), text) for local_rank in report.blamed),
        retryable=not report.for_good,
        fields={"hang": hang},
    )


def _fault(rank: RankReport, text: str) -> WorkerFault:
    # Without the source's lines: reading them may hang as the worker does, if its file server is what is gone.
    stands = ErrorRecord(source=rank.source, type=EXCEPTION_TYPE, message=text, timestamp_ns=0, frames=rank.frames)
    error = stands if rank.frames else None
    return WorkerFault(local_rank=rank.local_rank, quiet_s=rank.quiet_s or 0.0, error=error)


def _hung_rank(rank: RankReport, *, blamed: bool) -> IncidentHungRank:
    return IncidentHungRank(
        global_rank=rank.global_rank,
        blamed=blamed,
        step=rank.step,
        quiet_s=rank.quiet_s,
        state=rank.state,
        wait=rank.wait,
        cpu_share=rank.cpu_share,
        place=rank.place,
        stacks=rank.stacks.rpartition("/")[2],
    )
