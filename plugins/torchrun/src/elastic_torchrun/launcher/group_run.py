"""The arguments of torch's `LocalElasticAgent` as a run of elastic-core's agent."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final

from msgspec.structs import replace

from elastic_core.api import RendezvousHandler, RendezvousSettings, Round
from elastic_core.embedding import Backend, Injected, RunOutcome, RunSettings
from elastic_torchrun.agent.worker_group import RunResult, Worker, WorkerGroup, WorkerState
from elastic_torchrun.hosting.hosted import HostedRendezvous
from elastic_torchrun.launcher.entrypoints import entry_of
from elastic_torchrun.launcher.library_options import library_environment
from elastic_torchrun.launcher.library_run import HealthServer, run_for_caller
from elastic_torchrun.launcher.run_settings import brings_logs, settings_of_spec

MOST_NODES = 1 << 16
"""The number of nodes if a handler does not return it; its rounds are then correct as they are."""

_UNINTERRUPTIBLE: Final = "uninterruptible_timeout"


def run_group(
    group: WorkerGroup,
    *,
    logs_specs: Any,  # noqa: ANN401  # ours, torch's, or any with its methods
    start_method: str,
    exit_barrier_timeout_s: float,
    log_line_prefix_template: str | None,
    shutdown_timeout_s: float,
    health_check_server: HealthServer | None,
    uninterruptible_timeout_s: float | None,
) -> RunResult:
    """Run the workers of a group to the end. Afterwards the group has their ranks and its state.

    Raises:
        SignalException: a signal stopped the run.
        ElasticError: the run could not begin, or failed for another reason than a worker.
    """
    spec = group.spec
    entry = entry_of(spec.entrypoint, spec.args, start_method=start_method, environ=library_environment())
    settings = settings_of_spec(spec, entry, logs_specs=logs_specs)
    settings = replace(
        settings,
        output=replace(settings.output, log_line_prefix_template=log_line_prefix_template),
        stops=replace(settings.stops, shutdown_timeout_s=float(shutdown_timeout_s)),
    )
    if uninterruptible_timeout_s is not None:
        options = {name: value for name, value in settings.hook_options.items() if name != _UNINTERRUPTIBLE}
        own = {_UNINTERRUPTIBLE: uninterruptible_timeout_s} if uninterruptible_timeout_s > 0 else {}
        settings = replace(settings, hook_options={**options, **own})
    handler = spec.rdzv_handler
    injected = Injected(
        rendezvous=None if handler is None else partial(_handler, handler, barrier_s=exit_barrier_timeout_s),
        logs_specs=logs_specs if brings_logs(logs_specs) else None,
    )
    if handler is not None:
        settings = _placed(settings, handler)
    group.state = WorkerState.HEALTHY
    try:
        result = run_for_caller(settings, injected, _GroupOutcome(group), health_check_server=health_check_server)
    except Exception:
        group.state = WorkerState.FAILED
        raise
    group.state = result.state
    return result


class _GroupOutcome(RunOutcome):
    """Keeps torch's `WorkerGroup` up to date, for code that reads it from another thread."""

    def __init__(self, group: WorkerGroup) -> None:
        super().__init__()
        self._group = group

    def begin_round(self, round_: Round, error_files: Mapping[int, str]) -> None:
        super().begin_round(round_, error_files)
        group = self._group
        group.workers = [
            Worker(
                local_rank=rank,
                global_rank=round_.global_rank(rank),
                role_rank=round_.role_base_rank + rank,
                world_size=round_.world_size,
                role_world_size=round_.role_world_size,
            )
            for rank in range(round_.local_world_size)
        ]
        group.group_rank, group.group_world_size = round_.node_rank, round_.node_count
        group.master_addr, group.master_port = round_.master_addr, round_.master_port


def _placed(settings: RunSettings, handler: Any) -> RunSettings:  # noqa: ANN401  # ours, or torch's
    """Return the settings with the handler's values for the run."""
    own = getattr(handler, "settings", None)
    nodes = replace(
        settings.nodes,
        run_id=handler.get_run_id(),
        backend=handler.get_backend(),
        endpoint=getattr(own, "endpoint", ""),
        min_nodes=getattr(own, "min_nodes", 1),
        max_nodes=getattr(own, "max_nodes", MOST_NODES),
    )
    return replace(settings, nodes=nodes)


def _handler(handler: Any, settings: RendezvousSettings, *, barrier_s: float) -> Backend:  # noqa: ANN401
    """Return a backend for the agent: elastic-core's with the run's settings, or an adapter for torch's handler."""
    adopt: Callable[[RendezvousSettings], Backend] | None = getattr(handler, "adopt", None)
    if isinstance(handler, RendezvousHandler) and adopt is not None:  # it was made of torch's parameters
        return adopt(settings)
    if isinstance(handler, RendezvousHandler) and hasattr(handler, "settings"):
        handler.settings = replace(
            handler.settings,
            local_world_size=settings.local_world_size,
            role=settings.role,
            incarnation=settings.incarnation,
            monitor_interval_s=settings.monitor_interval_s,
            local_addr=handler.settings.local_addr or settings.local_addr,
            agent_port=handler.settings.agent_port or settings.agent_port,
            fingerprint=handler.settings.fingerprint or settings.fingerprint,
            allow_mismatch=handler.settings.allow_mismatch or settings.allow_mismatch,
        )
        return handler
    return HostedRendezvous(settings, conf={}, create=lambda _: handler, label="in code", barrier_s=barrier_s)
