"""Events of an agent's feed as the agent would add them, on a clock of the test's."""

from typing import Any

from elastic_core.api import FailureClass, Restart, Round, WorkerExit
from elastic_core.api.feed import RunEvent
from elastic_plugin_kit import sample_failure, sample_round
from elastic_report.ledger.accounting import Accounting
from elastic_report.ledger.document import Hung, Line, Span, Sum
from elastic_report.ledger.progress import WorkerProgress
from elastic_report.ledger.states import LedgerState as S

STARTED_S = 1000.0
STARTED_NS = 1_700_000_000_000_000_000


class Node:
    """An accounting, the time, and the events of one agent."""

    def __init__(self, *, workers: int = 1, high_step: int | None = None) -> None:
        self.accounting = Accounting(started_s=STARTED_S, started_ns=STARTED_NS, high_step=high_step)
        self.now_s = STARTED_S
        self.jump_s = 0.0
        self.count = workers
        self.progress: dict[int, WorkerProgress] = {}
        self.lines: list[Line] = []
        self.round: Round | None = None
        self.index = -1
        self.over = False
        self.pid = 100

    def wait(self, seconds: float) -> None:
        self.now_s += seconds

    def event(self, name: str, values: dict[str, Any] | None = None, *, source: str = "") -> RunEvent:
        at_ns = STARTED_NS + round((self.now_s - STARTED_S + self.jump_s) * 1e9)
        return RunEvent(name=name, at_s=self.now_s, at_ns=at_ns, values=values or {}, source=source)

    def add(self, name: str, values: dict[str, Any] | None = None, *, source: str = "") -> None:
        self.accounting.observe(self.event(name, values, source=source))
        if self.accounting.wants_progress:
            self.accounting.read(self.progress, self.now_s, final=True)
        self.lines += self.accounting.take()

    def step(self, state: str, event: str = "X", **values: Any) -> None:
        self.add("step", {"event": event, "state": state, "state_reason": "", "entered": True, "phases": ()} | values)

    # --- the course of a run

    def join(self, **given: Any) -> None:
        self.index += 1
        self.step("joining")
        self.round = sample_round(index=self.index, local_world_size=self.count, **given)

    def form(self, members: tuple[Any, ...] = ()) -> None:
        self.step("preparing", "RoundFormed", round=self.round)
        self.add("round_joined", {"round": self.round, "members": members})
        self.step("starting")

    def spawn(self) -> None:
        self.progress = {}
        self.pid += self.count
        self.add("workers_started", {"round": self.round, "pids": tuple(range(self.pid, self.pid + self.count))})
        self.step("running")

    def begin(self, rendezvous_s: float = 1.0, **given: Any) -> None:
        self.join(**given)
        self.wait(rendezvous_s)
        self.form()
        self.spawn()

    def read(self) -> None:
        self.accounting.read(self.progress, self.now_s)
        self.lines += self.accounting.take()

    def tick(self) -> None:
        self.accounting.read(self.progress, self.now_s)
        self.accounting.alive()
        self.lines += self.accounting.take()

    def exit(self, rank: int, code: int = 0, stop_signal: int | None = None) -> None:
        exit = WorkerExit(
            local_rank=rank, global_rank=rank, pid=self.pid + rank, code=code, at_s=self.now_s, at_ns=0, runtime_s=1.0,
            stop_signal=stop_signal,
        )  # fmt: skip
        self.add("worker_ended", {"round_index": self.index, "exit": exit})

    def fail(self, stop_s: float = 2.0, **given: Any) -> None:
        """A worker fails, the policy restarts, and the others are stopped."""
        failure = sample_failure(round_index=self.index, **given)
        if failure.failure_class is FailureClass.HANG:
            self.step("deciding", "HangFound", failure=failure)
        else:
            self.exit(0, 1)
            self.step("deciding")
            self.wait(0.1)
        self.add("failure_seen", {"failure": failure, "workers": self.blamed})
        decision = Restart(rule="max-restarts")
        self.add("decision_taken", {"failure": failure, "decision": decision, "policy": "intensity"})
        self.step("stopping", "DecisionMade", failure=failure, decision=decision)
        self.wait(stop_s)
        for rank in range(self.count):
            self.exit(rank, -15, 15)
        self.step("gating", "WorkersStopped")

    blamed: tuple[Any, ...] = ()

    def succeed(self) -> None:
        for rank in range(self.count):
            self.exit(rank)
        self.step("leaving")
        self.wait(0.2)
        self.step("ended")

    def close(self, outcome: str = "succeeded", code: int = 0) -> None:
        self.add("agent_stopped", {"outcome": outcome, "exit_code": code, "reason": outcome})
        self.accounting.close(self.progress, self.now_s)
        self.over = True
        self.lines += self.accounting.take()

    # --- what came of it

    @property
    def spans(self) -> list[Span]:
        return [line for line in self.lines if isinstance(line, Span)]

    @property
    def seconds(self) -> dict[S, float]:
        return {state: round(value, 3) for state, value in self.accounting.totals().states.items()}

    @property
    def course(self) -> list[tuple[str, float]]:
        """The states with their seconds, in order; those of less than a millisecond are left out."""
        found: list[tuple[str, float]] = []
        for span in [*self.spans, *([] if self.over else self.accounting.tail())]:
            took_s = round(span.end_s - span.begin_s, 3)
            if took_s and found and found[-1][0] == span.state.value:
                found[-1] = (span.state.value, round(found[-1][1] + took_s, 3))
            elif took_s:
                found.append((span.state.value, took_s))
        return found


def check_spans(lines: list[Line], end_s: float) -> None:
    """Fail unless every second from the start to the end is in exactly one span."""
    at_s = STARTED_S
    for line in lines:
        if isinstance(line, Span | Sum):
            assert line.begin_s == at_s, (line, at_s)
            assert line.end_s > line.begin_s
            at_s = line.end_s
        elif isinstance(line, Hung):
            assert STARTED_S <= line.begin_s < line.end_s <= end_s
    assert at_s == end_s


def beats(alive_s: float | None = None, **given: Any) -> WorkerProgress:
    return WorkerProgress(alive_s=alive_s, **given)
