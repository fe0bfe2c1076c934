"""What a hang becomes in an incident."""

from collections.abc import Iterable

from elastic_core.agent.watch.hang_report import HangReport, RankReport, summary
from elastic_core.failure.incident import IncidentHang, IncidentHungRank
from elastic_core.types import ErrorRecord, FailedWorker, FailureClass, Origin, WorkerExit

EXCEPTION_TYPE = "Hang"
MAX_RANKS = 16
"""How many ranks are told of, those to blame first: incidents travel through the store."""


class Hang:
    """One hang, as the evidence of the workers to blame.

    Args:
        report: What was seen.
        now_ns: When, in nanoseconds since the Unix epoch.
        now_s: The same in monotonic seconds.
    """

    def __init__(self, report: HangReport, *, now_ns: int, now_s: float) -> None:
        """Take it."""
        self._now_s = now_s
        self.blamed = report.blamed
        self.for_good = report.for_good
        self._report = report
        self._now_ns = now_ns
        self._summary = summary(report)
        blamed_first = sorted(report.ranks, key=lambda each: (each.local_rank not in report.blamed, each.local_rank))
        self.record = IncidentHang(
            ranks=tuple(_hung_rank(each, blamed=each.local_rank in report.blamed) for each in blamed_first[:MAX_RANKS]),
            step=report.stall.top_step,
            section=report.stall.section,
            stacks=report.folder,
        )

    @property
    def detect_s(self) -> float:
        """How long it took from the last sign of life to now."""
        return self._report.rank(self.blamed[0]).quiet_s or 0.0

    def exit_of(self, local_rank: int) -> WorkerExit:
        """Return the end of a worker that has not ended yet, as if it were now."""
        rank = self._report.rank(local_rank)
        return WorkerExit(
            local_rank=local_rank,
            global_rank=rank.global_rank,
            pid=rank.pid,
            code=0,
            at_s=self._now_s,
            at_ns=self._now_ns,
            runtime_s=self._report.uptime_s,
        )

    def worker(self, local_rank: int, exit: WorkerExit, log_paths: Iterable[str]) -> FailedWorker:
        """Return the part of a worker that is to blame: it failed when it gave its last sign of life."""
        rank = self._report.rank(local_rank)
        at_ns = self._now_ns - int((rank.quiet_s or 0.0) * 1e9)
        return FailedWorker(
            exit=exit,
            origin=Origin.INTRINSIC,
            failure_class=FailureClass.HANG,
            summary=self._summary,
            at_ns=at_ns,
            # Without the source's lines: reading them may hang as the worker does, if its file server is what is gone.
            error=ErrorRecord(
                source=rank.source, type=EXCEPTION_TYPE, message=self._summary, timestamp_ns=at_ns, frames=rank.frames
            )
            if rank.frames
            else None,
            log_paths=tuple(log_paths),
        )


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
