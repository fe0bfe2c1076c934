"""Torch's `LocalElasticAgent`, which runs the agent of `elastic run`."""

import signal
from typing import TYPE_CHECKING, Any

from elastic_torchrun.agent.simple_elastic_agent import SimpleElasticAgent
from elastic_torchrun.agent.worker_group import RunResult, WorkerGroup
from elastic_torchrun.agent.worker_spec import DEFAULT_ROLE, WorkerSpec

if TYPE_CHECKING:
    from elastic_torchrun.agent.local_steps import LocalSteps

_HOOKS = ("_start_workers", "_stop_workers", "_monitor_workers", "_shutdown")


class LocalElasticAgent(SimpleElasticAgent):
    """Runs the workers of this node as `elastic run` does, with its guard, stop sequence, reports and decisions.

    Args:
        spec: The workers. Its rendezvous handler may be elastic-core's or one written for torch.
        logs_specs: Destination of workers' output. `None` means the console.
        start_method: How processes that call a function start: `spawn`, `fork` or `forkserver`.
        exit_barrier_timeout: Seconds to wait for the other nodes' workers at the end, with a handler that was written
            for torch. With elastic-core's handlers the nodes agree on the end of the run instead.
        log_line_prefix_template: Prefix of each tee'd line: `${role_name}`, `${rank}`, `${local_rank}`.
        shutdown_timeout: Seconds from SIGTERM to SIGKILL.
        health_check_server: A running server, which is stopped at the end. `None` means
            `TORCHELASTIC_HEALTH_CHECK_PORT` decides.
        uninterruptible_state_timeout: Seconds in uninterruptible sleep after which a worker fails the run; 0 means
            no limit. `None` means `TORCHELASTIC_UNINTERRUPTIBLE_STATE_TIMEOUT`.

    If a subclass overrides a hook of `SimpleElasticAgent`, that class's loop runs, which calls the hooks, and not the
    loop of `elastic run`. The subclass must then do health checks and the check for uninterruptible sleep itself.
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
        """Run all rounds, restarts included, and return the result.

        Threading: the caller's; signals are handled on the main thread only.

        Raises:
            SignalException: a signal stopped the run.
            RendezvousError: no round could be formed.
            ElasticError: the run could not begin, or failed for another reason than a worker.
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
        """Stop the workers within their time limit."""
        self._local.stop(signal.SIGTERM, self._shutdown_timeout)

    def _monitor_workers(self, worker_group: WorkerGroup) -> RunResult:
        """Return the state of the workers."""
        return self._local.monitor(worker_group)

    def _shutdown(self, death_sig: signal.Signals = signal.SIGTERM, timeout: int = 30) -> None:
        """Stop the workers, and the health check server."""
        if self._health_check_server is not None:
            self._health_check_server.stop()
        self._local.stop(death_sig, timeout)
