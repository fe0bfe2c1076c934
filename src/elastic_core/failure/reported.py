"""Converts a failure that a hook reported into the evidence of the blamed workers."""

from collections.abc import Iterable, Mapping

import msgspec
from msgspec.structs import replace

from elastic_core.failure.incident import Incident, IncidentHang
from elastic_core.reports import FailureReport, WorkerFault
from elastic_core.types import FailedWorker, Failure, FailureClass, Origin, Round, WorkerExit


class Reported:
    """One report of a hook, as evidence of the workers that it blames.

    `pids` are by local rank. The time of the report is `now_ns`, in nanoseconds since the Unix epoch, and `now_s`,
    in monotonic seconds. `uptime_s` is how long the workers have run, in seconds.
    """

    def __init__(
        self,
        report: FailureReport,
        round_: Round,
        pids: Mapping[int, int],
        *,
        hook: str,
        now_ns: int,
        now_s: float,
        uptime_s: float,
    ) -> None:
        self._report = report
        self._hook = hook
        self._round = round_
        self._faults: dict[int, WorkerFault] = {fault.local_rank: fault for fault in report.workers}
        self._pids = pids
        self._now_ns, self._now_s = now_ns, now_s
        self.uptime_s = uptime_s
        self.blamed = tuple(rank for rank in self._faults if rank in pids)
        self.failure_class = report.failure_class

    @property
    def detect_s(self) -> float:
        """Seconds from the first blamed worker's last sign of life until the report."""
        return self._faults[self.blamed[0]].quiet_s if self.blamed else 0.0

    def without_workers(self) -> Failure:
        """Return the failure of this node for a report that blames none of its workers."""
        return Failure(
            failure_class=self._report.failure_class,
            summary=self._report.summary,
            node_id="",
            round_index=self._round.index,
            at_s=0.0,
            uptime_s=0.0,
            message=self._report.summary,
            retryable=self._report.retryable,
            reported_by=self._hook,
        )

    def described(self, incident: Incident) -> Incident:
        """Return an incident with the report's details, if the incident is about this report."""
        first, report = incident.first, self._report
        if incident.reported_by != self._hook if first is None else first.exit.local_rank not in self._faults:
            return incident
        return replace(
            incident,
            reported_by=self._hook,
            fields={name: value for name, value in report.fields.items() if name != "hang"},
            hang=_hang(report.fields.get("hang")) if incident.failure_class is FailureClass.HANG else None,
            retryable=incident.retryable and report.retryable,
        )

    def exit_of(self, local_rank: int) -> WorkerExit:
        """Return the exit of a worker that is still running, as of the time of the report."""
        return WorkerExit(
            local_rank=local_rank,
            global_rank=self._round.global_rank(local_rank),
            pid=self._pids[local_rank],
            code=0,
            at_s=self._now_s,
            at_ns=self._now_ns,
            runtime_s=self.uptime_s,
        )

    def worker(self, local_rank: int, exit: WorkerExit, log_paths: Iterable[str]) -> FailedWorker:
        """Return the part of a blamed worker; its failure time is its last sign of life."""
        fault = self._faults[local_rank]
        at_ns = self._now_ns - int(fault.quiet_s * 1e9)
        return FailedWorker(
            exit=exit,
            origin=Origin.INTRINSIC,
            failure_class=self._report.failure_class,
            summary=self._report.summary,
            at_ns=at_ns,
            error=None if fault.error is None else replace(fault.error, timestamp_ns=fault.error.timestamp_ns or at_ns),
            log_paths=tuple(log_paths),
        )


def _hang(field: object) -> IncidentHang | None:
    try:
        return None if field is None else msgspec.convert(field, IncidentHang, from_attributes=True)
    except msgspec.ValidationError:  # of another shape: the summary must suffice
        return None
