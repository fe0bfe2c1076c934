"""Events and metrics of a `SimpleElasticAgent`, under torch's names."""

import json
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from elastic_core.api import SYSTEM_CLOCK
from elastic_torchrun.agent.worker_group import RunResult, Worker, WorkerGroup, WorkerState
from elastic_torchrun.events import Event, EventSource, record
from elastic_torchrun.metrics import put_metric


class Telling:
    """Makes and records the events of one group, and counts how its runs end.

    Args:
        group: The workers.
        handler: Returns the rendezvous handler in use.
        remaining_restarts: Returns the number of restarts that are left.
    """

    def __init__(
        self, group: WorkerGroup, *, handler: Callable[[], Any], remaining_restarts: Callable[[], int]
    ) -> None:
        """Record nothing yet."""
        self._group = group
        self._handler = handler
        self._remaining = remaining_restarts
        self.run_time_s = 0

    def event(
        self,
        state: str,
        source: EventSource,
        *,
        worker: Worker | None = None,
        raw_error: str | None = None,
        duration_ms: float | None = None,
        exit_code: int | None = None,
        worker_pid: int | None = None,
    ) -> Event:
        """Return an event about the agent, or about one worker."""
        group, spec, handler = self._group, self._group.spec, self._handler()
        details: dict[str, Any] = {
            "group_world_size": group.group_world_size,
            "entry_point": spec.get_entrypoint_name(),
        }
        if worker is not None:
            details |= {
                "local_rank": worker.local_rank,
                "role_rank": worker.role_rank,
                "role_world_size": worker.role_world_size,
                "exit_code": exit_code,
                "worker_pid": worker_pid,
            }
        metadata = {
            "run_id": handler.get_run_id(),
            "global_rank": None if worker is None else worker.global_rank,
            "group_rank": group.group_rank,
            "worker_id": None if worker is None else str(worker.id),
            "role": spec.role,
            "hostname": socket.gethostname(),
            "state": state,
            "total_run_time": self.run_time_s,
            "rdzv_backend": handler.get_backend(),
            "raw_error": raw_error,
            "metadata": json.dumps(details),
            "agent_restarts": spec.max_restarts - self._remaining(),
            "duration_ms": duration_ms,
        }
        return Event(name=f"torchelastic.worker.status.{state}", source=source, metadata=metadata)

    def record(self, event: Event) -> None:
        """Record an event if the spec has an event handler."""
        record(event, self._group.spec.event_log_handler)

    @contextmanager
    def duration(self, state: str) -> Iterator[None]:
        """Record the duration of a block, also if it raises."""
        began_s = SYSTEM_CLOCK.monotonic_s()
        try:
            yield
        finally:
            duration_ms = (SYSTEM_CLOCK.monotonic_s() - began_s) * 1000
            self.record(self.event(state, EventSource.AGENT, duration_ms=duration_ms))

    def started(self) -> None:
        """Record that the workers were started."""
        for worker in self._group.workers:
            self.record(self.event("START", EventSource.WORKER, worker=worker))

    def ended(self, result: RunResult) -> None:
        """Record how each worker ended, and count the run's result."""
        for worker in self._group.workers:
            self.record(self._end_of(worker, result))
        spec, failed = self._group.spec, result.is_failed()
        retried = self._remaining() != spec.max_restarts
        flakiness = 100.0 if failed else 100.0 - 100.0 * (self._remaining() + 1) / (spec.max_restarts + 1)
        self._count("run_total", 1)
        self._count("run_success_with_retries", int(not failed and retried))
        self._count("run_success_no_retries", int(not failed and not retried))
        self._count("run_failed_with_retries", int(failed and retried))
        self._count("run_failed_no_retries", int(failed and not retried))
        self._count("flakiness", int(flakiness))

    def looked(self, state: WorkerState) -> None:
        """Count one check of the workers."""
        self._count("remaining_restarts", self._remaining())
        self._count(state.value.lower(), 1)

    def _count(self, name: str, value: float) -> None:
        put_metric(f"workers.{self._group.spec.role}.{name}", value)

    def _end_of(self, worker: Worker, result: RunResult) -> Event:
        failure = result.failures.get(worker.global_rank)
        if failure is None:
            state = "TERMINATED" if result.is_failed() else result.state.value
            return self.event(state, EventSource.WORKER, worker=worker)
        return self.event(
            result.state.value,
            EventSource.WORKER,
            worker=worker,
            raw_error=json.dumps(failure.error_file_data),
            exit_code=failure.exitcode,
            worker_pid=failure.pid,
        )
