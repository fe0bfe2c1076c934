"""An agent for subclasses: it does rendezvous, ranks and restarts; the subclass runs the workers.

The calls, their order and their meaning are torch's. `LocalElasticAgent` is the agent behind `elastic run`.
"""

import logging
import signal
import traceback
from abc import abstractmethod
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

from elastic_core.api import SYSTEM_CLOCK, ElasticError, WaitBudget
from elastic_torchrun.agent.elastic_agent import ElasticAgent
from elastic_torchrun.agent.events import Telling
from elastic_torchrun.agent.exit_barrier import exit_barrier
from elastic_torchrun.agent.ranks import assign_ranks, meet, place_of
from elastic_torchrun.agent.spec_rendezvous import handler_of
from elastic_torchrun.agent.worker_group import RunResult, WorkerGroup, WorkerState
from elastic_torchrun.agent.worker_spec import DEFAULT_ROLE, WorkerSpec
from elastic_torchrun.events import Event, EventSource

if TYPE_CHECKING:
    from elastic_core.embedding import HeldPort

_log = logging.getLogger(__name__)


class SimpleElasticAgent(ElasticAgent):
    """Runs the workers of one `WorkerSpec`. A subclass defines how they are started, checked and stopped.

    A failure uses up a restart; a node that waits to join does not. When this node's workers have succeeded, the agent
    waits for those of the other nodes.

    Args:
        spec: The workers.
        exit_barrier_timeout: Seconds to wait for the other nodes' workers at the end.
        shutdown_timeout: Seconds from a stop signal to SIGKILL, for `_shutdown`.

    Threading: all methods are called on the thread that calls `run`.
    """

    def __init__(self, spec: WorkerSpec, exit_barrier_timeout: float = 300, shutdown_timeout: int = 30) -> None:
        """Start nothing yet."""
        self._worker_group = WorkerGroup(spec)
        self._remaining_restarts = spec.max_restarts
        self._store: Any = None
        self._exit_barrier_timeout = exit_barrier_timeout
        self._shutdown_timeout = shutdown_timeout
        self._port: HeldPort | None = None
        self._made_handler: Any = None
        self._telling = Telling(
            self._worker_group,
            handler=lambda: spec.rdzv_handler or self._handler,
            remaining_restarts=lambda: self._remaining_restarts,
        )

    def get_worker_group(self, role: str = DEFAULT_ROLE) -> WorkerGroup:
        """Return the workers. The object changes while the agent runs."""
        return self._worker_group

    # --- what it tells

    def get_event_failed(self) -> Event:
        """Return the event for a failed agent, with the exception that is being handled."""
        return self._telling.event("FAILED", EventSource.AGENT, raw_error=traceback.format_exc())

    def get_event_succeeded(self) -> Event:
        """Return the event for an agent that has ended without an error, whether or not its workers succeeded."""
        return self._telling.event("SUCCEEDED", EventSource.AGENT)

    def record_duration(self, state: str) -> AbstractContextManager[None]:
        """Record an event with the duration of a `with` block, at its end."""
        return self._telling.duration(state)

    # --- what a subclass provides

    @abstractmethod
    def _start_workers(self, worker_group: WorkerGroup) -> dict[int, Any]:
        """Start the workers of a group whose ranks are set. Return an id for each by local rank."""

    @abstractmethod
    def _stop_workers(self, worker_group: WorkerGroup) -> None:
        """Stop the workers, in any state, and also if there are none."""

    @abstractmethod
    def _monitor_workers(self, worker_group: WorkerGroup) -> RunResult:
        """Return the state: HEALTHY, SUCCEEDED with return values, FAILED or UNHEALTHY with failures."""

    @abstractmethod
    def _shutdown(self, death_sig: signal.Signals = signal.SIGTERM, timeout: int = 30) -> None:
        """Release everything. Called: last, after any result; workers may still run.

        Args:
            death_sig: The signal that stops workers.
            timeout: Seconds until SIGKILL.
        """

    # --- the loop

    def run(self, role: str = DEFAULT_ROLE) -> RunResult:
        """Run all rounds. A node that is not needed succeeds without a result."""
        began_s = SYSTEM_CLOCK.monotonic_s()
        death_sig = signal.SIGTERM
        failed: Exception | None = None
        try:
            result = self._run()
            self._telling.run_time_s = int(SYSTEM_CLOCK.monotonic_s() - began_s)
            self._telling.ended(result)
        except Exception as error:
            failed = error
            death_sig = getattr(error, "sigval", death_sig)  # a SignalException's: torch's or ours
            if _is_graceful(error):
                _log.info("this node is not needed: %s", error)
                return RunResult(state=WorkerState.SUCCEEDED)
            raise
        else:
            return result
        finally:
            self._telling.run_time_s = int(SYSTEM_CLOCK.monotonic_s() - began_s)
            self._end(death_sig, failed)

    def _end(self, death_sig: signal.Signals, failed: Exception | None) -> None:
        try:
            self._shutdown(death_sig, timeout=self._shutdown_timeout)
        except Exception as error:
            if failed is None:
                raise
            _log.warning("shutting the workers down failed: %s: %s", type(error).__name__, error)
        finally:
            if self._port is not None:
                self._port.close()

    @property
    def _handler(self) -> Any:  # noqa: ANN401  # ours, or torch's
        if self._made_handler is None:
            self._made_handler = handler_of(self._worker_group.spec)
        return self._made_handler

    def _run(self) -> RunResult:
        group, spec, handler = self._worker_group, self._worker_group.spec, self._handler
        self._begin_round()
        while True:
            WaitBudget().sleep(spec.monitor_interval)
            result = self._monitor_workers(group)
            group.state = result.state
            self._telling.looked(result.state)
            match result.state:
                case WorkerState.SUCCEEDED:
                    self._exit_barrier()
                    return result
                case WorkerState.FAILED | WorkerState.UNHEALTHY if self._remaining_restarts > 0:
                    _log.info("role %r %s: %d restarts left", spec.role, result.state.value, self._remaining_restarts)
                    self._remaining_restarts -= 1
                    self._restart()
                case WorkerState.FAILED | WorkerState.UNHEALTHY:
                    self._stop_workers(group)
                    group.state = WorkerState.FAILED
                    return result
                case WorkerState.HEALTHY:
                    if handler.num_nodes_waiting() > 0:
                        self._restart()
                case other:
                    raise ElasticError(f"the workers of role {spec.role!r} are in state {other.value}: lost track")

    def _restart(self) -> None:
        self._stop_workers(self._worker_group)
        self._worker_group.state = WorkerState.STOPPED
        self._begin_round()

    def _begin_round(self) -> None:
        """Form a round, and start the workers in it."""
        group, spec, handler = self._worker_group, self._worker_group.spec, self._handler
        with self.record_duration("RENDEZVOUS"):
            place = place_of(handler.next_rendezvous(), handler.get_backend())
        with self.record_duration("ASSIGN_WORKER_RANKS"):
            group.workers = assign_ranks(place, spec)
        group.master_addr, group.master_port = meet(place, spec, self._reserve_port)
        group.store = self._store = place.store
        group.group_rank, group.group_world_size = place.rank, place.world_size
        for local_rank, worker_id in self._start_workers(group).items():
            group.workers[local_rank].id = worker_id
        self._telling.started()
        group.state = WorkerState.HEALTHY

    def _reserve_port(self) -> int:
        from elastic_core.embedding import HeldPort

        if self._port is not None:
            self._port.close()
        self._port = HeldPort.reserve()
        return self._port.port

    def _exit_barrier(self) -> None:
        group = self._worker_group
        count = group.group_world_size or 1
        try:
            exit_barrier(self._store, count, timeout_s=self._exit_barrier_timeout)
        except Exception as error:
            if hasattr(error, "sigval"):  # stopped while it waits
                raise
            _log.warning("waiting for the other nodes' workers failed: %s: %s", type(error).__name__, error)


def _is_graceful(error: Exception) -> bool:
    """Return whether a handler, elastic-core's or torch's, reports that this node may leave."""
    return type(error).__name__ == "RendezvousGracefulExitError"
