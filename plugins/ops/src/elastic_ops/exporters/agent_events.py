"""The agent's events: torch's names and metadata, each with its time. No I/O, no clock."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Final

from elastic_core.api import ErrorRecord, FailedWorker, Record, Round, WorkerExit
from elastic_core.api.feed import Phase, RunEvent
from elastic_ops.exporters.agent_metrics import outcome

PREFIX: Final = "torchelastic.worker.status."
_OVER: Final = frozenset({"awaiting", "waiting", "gating", "joining", "leaving", "ended"})
"""States without workers: by then the causes of failed workers are known."""


EventMetadataValue = str | int | float | bool | None


@dataclass(frozen=True, kw_only=True)
class Event:
    """An event with torch's fields. `source`: `AGENT` or `WORKER`; `timestamp`: milliseconds."""

    name: str
    source: str
    timestamp: int
    metadata: Mapping[str, EventMetadataValue]

    def serialize(self) -> str:
        """Return the event as JSON."""
        return json.dumps(asdict(self))


@dataclass(frozen=True, kw_only=True)
class RdzvEvent:
    """An event of the rendezvous, with torch's fields."""

    name: str
    run_id: str
    message: str
    hostname: str
    pid: int
    node_state: str
    master_endpoint: str
    rank: int | None
    local_id: int | None = None
    error_trace: str = ""

    def serialize(self) -> str:
        """Return the event as JSON."""
        return json.dumps(asdict(self))


class Identity(Record, frozen=True, kw_only=True):
    """The common fields of all events of a run."""

    run_id: str
    role: str
    backend: str
    entry_point: str
    hostname: str
    pid: int
    endpoint: str = ""


class AgentEvents:
    """The events of one agent, from those of its feed, in order. Threading: one thread."""

    def __init__(self, identity: Identity) -> None:
        """Begin before the run."""
        self._identity = identity
        self._began_s = 0.0
        self._assigned_s = 0.0
        self._round: Round | None = None
        self._restart_count = 0
        self._unexplained: list[tuple[RunEvent, WorkerExit]] = []

    def observe(self, seen: RunEvent) -> Iterator[Event | RdzvEvent]:
        """Yield the events that follow from one event of the feed."""
        match seen.name, seen.values:
            case "agent_started", _:
                self._began_s = seen.at_s
                yield self._rdzv("agent_started", "the agent has begun", "INIT")
            case "step", {"entered": True, "state": str(state), "phases": [*phases]}:
                yield from self._entered(state, phases, seen)
            case "ranks_assigned", {"took_s": float(took_s)}:
                self._assigned_s = took_s
            case "round_joining", {"round_index": int(index)}:
                yield self._rdzv("joining", f"this node asks for a place in round {index}", "RUNNING")
            case "round_joined", {"round": Round() as round_}:
                self._round = round_
                yield self._rdzv("round_joined", _joined(round_), "RUNNING")
            case "workers_starting", {"restart_count": int(count)}:
                self._restart_count = count
            case "workers_started", {"pids": [*pids]}:
                for rank, pid in enumerate(pids):
                    yield self._worker("START", seen, rank, int(str(pid)))
            case "worker_ended", {"exit": WorkerExit() as exit}:
                yield from self._ended(seen, exit)
            case "failure_seen", {"workers": [*workers]}:
                yield from self._explained({w.exit.local_rank: w for w in workers if isinstance(w, FailedWorker)})
            case "membership_changed", {"round_index": int(index), "change": change}:
                reason = getattr(change, "reason", "") or "nodes came or went"
                yield self._rdzv("round_ended", f"round {index} ends: {reason}", "RUNNING")
            case "store_reachable", {"reachable": bool(reachable)}:
                text = "the rendezvous store is back" if reachable else "the rendezvous store is away"
                yield self._rdzv("store", text, "RUNNING")
            case "agent_stopped", {"exit_code": int(code), "reason": str(reason)}:
                yield from self._stopped(seen, code, reason)
            case "metric" | "listening" | "fields_published", _:
                pass  # of hooks, for metrics and for the status: the last ones follow the end of the run
            case _:
                if seen.source:
                    yield self._recorded(seen)  # a hook says that it is one

    # --- what is seen

    def _entered(self, state: str, phases: Sequence[object], seen: RunEvent) -> Iterator[Event]:
        if state in _OVER:
            yield from self._explained({})
        for phase in phases:
            if not isinstance(phase, Phase) or phase.name != "rendezvous":
                continue
            assigned_s, self._assigned_s = self._assigned_s, 0.0
            if phase.well and isinstance(round_ := seen.values.get("round"), Round):
                self._round = round_
            yield self._agent("RENDEZVOUS", seen, duration_s=max(0.0, phase.took_s - assigned_s))
            if phase.well:
                yield self._agent("ASSIGN_WORKER_RANKS", seen, duration_s=assigned_s)

    def _ended(self, seen: RunEvent, exit: WorkerExit) -> Iterator[Event]:
        state = outcome(exit)
        if state == "FAILED":
            self._unexplained.append((seen, exit))  # the reason will have been read in a moment
        else:
            yield self._worker(state, seen, exit.local_rank, exit.pid, exit=exit)

    def _explained(self, workers: Mapping[int, FailedWorker]) -> Iterator[Event]:
        """Yield the failures of workers that have ended, with their causes."""
        ended, self._unexplained = self._unexplained, []
        for seen, exit in ended:
            error = _error_data(workers.get(exit.local_rank))
            yield self._worker("FAILED", seen, exit.local_rank, exit.pid, exit=exit, raw_error=error)

    def _stopped(self, seen: RunEvent, code: int, reason: str) -> Iterator[Event | RdzvEvent]:
        yield from self._explained({})
        well = code == 0
        error = None if well else json.dumps({"message": reason})
        yield self._agent("SUCCEEDED" if well else "FAILED", seen, raw_error=error, exit_code=code)
        yield self._rdzv("agent_stopped", reason, "SUCCEEDED" if well else "FAILED")

    # --- events

    def _worker(
        self,
        state: str,
        seen: RunEvent,
        local_rank: int,
        pid: int,
        *,
        exit: WorkerExit | None = None,
        raw_error: str | None = None,
    ) -> Event:
        round_ = self._round
        more = {
            "local_rank": local_rank,
            "role_rank": None if round_ is None else round_.role_base_rank + local_rank,
            "role_world_size": None if round_ is None else round_.role_world_size,
            "exit_code": None if exit is None else exit.code,
            "worker_pid": pid,
        }
        global_rank = None if round_ is None else round_.global_rank(local_rank)
        at_ns = seen.at_ns if exit is None else exit.at_ns
        metadata = self._metadata(state, seen, more, raw_error=raw_error, global_rank=global_rank, worker_id=str(pid))
        return _event(state, "WORKER", at_ns, metadata)

    def _agent(
        self,
        state: str,
        seen: RunEvent,
        *,
        duration_s: float | None = None,
        raw_error: str | None = None,
        exit_code: int | None = None,
    ) -> Event:
        more = {} if exit_code is None else {"exit_code": exit_code}
        metadata = self._metadata(state, seen, more, raw_error=raw_error)
        metadata["duration_ms"] = None if duration_s is None else duration_s * 1000
        return _event(state, "AGENT", seen.at_ns, metadata)

    def _metadata(
        self,
        state: str,
        seen: RunEvent,
        more: Mapping[str, EventMetadataValue],
        *,
        raw_error: str | None = None,
        global_rank: int | None = None,
        worker_id: str | None = None,
    ) -> dict[str, EventMetadataValue]:
        identity, round_ = self._identity, self._round
        count = None if round_ is None else round_.node_count
        return {
            "run_id": identity.run_id,
            "global_rank": global_rank,
            "group_rank": None if round_ is None else round_.node_rank,
            "worker_id": worker_id,
            "role": identity.role,
            "hostname": identity.hostname,
            "state": state,
            "total_run_time": int(seen.at_s - self._began_s),
            "rdzv_backend": identity.backend,
            "raw_error": raw_error,
            "metadata": json.dumps({"group_world_size": count, "entry_point": identity.entry_point, **more}),
            "agent_restarts": self._restart_count,
            "duration_ms": None,
        }

    def _recorded(self, seen: RunEvent) -> Event:
        more = {name: value for name, value in seen.values.items() if isinstance(value, str | int | float | bool)}
        metadata = self._metadata("RUNNING", seen, more)
        return Event(name=seen.name, source="AGENT", timestamp=seen.at_ns // 1_000_000, metadata=metadata)

    def _rdzv(self, name: str, message: str, node_state: str) -> RdzvEvent:
        identity, round_ = self._identity, self._round
        return RdzvEvent(
            name=f"elastic_core:{name}",
            run_id=identity.run_id,
            message=message,
            hostname=identity.hostname,
            pid=identity.pid,
            node_state=node_state,
            master_endpoint=identity.endpoint,
            rank=None if round_ is None else round_.node_rank,
        )


def _event(state: str, source: str, at_ns: int, metadata: dict[str, EventMetadataValue]) -> Event:
    return Event(name=f"{PREFIX}{state}", source=source, timestamp=at_ns // 1_000_000, metadata=metadata)


def _joined(round_: Round) -> str:
    nodes = "1 node" if round_.node_count == 1 else f"{round_.node_count} nodes"
    return f"this node has rank {round_.node_rank} of {nodes} in round {round_.index}"


def _error_data(worker: FailedWorker | None) -> str | None:
    """Return a failure in the form of torch's error files."""
    if worker is None:
        return None
    error: ErrorRecord | None = worker.error
    if error is None:
        return json.dumps({"message": worker.summary})
    extra = {"py_callstack": error.callstack, "timestamp": str(error.timestamp_ns // 1_000_000_000)}
    return json.dumps({"message": {"message": f"{error.type}: {error.message}", "extraInfo": extra}})
