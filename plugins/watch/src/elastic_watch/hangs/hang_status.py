"""A hang in the status of the run, in metrics, and in the feed of events."""

from typing import Final

from elastic_core.api import RunHandle
from elastic_core.api.tools import rank_ranges
from elastic_watch.hangs.hang_evidence import evidence_kinds
from elastic_watch.hangs.hang_report import HangReport, summary
from elastic_watch.published import PublishedFields

PART: Final = "hang"
EVENT: Final = "hang"
GROUP: Final = "elastic"
MAX_SUSPECTS: Final = 16
"""The limit of ranks with a metric of their own at a time."""


class HangStatus:
    """Publishes stalls and hangs while they last.

    Args:
        run: The run's handle.
        fields: The hook's fields.

    Threading: the hooks' thread.
    """

    def __init__(self, run: RunHandle, fields: PublishedFields) -> None:
        self._run = run
        self._fields = fields
        self._suspects: tuple[int, ...] = ()
        self._shown = False
        self._counts: dict[str, int] = {}

    def suspect(self, report: HangReport) -> None:
        """Publish a stall that has lasted for half of the limit."""
        self._publish(report, "suspected")

    def hung(self, report: HangReport, *, counts: bool) -> None:
        """Publish a hang. `counts`: it is the first report of this hang, by the node that reports it."""
        self._publish(report, "hung")
        if counts:
            cause = cause_of(report)
            self._counts[cause] = self._counts.get(cause, 0) + 1
            self._metric(f'elastic_hangs_total{{cause="{cause.replace(" ", "_")}"}}', self._counts[cause])

    def over(self) -> None:
        """Remove the fields and the suspects: the workers make progress again, or others were started."""
        if self._shown:
            self._shown = False
            self._fields.put(PART, {})
            self._run.record(EVENT, {"state": "over"})
        self._suspect(())

    def stopped(self) -> None:
        """Remove the suspects, as the workers were stopped. The fields stay until others are started."""
        self._suspect(())

    def _publish(self, report: HangReport, state: str) -> None:
        ranks, found = report.global_ranks, report.attribution
        cause, text = cause_of(report), summary(report)
        fields: dict[str, str | int | float | bool | None] = {
            "hang_state": state,
            "hang_cause": cause,
            "hang_ranks": rank_ranges(ranks),
        }
        if found is not None:
            fields["hang_nodes"] = ", ".join(dict.fromkeys(node for node in found.nodes if node))
            fields["hang_group"] = found.group
            if found.operation is not None:
                fields["hang_operation"] = f"{found.operation.name} #{found.operation.seq}"
            fields["hang_waiting"] = found.waiting_count
        self._shown = True
        self._fields.put(PART, {name: value for name, value in fields.items() if value != ""})
        self._suspect(ranks[:MAX_SUSPECTS])
        event = {
            "state": state,
            "cause": cause,
            "ranks": list(ranks),
            "nodes": [] if found is None else list(found.nodes),
            "summary": text,
            "evidence": list(evidence_kinds(report)),
            "stacks": report.folder,
        }
        self._run.record(EVENT, event)

    def _suspect(self, ranks: tuple[int, ...]) -> None:
        for rank in self._suspects:
            if rank not in ranks:
                self._metric(f'elastic_hang_suspect{{rank="{rank}"}}', 0)
        for rank in ranks:
            if rank not in self._suspects:
                self._metric(f'elastic_hang_suspect{{rank="{rank}"}}', 1)
        self._suspects = ranks

    def _metric(self, name: str, value: int) -> None:
        self._run.record("metric", {"group": GROUP, "name": name, "value": value})


def cause_of(report: HangReport) -> str:
    """Return the kind of cause: of the collectives, or by which evidence ranks are suspected, or `unknown`."""
    if report.attribution is not None:
        return report.attribution.cause.value
    if report.disputed:
        return "unknown"
    if report.is_behind or report.blames_others:
        return "behind"
    late = {each.local_rank for each in report.stall.late}
    return "outside" if set(report.blamed) < late else "unknown"
