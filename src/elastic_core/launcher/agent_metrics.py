"""What the agent's metrics are: a value for each change, under torch's names and ours. No I/O, no clock."""

from collections import Counter
from collections.abc import Iterator
from typing import Final

from elastic_core import moments
from elastic_core.agent.feed import RanksAssigned, StepTaken, StoreReachable
from elastic_core.agent.machine import states as s
from elastic_core.launcher.observations import Heartbeats, Observed, StoreCalls
from elastic_core.metrics.api import DEFAULT_GROUP, series
from elastic_core.metrics.table import GROUP
from elastic_core.reports import Phase
from elastic_core.types import Failure, FailureClass, Record, Restart, WorkerExit

_TORCHS: Final = {
    "rendezvous": "SimpleElasticAgent._rendezvous",
    "start": "LocalElasticAgent._start_workers",
    "stop": "LocalElasticAgent._stop_workers",
    "initialize": "SimpleElasticAgent._initialize_workers",
    "restart": "SimpleElasticAgent._restart_workers",
}
"""What torch calls the functions that do this."""
_OURS: Final = frozenset({"rendezvous", "start", "stop"})


class Metric(Record, frozen=True, kw_only=True):
    """One value."""

    group: str
    name: str
    value: float


class AgentMetrics:
    """The metrics of one agent, by what is observed of it, in order. Threading: one thread."""

    def __init__(self, *, run_id: str, role: str, backend: str, max_restarts: int) -> None:
        """Begin before the run."""
        self._run_id = run_id
        self._role = role
        self._backend = backend
        self._max_restarts = max_restarts
        self._restart_count = 0
        self._began_s = 0.0
        self._state = ""
        self._group_state = ""
        self._alive = 0
        self._totals: Counter[str] = Counter()

    def observe(self, seen: Observed) -> Iterator[Metric]:
        """Yield the values that change by what was seen."""
        match seen.what:
            case moments.AgentStarted(node_id=node_id):
                self._began_s = seen.at_s
                labels = {"run_id": self._run_id, "node_id": node_id, "role": self._role, "backend": self._backend}
                yield _ours(series("elastic_run_info", **labels), 1)
            case StepTaken(entered=True):
                yield from self._entered(seen.what)
            case RanksAssigned(took_s=took_s):
                yield from _called("SimpleElasticAgent._assign_worker_ranks", took_s, well=True)
            case moments.RoundJoined(round=round_):
                yield self._count("elastic_rounds_total")
                yield _ours("elastic_round", round_.index)
                yield _ours("elastic_round_nodes", round_.node_count)
                yield _ours("elastic_world_size", round_.world_size)
                yield _ours("elastic_node_rank", round_.node_rank)
            case moments.WorkersStarting(restart_count=count):
                self._restart_count = count
                yield self._torchs("remaining_restarts", self._remaining)
            case moments.WorkersStarted(pids=pids):
                self._alive = len(pids)
                yield _ours("elastic_workers_alive", self._alive)
            case moments.WorkerEnded(exit=exit):
                yield from self._ended(exit)
            case moments.FailureSeen():
                yield from self._failed(seen.what)
            case moments.DecisionTaken(failure=failure, decision=Restart()):
                yield self._count("elastic_restarts_total", class_=class_label(failure.failure_class))
            case moments.MembershipChanged():
                yield self._count("elastic_membership_changes_total")
            case StoreReachable(reachable=reachable):
                yield _ours("elastic_store_reachable", int(reachable))
            case StoreCalls():
                yield from self._store(seen.what)
            case Heartbeats():
                yield from _beats(seen.what)
            case moments.AgentStopped(exit_code=code):
                yield from self._stopped(code, seen.at_s)
            case _:
                pass  # nothing that is measured changes by it

    # --- states and phases

    def _entered(self, taken: StepTaken) -> Iterator[Metric]:
        state = taken.step.state
        name = type(state).__name__.lower()
        if self._state:
            yield _ours(series("elastic_agent_state", state=self._state), 0)
        self._state = name
        yield _ours(series("elastic_agent_state", state=name), 1)
        for phase in taken.phases:
            yield from self._phase(phase)
        if isinstance(state, s.Running):
            yield from self._became("healthy")

    def _phase(self, phase: Phase) -> Iterator[Metric]:
        if phase.name in _OURS and phase.well:
            yield _ours(series("elastic_phase_seconds", phase=phase.name), phase.took_s)
        yield from _called(_TORCHS[phase.name], phase.took_s, well=phase.well)

    def _became(self, group_state: str) -> Iterator[Metric]:
        """Say the worker group's state as torch names it; 0 for the one before, which torch leaves at 1."""
        if group_state != self._group_state:
            if self._group_state:
                yield self._torchs(self._group_state, 0)
            self._group_state = group_state
            yield self._torchs(group_state, 1)

    # --- workers and failures

    def _ended(self, exit: WorkerExit) -> Iterator[Metric]:
        self._alive = max(0, self._alive - 1)
        yield self._count("elastic_worker_exits_total", outcome=outcome(exit).lower())
        yield _ours("elastic_workers_alive", self._alive)

    def _failed(self, seen: moments.FailureSeen) -> Iterator[Metric]:
        yield self._count("elastic_failures_total", class_=class_label(seen.failure.failure_class))
        detect_s = _detect_s(seen)
        if detect_s is not None:
            yield _ours(series("elastic_phase_seconds", phase="detect"), detect_s)
        yield from self._became("failed")

    def _stopped(self, code: int, at_s: float) -> Iterator[Metric]:
        failed, retried = code != 0, self._restart_count > 0
        yield from self._became("failed" if failed else "succeeded")
        left = 100.0 * (self._remaining + 1) / (self._max_restarts + 1)
        yield self._torchs("flakiness", 100 if failed else int(100.0 - left))
        yield self._torchs("run_total", 1)
        for name, so in (
            ("run_success_with_retries", not failed and retried),
            ("run_success_no_retries", not failed and not retried),
            ("run_failed_with_retries", failed and retried),
            ("run_failed_no_retries", failed and not retried),
        ):
            yield self._torchs(name, int(so))
        yield from _called("SimpleElasticAgent.run", at_s - self._began_s, well=not failed)
        yield _ours("elastic_exit_code", code)

    @property
    def _remaining(self) -> int:
        return max(0, self._max_restarts - self._restart_count)

    # --- the store

    def _store(self, seen: StoreCalls) -> Iterator[Metric]:
        for call, count in seen.calls.items():
            if count.answered:
                yield _ours(series("elastic_store_latency_seconds", call=call), count.took_s / count.answered)
                yield self._count("elastic_store_calls_total", count.answered, call=call, outcome="answered")
            if count.failed:
                yield self._count("elastic_store_calls_total", count.failed, call=call, outcome="failed")

    # --- names

    def _count(self, name: str, more: int = 1, **labels: str) -> Metric:
        full = series(name, **labels)
        self._totals[full] += more
        return _ours(full, self._totals[full])

    def _torchs(self, name: str, value: float) -> Metric:
        return Metric(group=DEFAULT_GROUP, name=f"workers.{self._role}.{name}", value=value)


def outcome(exit: WorkerExit) -> str:
    """Return how a worker ended, in torch's words."""
    if exit.stop_signal is not None:
        return "TERMINATED"
    return "SUCCEEDED" if exit.code == 0 else "FAILED"


def class_label(failure_class: FailureClass) -> str:
    """Return a failure's class as one word: `oom_host`."""
    return failure_class.name.lower()


def _detect_s(seen: moments.FailureSeen) -> float | None:
    failure: Failure = seen.failure
    for worker in seen.workers:
        if worker.exit.local_rank == failure.local_rank:
            return max(0.0, (worker.exit.at_ns - worker.at_ns) / 1e9)
    return None


def _beats(seen: Heartbeats) -> Iterator[Metric]:
    for rank, beat in seen.beats.items():
        yield _ours(series("elastic_heartbeat_age_seconds", local_rank=str(rank)), beat.age_s)
        if beat.step is not None:
            yield _ours(series("elastic_heartbeat_step", local_rank=str(rank)), beat.step)


def _ours(name: str, value: float) -> Metric:
    return Metric(group=GROUP, name=name, value=value)


def _called(function: str, took_s: float, *, well: bool) -> Iterator[Metric]:
    """Yield what torch's `prof` would say of a call."""
    yield Metric(group=DEFAULT_GROUP, name=f"{function}.{'success' if well else 'failure'}", value=1)
    yield Metric(group=DEFAULT_GROUP, name=f"{function}.duration.ms", value=int(took_s * 1000))
