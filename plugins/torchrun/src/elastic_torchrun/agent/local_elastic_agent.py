"""The agent of `elastic run`, behind torch's `LocalElasticAgent`."""

import signal
from typing import TYPE_CHECKING, Any

from elastic_torchrun.agent.simple_elastic_agent import SimpleElasticAgent
from elastic_torchrun.agent.worker_group import RunResult, WorkerGroup
from elastic_torchrun.agent.worker_spec import DEFAULT_ROLE, WorkerSpec

if TYPE_CHECKING:
    from elastic_torchrun.agent.local_steps import LocalSteps

_HOOKS = ("_start_workers", "_stop_workers", "_monitor_workers", "_shutdown")


class LocalElasticAgent(SimpleElasticAgent):
    """Runs the workers of this node as `elastic run` does: its guard, its stop ladder, its reports, its one decision.

    Args:
        spec: The workers. A handler of ours and one that was written for torch do alike.
        logs_specs: Where workers' output goes; None: to the console.
        start_method: How processes that call a function begin: `spawn`, `fork` or `forkserver`.
        exit_barrier_timeout: Seconds to wait for the other nodes' workers at the end, with a handler that was written
            for torch. With ours the end of the run is told, and waited for.
        log_line_prefix_template: What stands before each tee'd line: `${role_name}`, `${rank}`, `${local_rank}`.
        shutdown_timeout: Seconds from SIGTERM to SIGKILL.
        health_check_server: Runs already, and is stopped at the end; None: as `TORCHELASTIC_HEALTH_CHECK_PORT` says.
        uninterruptible_state_timeout: A worker that is this long in uninterruptible sleep fails the run; 0: never;
            None: `TORCHELASTIC_UNINTERRUPTIBLE_STATE_TIMEOUT`.

    A subclass that overrides a hook of `SimpleElasticAgent` gets that class's loop, in which hooks are called, and not
    the one of `elastic run`: health checks and the watch for uninterruptible sleep are its own business then.
    """

    def __init__(
        self,
        spec: WorkerSpec,
        logs_specs: Any = None,  # noqa: ANN401  # ours, torch's, or any with its methods
        start_method: str = "spawn",
        exit_barrier_timeout: float = 300,
        log_line_prefix_template: str | None = None,
        shutdown_timeout: int = 30,
        health_check_server: Any = None,  # noqa: ANN401  # ours, or torch's
        uninterruptible_state_timeout: float | None = None,
    ) -> None:
        super().__init__(spec, exit_barrier_timeout, shutdown_timeout)
        self._logs_specs = logs_specs
        self._start_method = start_method
        self._log_line_prefix_template = log_line_prefix_template
        self._health_check_server = health_check_server
        self._uninterruptible_state_timeout = uninterruptible_state_timeout
        self._steps: LocalSteps | None = None

    def run(self, role: str = DEFAULT_ROLE) -> RunResult:
        """Run to the end, restarts included, and return what came of it.

        Threading: the caller's; signals are only taken on the main thread.

        Raises:
            SignalException: the run was told to stop by a signal.
            RendezvousError: no round could be formed.
            ElasticError: the run could not begin, or failed of something else than a worker.
        """
        if any(getattr(type(self), name) is not getattr(LocalElasticAgent, name) for name in _HOOKS):
            return super().run(role)
        from elastic_torchrun.launcher.group_run import run_group  # which needs what this room has

        return run_group(
            self._worker_group,
            logs_specs=self._logs_specs,
            start_method=self._start_method,
            exit_barrier_timeout_s=self._exit_barrier_timeout,
            log_line_prefix_template=self._log_line_prefix_template,
            shutdown_timeout_s=self._shutdown_timeout,
            health_check_server=self._health_check_server,
            uninterruptible_timeout_s=self._uninterruptible_state_timeout,
        )

    @property
    def _local(self) -> "LocalSteps":
        if self._steps is None:
            from elastic_torchrun.agent.local_steps import LocalSteps  # for subclasses only

            self._steps = LocalSteps(
                logs_specs=self._logs_specs,
                start_method=self._start_method,
                log_line_prefix_template=self._log_line_prefix_template,
            )
        return self._steps

    def _start_workers(self, worker_group: WorkerGroup) -> dict[int, Any]:
        """Start the workers as processes, and return their pids by local rank."""
        restarts = worker_group.spec.max_restarts - self._remaining_restarts
        return self._local.start(worker_group, self._handler, restart_count=restarts)

    def _stop_workers(self, worker_group: WorkerGroup) -> None:
        """Stop the workers within the time that they have."""
        self._local.stop(signal.SIGTERM, self._shutdown_timeout)

    def _monitor_workers(self, worker_group: WorkerGroup) -> RunResult:
        """Return how the workers are."""
        return self._local.monitor(worker_group)

    def _shutdown(self, death_sig: signal.Signals = signal.SIGTERM, timeout: int = 30) -> None:
        """Stop the workers, and the health check server."""
        if self._health_check_server is not None:
            self._health_check_server.stop()
        self._local.stop(death_sig, timeout)
