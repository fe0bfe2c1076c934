"""The agent's metrics: a value for each change, under torch's names and elastic-core's. No I/O, no clock."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from elastic_core.api import FailedWorker, Failure, FailureClass, Record, Restart, Round, WorkerExit
from elastic_core.api.feed import Phase, RunEvent
from elastic_ops.exporters.looks import Beat, CallCount
from elastic_ops.metrics.handler import DEFAULT_GROUP, series
from elastic_ops.metrics.table import GROUP

_TORCHS: Final = {
    "rendezvous": "SimpleElasticAgent._rendezvous",
    "start": "LocalElasticAgent._start_workers",
    "stop": "LocalElasticAgent._stop_workers",
    "initialize": "SimpleElasticAgent._initialize_workers",
    "restart": "SimpleElasticAgent._restart_workers",
}
"""Torch's names of the functions with the same work."""
_OURS: Final = frozenset({"rendezvous", "start", "stop"})


class Metric(Record, frozen=True, kw_only=True):
    """One value."""

    group: str
    name: str
    value: float


class AgentMetrics:
    """The metrics of one agent, from the events of its feed, in order. Threading: one thread."""

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

    def observe(self, seen: RunEvent) -> Iterator[Metric]:
        """Yield the values that change by an event."""
        match seen.name, seen.values:
            case "agent_started", {"node_id": str(node_id)}:
                self._began_s = seen.at_s
                labels = {"run_id": self._run_id, "node_id": node_id, "role": self._role, "backend": self._backend}
                yield _ours(series("elastic_run_info", **labels), 1)
            case "step", {"entered": True, "state": str(state), "phases": [*phases]}:
                yield from self._entered(state, phases)
            case "ranks_assigned", {"took_s": float(took_s)}:
                yield from _called("SimpleElasticAgent._assign_worker_ranks", took_s, well=True)
            case "round_joined", {"round": Round() as round_}:
                yield self._count("elastic_rounds_total")
                yield _ours("elastic_round", round_.index)
                yield _ours("elastic_round_nodes", round_.node_count)
                yield _ours("elastic_world_size", round_.world_size)
                yield _ours("elastic_node_rank", round_.node_rank)
            case "workers_starting", {"restart_count": int(count)}:
                self._restart_count = count
                yield self._torchs("remaining_restarts", self._remaining)
            case "workers_started", {"pids": [*pids]}:
                self._alive = len(pids)
                yield _ours("elastic_workers_alive", self._alive)
            case "worker_ended", {"exit": WorkerExit() as exit}:
                yield from self._ended(exit)
            case "failure_seen", {"failure": Failure() as failure, "workers": [*workers]}:
                yield from self._failed(failure, workers)
            case "decision_taken", {"failure": Failure() as failure, "decision": Restart()}:
                yield self._count("elastic_restarts_total", class_=class_label(failure.failure_class))
            case "membership_changed", _:
                yield self._count("elastic_membership_changes_total")
            case "store_reachable", {"reachable": bool(reachable)}:
                yield _ours("elastic_store_reachable", int(reachable))
            case "fields_published", {"hook": str(hook), "fields": {**fields}}:
                yield from self._published(hook, fields)
            case "metric", {"group": str(group), "name": str(name), "value": int(value) | float(value)}:
                yield Metric(group=group, name=name, value=value)
            case "agent_stopped", {"exit_code": int(code)}:
                yield from self._stopped(code, seen.at_s)
            case _:
                pass  # nothing that is measured changes by it

    # --- states and phases

    def _entered(self, state: str, phases: Sequence[object]) -> Iterator[Metric]:
        if self._state:
            yield _ours(series("elastic_agent_state", state=self._state), 0)
        self._state = state
        yield _ours(series("elastic_agent_state", state=state), 1)
        for phase in phases:
            if isinstance(phase, Phase) and phase.name in _TORCHS:
                yield from self._phase(phase)
        if state == "running":
            yield from self._became("healthy")

    def _phase(self, phase: Phase) -> Iterator[Metric]:
        if phase.name in _OURS and phase.well:
            yield _ours(series("elastic_phase_seconds", phase=phase.name), phase.took_s)
        yield from _called(_TORCHS[phase.name], phase.took_s, well=phase.well)

    def _became(self, group_state: str) -> Iterator[Metric]:
        """Yield the worker group's state under torch's name, and 0 for the state before it, which torch leaves at 1."""
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

    def _failed(self, failure: Failure, workers: Sequence[object]) -> Iterator[Metric]:
        yield self._count("elastic_failures_total", class_=class_label(failure.failure_class))
        detect_s = _detect_s(failure, workers)
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

    # --- what is looked at from time to time, and what hooks say

    def calls(self, counts: Mapping[str, CallCount]) -> Iterator[Metric]:
        """Yield the values of calls to the store since the last check, by their names."""
        for call, count in counts.items():
            if count.answered:
                yield _ours(series("elastic_store_latency_seconds", call=call), count.took_s / count.answered)
                yield self._count("elastic_store_calls_total", count.answered, call=call, outcome="answered")
            if count.failed:
                yield self._count("elastic_store_calls_total", count.failed, call=call, outcome="failed")

    def _published(self, hook: str, fields: Mapping[object, object]) -> Iterator[Metric]:
        for name, value in fields.items():
            if isinstance(value, (int, float)):
                number = int(value) if isinstance(value, bool) else value
                yield _ours(series("elastic_hook_field", hook=hook, field=str(name)), number)

    # --- names

    def _count(self, name: str, more: int = 1, **labels: str) -> Metric:
        full = series(name, **labels)
        self._totals[full] += more
        return _ours(full, self._totals[full])

    def _torchs(self, name: str, value: float) -> Metric:
        return Metric(group=DEFAULT_GROUP, name=f"workers.{self._role}.{name}", value=value)


def outcome(exit: WorkerExit) -> str:
    """Return how a worker ended, in torch's terms."""
    if exit.stop_signal is not None:
        return "TERMINATED"
    return "SUCCEEDED" if exit.code == 0 else "FAILED"


def class_label(failure_class: FailureClass) -> str:
    """Return a failure's class as one word: `oom_host`."""
    return failure_class.name.lower()


def _detect_s(failure: Failure, workers: Sequence[object]) -> float | None:
    for worker in workers:
        if isinstance(worker, FailedWorker) and worker.exit.local_rank == failure.local_rank:
            return max(0.0, (worker.exit.at_ns - worker.at_ns) / 1e9)
    return None


def heartbeats(beats: Mapping[int, Beat]) -> Iterator[Metric]:
    """Yield the values of workers' last heartbeats, by local rank."""
    for rank, beat in beats.items():
        if beat.age_s is not None:
            yield _ours(series("elastic_heartbeat_age_seconds", local_rank=str(rank)), beat.age_s)
        if beat.step is not None:
            yield _ours(series("elastic_heartbeat_step", local_rank=str(rank)), beat.step)


def _ours(name: str, value: float) -> Metric:
    return Metric(group=GROUP, name=name, value=value)


def _called(function: str, took_s: float, *, well: bool) -> Iterator[Metric]:
    """Yield the values that torch's `prof` would publish for a call."""
    yield Metric(group=DEFAULT_GROUP, name=f"{function}.{'success' if well else 'failure'}", value=1)
    yield Metric(group=DEFAULT_GROUP, name=f"{function}.duration.ms", value=int(took_s * 1000))
