"""The voice of a run. What it takes to speak of failures is loaded once the workers run."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from elastic_core.options.settings import RunSettings
from elastic_core.reports import FailureReport
from elastic_core.types import (
    Decision,
    FailedWorker,
    Failure,
    FailureClass,
    NodeReport,
    Restart,
    Round,
    Stop,
    WorkerExit,
)
from elastic_core.workers.spec import WorkerPaths

if TYPE_CHECKING:
    from elastic_core.agent.watch.hang_report import HangReport
    from elastic_core.launcher.incidents import IncidentReporter
    from elastic_core.workers.output.disk import Disk


class RunReporter:
    """Prints the launcher's own lines, and hands failures to an `IncidentReporter`.

    Threading: the supervisor's thread only.
    """

    def __init__(
        self, settings: RunSettings, *, run_dir: Path, node_id: str, line: Callable[[*tuple[str, ...]], None]
    ) -> None:
        """Write incidents below `run_dir`; `line` prints lines that nothing comes between."""
        self._settings = settings
        self._run_dir = run_dir
        self._node_id = node_id
        self._line = line
        self._made: IncidentReporter | None = None
        self.restore: Callable[[], bool] = lambda: False
        """Makes the run directory again if it has gone, and returns whether it had."""
        self.disk: Disk | None = None
        """Where files are written and read; None: here and now."""
        self.began = True
        self.final_failure: Failure | None = None
        """What ended the run; None: nothing that was recorded."""
        self._paths: dict[int, WorkerPaths] = {}
        self._restarts = 0
        self.hook_fields: dict[str, dict[str, object]] = {}
        """What hooks publish, by their names: in the incidents to come."""

    def move(self, run_dir: Path) -> None:
        """Take another run directory: the one before has gone."""
        self._run_dir = run_dir
        if self._made is not None:
            self._made.move(run_dir)

    @property
    def last_incident(self) -> str:
        """The path of the last incident's file; empty: there is none."""
        return "" if self._made is None else self._made.last_path

    @property
    def writing(self) -> bool:
        """Whether an incident is being written, and what follows it waits."""
        return self._made is not None and self._made.writing > 0

    def notice(self, text: str) -> None:
        """Print one line of the launcher's own."""
        self._line(f"elastic: {text}")

    def warm(self) -> None:
        """Load what a failure will need, while all is well: then a restart doesn't wait for it, nor for a sick disk."""
        self._incidents()

    def _incidents(self) -> "IncidentReporter":
        if self._made is None:
            from elastic_core.launcher.incidents import IncidentReporter

            self._made = IncidentReporter(self._settings, run_dir=self._run_dir, node_id=self._node_id, line=self._line)
            self._made.restore, self._made.disk = self.restore, self.disk
            self._made.hook_fields = self.hook_fields
            self._made.begin_round(self._paths, self._restarts)
        return self._made

    def begin_round(self, paths: dict[int, WorkerPaths], restart_count: int) -> None:
        """Take the files that the round's workers will leave, and how often the run was restarted before."""
        self._paths, self._restarts = paths, restart_count
        if self._made is not None:
            self._made.begin_round(paths, restart_count)

    def read_ahead(self, exit: WorkerExit, done: Callable[[], None]) -> None:
        """Read what a worker that ended has left, and call `done`: it is asked for on the loop."""
        if exit.code == 0 and exit.stop_signal is None:
            done()
        else:
            self._incidents().read_ahead(exit, done)

    def examine(self, round_: Round, exits: Iterable[WorkerExit], restart_count: int) -> Failure:
        """Read what the exits left, and return the first cause."""
        return self._incidents().examine(round_, exits, restart_count)

    def reported(self, round_: Round, report: FailureReport, pids: Mapping[int, int], *, uptime_s: float) -> Failure:
        """Take a report for the first cause, and return it as a failure that is not yet placed in time."""
        return self._incidents().reported(round_, report, pids, uptime_s=uptime_s)

    def hung(self, round_: Round, report: "HangReport") -> Failure:
        """Take a hang for the first cause, and return it as a failure that is not yet placed in time."""
        from elastic_core.agent.watch.hang_evidence import failure_report

        pids = {rank.local_rank: rank.pid for rank in report.ranks}
        return self.reported(round_, failure_report(report), pids, uptime_s=report.uptime_s)

    def report(self, round_: Round, exits: Iterable[WorkerExit], restart_count: int, *, ordered_s: float) -> NodeReport:
        """Return what the exits left, for a decision about the whole run."""
        return self._incidents().report(round_, exits, restart_count, ordered_s=ordered_s)

    def merge(self, reports: Sequence[NodeReport], restarts: int) -> tuple[Failure, str]:
        """Return the first cause among those of all nodes, and what is known of it, as text for every node."""
        return self._incidents().merge(reports, restarts)

    def failed_workers(self) -> tuple[FailedWorker, ...]:
        """Return what the last examination found."""
        return self._incidents().failed_workers

    def decided(self, failure: Failure, decision: Decision, fallback_reason: str) -> None:
        """Say what happens next; the end of the run is told by `record`, when all evidence is in."""
        self._incidents().decided(failure, decision, fallback_reason)

    def followed(self, failure: Failure, decision: Restart | Stop, evidence: str = "") -> None:
        """Say what was decided for the whole run, in place of what was decided here."""
        self._incidents().followed(failure, decision, evidence)

    def restarted(self, *, rendezvous_s: float, start_s: float) -> None:
        """Add to the last incident what the restart after it took, in seconds."""
        self._incidents().restarted(rendezvous_s=rendezvous_s, start_s=start_s)

    def record(
        self,
        round_: Round | None,
        exits: Iterable[WorkerExit],
        failure: Failure,
        decision: Decision,
        *,
        evidence: str = "",
        stop_s: float | None = None,
    ) -> int:
        """Write the incident with all evidence, print it if it ends the run, and return the run's exit code.

        A run that never began (no round was formed) is told in one line, and leaves nothing to keep.
        """
        self.final_failure = failure if isinstance(decision, Stop) else None
        if round_ is None and failure.failure_class is FailureClass.RENDEZVOUS:
            self.notice(f"error: {failure.summary}")
            self.began = False
            return failure.exit_code
        return self._incidents().record(round_, exits, failure, decision, evidence=evidence, stop_s=stop_s)
