"""Ledgers and incidents of runs that tests make up: each call of `Node` adds what an agent would record."""

from dataclasses import dataclass, field

from elastic_core.api import (
    Decision,
    ErrorRecord,
    FailedWorker,
    FailureClass,
    Origin,
    Restart,
    WorkerExit,
)
from elastic_core.api.commands import FoundIncident, Incident
from elastic_report.combining.evidence import AgentEvidence
from elastic_report.ledger.document import (
    Alive,
    Begin,
    End,
    Ledger,
    Line,
    Note,
    RoundLine,
    RoundOver,
    Span,
    WorkerLine,
)
from elastic_report.ledger.states import LedgerState

EPOCH_NS = 1_767_225_600 * 10**9
"""2026-01-01 00:00:00 UTC, when made-up runs begin."""
S = LedgerState


@dataclass
class Node:
    """One agent. `ahead_s`: how much its wall clock is ahead; `at_s` is the true time since `EPOCH_NS`."""

    node_id: str
    started_s: float = 0.0
    ahead_s: float = 0.0
    uptime_s: float = 1000.0
    """Its monotonic clock at the true time 0."""
    run_id: str = "bert-7"
    queued_s: float | None = None
    host: str = ""
    boot_id: str = ""
    options: tuple[tuple[str, str, str], ...] = ()
    versions: dict[str, str] = field(default_factory=dict)
    machine: dict[str, str] = field(default_factory=dict)
    incidents: list[FoundIncident] = field(default_factory=list)
    lines: list[Line] = field(default_factory=list)
    at_s: float = 0.0
    round: int | None = None
    token: int = 0
    rank: int = 0

    def __post_init__(self) -> None:
        self.at_s = self.started_s
        self.host = self.host or self.node_id

    def wall_ns(self, at_s: float) -> int:
        """Return what the node's wall clock shows at a true time."""
        return EPOCH_NS + round((at_s + self.ahead_s) * 1e9)

    def spend(self, state: LedgerState, seconds: float, reason: str = "") -> "Node":
        """Add a span."""
        begin_s = self.at_s
        self.at_s += seconds
        if seconds > 0:
            self.lines.append(
                Span(
                    state=state,
                    begin_s=begin_s + self.uptime_s,
                    end_s=self.at_s + self.uptime_s,
                    round=self.round,
                    reason=reason,
                )
            )
        return self

    def join(
        self, index: int, rank: int, members: tuple[str, ...], *, count: int | None = None, late_s: float = 0.0
    ) -> "Node":
        """Add a formed round."""
        self.round, self.token, self.rank = index, index + 1, rank
        count = count or len(members)
        self.lines.append(
            RoundLine(
                at_s=self.at_s + self.uptime_s + late_s,
                index=index,
                token=index + 1,
                node_rank=rank,
                node_count=count,
                world_size=count,
                base_rank=rank,
                local_world_size=1,
                members=members if rank < 2 else (),
            )
        )
        return self

    def over(self, by: str, *, lost: tuple[str, ...] = (), left: tuple[str, ...] = (), reason: str = "") -> "Node":
        """Add the end of the round."""
        assert self.round is not None
        self.lines.append(
            RoundOver(at_s=self.at_s + self.uptime_s, index=self.round, by=by, lost=lost, left=left, reason=reason)
        )
        return self

    def worker(
        self, seconds: float, *, code: int | None = 0, saves: tuple[float, ...] = (), stopped: bool = False
    ) -> "Node":
        """Add the worker that ran for the last `seconds`; `saves` are ages of saves of a second."""
        assert self.round is not None
        end_s = self.at_s + self.uptime_s
        self.lines.append(
            WorkerLine(
                local_rank=0,
                global_rank=self.rank,
                pid=100 + self.rank,
                round=self.round,
                begin_s=end_s - seconds,
                end_s=end_s,
                code=code,
                stopped=stopped,
                marks=tuple(("save", end_s - age_s - 1, end_s - age_s) for age_s in saves),
            )
        )
        return self

    def note(self, name: str, text: str, *, node: str = "") -> "Node":
        """Add an event."""
        self.lines.append(Note(at_s=self.at_s + self.uptime_s, name=name, text=text, node=node))
        return self

    def alive(self, state: LedgerState) -> "Node":
        """Add a sign of life."""
        self.lines.append(Alive(at_s=self.at_s + self.uptime_s, state=state, round=self.round))
        return self

    def end(self, outcome: str = "succeeded", exit_code: int = 0, reason: str = "") -> "Node":
        """Add the agent's end."""
        self.lines.append(End(at_s=self.at_s + self.uptime_s, outcome=outcome, exit_code=exit_code, reason=reason))
        return self

    def fail(
        self, text: str = "ValueError: boom", *, decision: Decision | None = None, reports: int = 0, age_s: float = 0.0
    ) -> "Node":
        """Add an incident: a worker of this node failed `age_s` ago."""
        self.incidents.append(
            FoundIncident(
                incident=incident(
                    self.node_id,
                    self.round or 0,
                    self.token,
                    self.wall_ns(self.at_s - age_s),
                    run_id=self.run_id,
                    rank=self.rank,
                    text=text,
                    decision=decision or Restart(rule="intensity", reason="restart 1 of 3"),
                    reports=reports,
                ),
                path=f"/runs/{self.node_id}/incident.json",
            )
        )
        return self

    def ledger(self) -> Ledger:
        """Return the ledger."""
        return Ledger(
            begin=Begin(
                run_id=self.run_id,
                node_id=self.node_id,
                host=self.host,
                incarnation=f"{self.node_id}-{self.started_s:g}",
                pid=1,
                started_s=self.started_s + self.uptime_s,
                started_ns=self.wall_ns(self.started_s),
                queued_ns=0 if self.queued_s is None else self.wall_ns(self.queued_s),
                backend="redis",
                script="train.py",
                options=self.options,
                versions=self.versions,
                machine=self.machine,
            ),
            lines=tuple(self.lines),
        )

    def found(self, *, with_ledger: bool = True, alive: bool = False, current: bool = False) -> AgentEvidence:
        """Return what a reader finds."""
        ledger = self.ledger()
        end = ledger.end
        return AgentEvidence(
            node_id=self.node_id,
            host=self.host,
            ledger=ledger if with_ledger else None,
            started_ns=self.wall_ns(self.started_s),
            ended_ns=0 if end is None else self.wall_ns(self.at_s),
            outcome="" if end is None else end.outcome,
            exit_code=None if end is None else end.exit_code,
            boot_id=self.boot_id,
            alive=alive,
            current=current,
            script="train.py",
            backend="redis",
            incidents=tuple(self.incidents),
        )


def incident(
    node_id: str,
    index: int,
    token: int,
    at_ns: int,
    *,
    run_id: str = "bert-7",
    rank: int = 0,
    text: str = "ValueError: boom",
    decision: Decision | None = None,
    reports: int = 0,
) -> Incident:
    """Return an incident of a worker's exception."""
    kind, _, message = text.partition(": ")
    frames = (("/home/me/train.py", 11, "step", "raise ValueError"),)
    exit = WorkerExit(local_rank=0, global_rank=rank, pid=100 + rank, code=1, at_s=0.0, at_ns=at_ns, runtime_s=5.0)
    trace = f"Traceback (most recent call last):\n{text}"
    return Incident(
        run_id=run_id,
        node_id=node_id,
        host=node_id,
        round_index=index,
        round_token=token,
        at_ns=at_ns,
        at="",
        source="worker",
        failure_class=FailureClass.USER_EXCEPTION,
        summary=text,
        exit_code=1,
        first=FailedWorker(
            exit=exit,
            origin=Origin.INTRINSIC,
            failure_class=FailureClass.USER_EXCEPTION,
            summary=text,
            at_ns=at_ns,
            error=ErrorRecord(
                source="hook", type=kind, message=message, timestamp_ns=at_ns, frames=frames, callstack=trace
            ),
        ),
        report_count=reports,
        decision=decision,
    )
