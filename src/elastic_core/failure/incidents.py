"""The incidents of a run: built from the evidence of failed workers, written to the run directory, and printed.

The modules for that are imported when needed; `warm` imports them in advance, while the workers run.
"""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from msgspec.structs import replace

from elastic_core.encoding import encode_json
from elastic_core.moments import FieldsPublished
from elastic_core.reports import NodeReport
from elastic_core.system.clock import SYSTEM_CLOCK
from elastic_core.types import FailedWorker, Failure, FailureClass, Ignore, Origin, Restart, Stop

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

    from elastic_core.failure.console import FailureConsole
    from elastic_core.failure.incident import Incident
    from elastic_core.failure.reported import Reported
    from elastic_core.failure.worker_evidence import Evidence, WorkerEvidence
    from elastic_core.logger import Logger
    from elastic_core.processes.output.disk import Disk, Lane
    from elastic_core.processes.spec import WorkerPaths
    from elastic_core.reports import FailureReport
    from elastic_core.types import Decision, Round, WorkerExit

WRITE_S = 2.0
"""How long writing an incident may take, in seconds; after that it is printed without its path."""


class IncidentWriter(Protocol):
    """Writes incidents to the run directory."""

    @property
    def path(self) -> Path:
        """The file of the last incident."""

    def write(self, incident: Incident, *, again: bool = False) -> str:
        """Write an incident and return its path; `again` replaces the last one by a more complete version."""


class Incidents:
    """Builds, writes and prints the incidents of one run. Threading: the supervisor's thread only.

    `node_id` is this node's id until a round assigns one. `script` is `None` if the workers run no script.
    """

    def __init__(
        self,
        run_id: str,
        *,
        files: IncidentWriter,
        disk: Disk,
        log: Logger,
        console: FailureConsole,
        node_id: str,
        script: str | None = None,
    ) -> None:
        self._run_id = run_id
        self._files = files
        self._disk = disk
        self._log = log
        self._console = console
        self._script = script
        self._lane: Lane | None = None
        self.writing = 0
        """The number of incidents that are being written; later steps wait for them."""
        self._evidence: WorkerEvidence | None = None
        self.cause = ""
        """A short cause of the run's end; empty if no failure was recorded."""
        self.began = True
        """False if the run ended with a rendezvous failure before any round formed."""
        self.final_failure: Failure | None = None
        """The failure that ended the run; `None` if none was recorded."""
        self._node_id = node_id
        self._host = os.uname().nodename
        self._clock = SYSTEM_CLOCK
        self._paths: dict[int, WorkerPaths] = {}
        self._restarts = 0
        self._examined: Incident | None = None
        self._decided_s = 0.0
        self._before_restart: Incident | None = None
        self._reported: Reported | None = None
        self._kept_count = 0
        self._hook_fields: dict[str, dict[str, object]] = {}
        """The fields that hooks published, by hook name."""
        self.failed_workers: tuple[FailedWorker, ...] = ()
        """The failed and stopped workers of the last examination."""

    def warm(self) -> None:
        """Import the modules for failures early, so that a restart waits neither for imports nor for a slow disk."""
        from elastic_core.failure import evidence, report, worker_evidence  # noqa: F401  # for later
        from elastic_core.system import colours  # noqa: F401  # as above

    def observe(self, what: object) -> None:
        """Keep the fields that a hook published."""
        if isinstance(what, FieldsPublished):
            self._hook_fields[what.hook] = dict(what.fields)

    def begin_round(self, paths: dict[int, WorkerPaths], restart_count: int) -> None:
        """Set the evidence files of the round's workers, and the number of earlier restarts."""
        self._paths = paths
        self._restarts = restart_count
        self._reported = None
        self._evidence = None
        self._kept_count = 0

    def note_kept(self, count: int) -> None:
        """Set how many of the round's workers have left it and run on. Called: before the end of the stop."""
        self._kept_count = count

    # --- evidence

    def _left(self) -> WorkerEvidence:
        """Return the evidence of the round's workers."""
        if self._evidence is None:
            from elastic_core.failure.worker_evidence import WorkerEvidence

            self._evidence = WorkerEvidence(self._paths, script=self._script)
        return self._evidence

    def read_ahead(self, exit: WorkerExit, done: Callable[[], None]) -> None:
        """Read the evidence of a worker that ended, and call `done`."""
        if exit.local_rank not in self._paths or (exit.code == 0 and exit.stop_signal is None):
            done()
        else:
            self._left().read_ahead(exit, done, disk=self._disk, log=self._log)

    def wait_s(self, others: Collection[int], *, stop_signals: Collection[int], peers: bool) -> float:
        """Return `classify.wait_s` of the last examination; `others` are local ranks without a known failure."""
        from elastic_core.failure.classify import wait_s

        begun_ns, known = self._left().begun_ns(others), self.failed_workers
        return wait_s(known, begun_ns=begun_ns, others=bool(others), peers=peers, stop_signals=stop_signals)

    def examine(self, round_: Round, exits: Iterable[WorkerExit], restart_count: int) -> Failure:
        """Read the evidence of the exits, and return the first cause."""
        evidence = self._left().gather(exits, self._reported)
        incident = self._incident(round_, evidence, restart_count, None)
        self._examined, self.failed_workers = incident, evidence.failed
        from elastic_core.failure.incident import to_failure

        return to_failure(incident, at_s=0.0, uptime_s=0.0)

    def reported(
        self, round_: Round, report: FailureReport, pids: Mapping[int, int], *, hook: str, uptime_s: float
    ) -> Failure:
        """Use a hook's report as the first cause, and return it as a failure without its time in the run."""
        from elastic_core.failure.reported import Reported

        now_ns, now_s = self._clock.wall_ns(), self._clock.monotonic_s()
        self._reported = Reported(report, round_, pids, hook=hook, now_ns=now_ns, now_s=now_s, uptime_s=uptime_s)
        if not self._reported.blamed:
            return self._reported.without_workers()
        failure = self.examine(round_, (), self._restarts)
        return replace(failure, node_id="", uptime_s=uptime_s)

    def report(self, round_: Round, exits: Iterable[WorkerExit], restart_count: int, *, ordered_s: float) -> NodeReport:
        """Return this node's report about the exits, for a decision about the whole run.

        `ordered_s` is when this node ordered the stop or received the order, in monotonic seconds.
        """
        from elastic_core.failure.classify import TIMED_SOURCES
        from elastic_core.failure.evidence import node_evidence
        from elastic_core.failure.incident import to_failure

        everyone = tuple(exits)
        self._node_id = round_.node_id or self._node_id
        evidence = self._left().gather(everyone, self._reported)
        failed = [worker for worker in evidence.failed if worker.origin is not Origin.STOPPED]
        seen = NodeReport(
            node_id=round_.node_id or self._node_id,
            failed_count=len(failed),
            stopped_count=len(evidence.failed) - len(failed),
            finished_count=evidence.finished_count,
            kept_count=self._kept_count,
        )
        incident = self._incident(round_, evidence, restart_count, None) if failed else self._of_this_node(round_)
        seen = replace(seen, evidence=node_evidence(self._host, evidence.failed, incident))
        if incident is None or incident.first is None:
            return seen
        self._examined, self.failed_workers = incident, evidence.failed
        first = incident.first
        return replace(
            seen,
            failure=to_failure(incident, at_s=0.0, uptime_s=0.0),
            age_s=ordered_s - first.exit.at_s + (first.exit.at_ns - first.at_ns) / 1e9,
            collateral=first.origin is Origin.COLLATERAL,
            timed=first.error is not None and first.error.source in TIMED_SOURCES,
        )

    def merge(self, reports: Sequence[NodeReport], restarts: int) -> tuple[Failure, str]:
        """Return the first cause of all nodes' reports, and the run's incident as text for every node."""
        from elastic_core.failure.evidence import run_incident

        failure, incident = run_incident(reports, run_id=self._run_id, at_ns=self._clock.wall_ns(), restarts=restarts)
        return failure, encode_json(replace(incident, decided_by=self._node_id)).decode()

    def _of_this_node(self, round_: Round) -> Incident | None:
        """Return the incident that a hook reported about this node and none of its workers; `None` if there is none."""
        if self._reported is None or self._reported.blamed:
            return None
        failure = replace(self._reported.without_workers(), node_id=self._node_id, node_count=round_.node_count)
        return self._launcher_incident(failure, None, ())

    def _incident(self, round_: Round, evidence: Evidence, restart_count: int, decision: Decision | None) -> Incident:
        from elastic_core.failure.incident import build_incident

        incident = build_incident(
            None,
            run_id=self._run_id,
            node_id=round_.node_id or self._node_id,
            host=self._host,
            round_index=round_.index,
            workers=evidence.failed,
            round_token=round_.token,
            restart_count=restart_count,
            finished_count=evidence.finished_count,
            node_count=round_.node_count,
            decision=decision,
        )
        return self._with_hooks(incident)

    def _with_hooks(self, incident: Incident) -> Incident:
        """Return an incident with the fields of hooks, and with the details of the hook that reported it."""
        incident = replace(incident, hooks=dict(self._hook_fields), kept_count=self._kept_count)
        return incident if self._reported is None else self._reported.described(incident)

    # --- decisions

    def decided(self, failure: Failure, decision: Decision, fallback_reason: str) -> None:
        """Print what happens next; `record` prints the end of the run, when all evidence is complete."""
        self._decided_s = self._clock.monotonic_s()
        self.print_fallback(fallback_reason)
        if isinstance(decision, Stop):
            return
        incident = self._examined_or_launcher(failure)
        if isinstance(decision, Ignore):
            rank, self._reported = failure.global_rank, None
            if failure.failure_class is not FailureClass.STRAGGLER:  # which its hook has printed
                self._log.notice(f"rank {rank} failed: {failure.summary}; the others go on without it")
            return
        self._restarts += 1
        self._print_restart(incident, decision)

    def print_fallback(self, reason: str) -> None:
        """Print why the built-in policy decided in place of the chosen one; print nothing if `reason` is empty."""
        if reason:
            self._log.notice(f"{reason}; the built-in policy 'intensity' decided in its place")

    def followed(self, failure: Failure, decision: Restart | Stop, evidence: str = "", *, restarts: int) -> None:
        """Print the run's decision, which replaces this node's own; `restarts` is the run's new count of restarts."""
        self._decided_s = self._clock.monotonic_s()
        self._restarts = restarts
        if isinstance(decision, Restart):
            known = _read_run(evidence)
            if known is not None:
                self._print_restart(known, decision)
                return
            elsewhere = failure.global_rank is not None
            self._print_restart(self._launcher_incident(failure, None, (), elsewhere=elsewhere), decision)

    def _print_restart(self, incident: Incident, decision: Restart) -> None:
        decided = replace(incident, decision=decision)
        self._console.restart(decided, self._restarts, node_id=self._node_id)

    def _examined_or_launcher(self, failure: Failure) -> Incident:
        if self._examined is not None and failure.local_rank is not None:
            return self._examined
        return self._launcher_incident(failure, None, ())

    def _launcher_incident(
        self,
        failure: Failure,
        decision: Decision | None,
        workers: Iterable[FailedWorker],
        *,
        elsewhere: bool = False,
    ) -> Incident:
        from elastic_core.failure.incident import build_incident

        incident = build_incident(
            failure,
            run_id=self._run_id,
            host=failure.node_id if elsewhere else self._host,
            at_ns=self._clock.wall_ns(),
            workers=workers,
            restart_count=self._restarts,
            decision=decision,
        )
        if elsewhere:
            return replace(incident, source="worker", elsewhere_rank=failure.global_rank)
        return self._with_hooks(incident)

    # --- the record

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

        `evidence` is the incident of all nodes, if one node decided for the run. `stop_s` is how long the stop took on
        this node. If no round was formed, only one line is printed and no file is written.
        """
        self.final_failure = failure if isinstance(decision, Stop) else None
        if round_ is None and failure.failure_class is FailureClass.RENDEZVOUS:
            self._log.notice(f"error: {failure.summary}")
            self.began = False
            return failure.exit_code
        known = _read_run(evidence)
        if known is not None:
            phases = replace(known.phases, stop_s=stop_s)
            incident = replace(known, decision=decision, phases=phases)
        else:
            incident = replace(self._final(round_, exits, failure, decision), progress=failure.progress)
        self._before_restart = incident if isinstance(decision, Restart) else None
        if isinstance(decision, Stop) and decision.outcome == "failed":
            from elastic_core.failure.report import headline

            self.cause = headline(incident)
            end = partial(self._console.end, incident, node_id=self._node_id, host=self._host)
            self._write(incident, then=end)
            return incident.exit_code
        self._write(incident)
        if isinstance(decision, Stop):
            self._log.notice(f"ending the run as done: {decision.reason}")
        return incident.exit_code

    def restarted(self, *, rendezvous_s: float, start_s: float) -> None:
        """Write the incident of a restart again, with the duration of rendezvous and start, in seconds."""
        incident = self._before_restart
        if incident is None:
            return
        self._before_restart = None
        phases = replace(incident.phases, rendezvous_s=rendezvous_s, start_s=start_s)
        self._write(replace(incident, phases=phases), again=True)

    def _final(
        self, round_: Round | None, exits: Iterable[WorkerExit], failure: Failure, decision: Decision
    ) -> Incident:
        restarts = self._restarts - isinstance(decision, Restart)
        evidence = self._left().gather(exits, self._reported)
        by_themselves = any(worker.origin is not Origin.STOPPED for worker in evidence.failed)
        here = _is_here(failure, round_)
        if not here or round_ is None or not by_themselves:
            elsewhere = not here and failure.global_rank is not None
            return self._launcher_incident(failure, decision, evidence.failed, elsewhere=elsewhere)
        incident = self._incident(round_, evidence, restarts, decision)
        first = incident.first
        if first is None:
            return incident
        from elastic_core.failure.incident import IncidentPhases

        phases = IncidentPhases(
            detect_s=max(0.0, (first.exit.at_ns - first.at_ns) / 1e9)
            if self._reported is None
            else self._reported.detect_s,
            stop_s=self._clock.monotonic_s() - self._decided_s,
        )
        return replace(incident, phases=phases)

    def _write(
        self, incident: Incident, *, again: bool = False, then: Callable[[str], None] = lambda path: None
    ) -> None:
        """Write an incident, and call `then` with its path, which is empty if it could not be written."""
        path = str(self._files.path)

        def work() -> str:
            return self._files.write(incident, again=again)

        def have(written: str | None, error: Exception | None) -> None:
            self.writing -= 1
            if written is not None:
                then(written)
            elif isinstance(error, OSError):
                self._log.notice(f"the incident could not be written to {path!r}: {error.strerror}")
                then("")
            else:
                raise error or AssertionError

        self.writing += 1
        self._lane = self._lane or self._disk.lane(path)
        self._disk.run(path, work, have, lane=self._lane, within_s=WRITE_S)


def _read_run(evidence: str) -> Incident | None:
    from elastic_core.failure.evidence import read_run

    return read_run(evidence)


def _is_here(failure: Failure, round_: Round | None) -> bool:
    """Return whether this is the failure of a worker of this node."""
    if failure.local_rank is None or failure.global_rank is None or round_ is None:
        return False
    here = range(round_.base_rank, round_.base_rank + round_.local_world_size)
    return failure.round_index == round_.index and failure.global_rank in here
