"""The single steps of a local agent, for subclasses of `LocalElasticAgent` that override one of them."""

import os
import signal
import socket
from collections.abc import Mapping
from string import Template
from typing import Any, Final

from elastic_core.api import ConfigError
from elastic_torchrun.agent.worker_group import RunResult, Worker, WorkerGroup, WorkerState
from elastic_torchrun.agent.worker_spec import WorkerSpec
from elastic_torchrun.processes.context import PContext
from elastic_torchrun.processes.logs_specs import DefaultLogsSpecs
from elastic_torchrun.processes.start import start_processes

_MACRO: Final = "${local_rank}"
_DEVICES: Final = "CUDA_VISIBLE_DEVICES"
_HIP_DEVICES: Final = "HIP_VISIBLE_DEVICES"
"""If not empty, ROCm's source of device numbers. ROCm builds of torch reject two variables with different values."""


class LocalSteps:
    """The workers of one group as processes of this host.

    Args:
        logs_specs: Destination of their output. `None` means the console.
        start_method: How processes that call a function start.
        log_line_prefix_template: Prefix of each tee'd line.
    """

    def __init__(self, *, logs_specs: Any, start_method: str, log_line_prefix_template: str | None) -> None:  # noqa: ANN401
        """Start nothing yet."""
        self._logs_specs = DefaultLogsSpecs() if logs_specs is None else logs_specs
        self._start_method = start_method
        self._template = log_line_prefix_template
        self._context: PContext | None = None

    def start(self, group: WorkerGroup, handler: Any, *, restart_count: int) -> dict[int, Any]:  # noqa: ANN401
        """Start the workers of a group whose ranks are set, and return their pids by local rank."""
        spec = group.spec
        assert spec.entrypoint is not None
        self._context = start_processes(
            name=spec.role,
            entrypoint=spec.entrypoint,
            args={worker.local_rank: _filled(spec.args, worker.local_rank) for worker in group.workers},
            envs={
                worker.local_rank: worker_env(group, worker, handler, restart_count=restart_count)
                for worker in group.workers
            },
            logs_specs=self._logs_specs,
            log_line_prefixes=self._prefixes(group),
            start_method=self._start_method,
            numa_options=spec.numa_options,
            duplicate_stdout_filters=spec.duplicate_stdout_filters,
            duplicate_stderr_filters=spec.duplicate_stderr_filters,
        )
        return dict(self._context.pids())

    def monitor(self, group: WorkerGroup) -> RunResult:
        """Return the state of the workers."""
        result = None if self._context is None else self._context.wait(0)
        if result is None:
            return RunResult(state=WorkerState.HEALTHY)
        ranks = {worker.local_rank: worker.global_rank for worker in group.workers}
        if result.is_failed():
            failures = {ranks[rank]: failure for rank, failure in result.failures.items()}
            return RunResult(state=WorkerState.FAILED, failures=failures)
        values = {ranks[rank]: value for rank, value in result.return_values.items()}
        return RunResult(state=WorkerState.SUCCEEDED, return_values=values)

    def stop(self, death_sig: signal.Signals, timeout_s: float) -> None:
        """Stop all workers that exist; idempotent."""
        if self._context is not None:
            self._context.close(death_sig, timeout_s)

    def _prefixes(self, group: WorkerGroup) -> dict[int, str] | None:
        if self._template is None:
            return None
        fill, host = Template(self._template).safe_substitute, socket.gethostname()
        return {
            each.local_rank: fill(
                role_name=group.spec.role, rank=each.global_rank, local_rank=each.local_rank, hostname=host
            )
            for each in group.workers
        }


def worker_env(group: WorkerGroup, worker: Worker, handler: Any, *, restart_count: int) -> dict[str, str]:  # noqa: ANN401
    """Return the variables of a worker in addition to this process's: those that torch's agent sets."""
    spec = group.spec
    return {
        **_place(spec, worker.local_rank, os.environ),
        "RANK": str(worker.global_rank),
        "GROUP_RANK": str(group.group_rank),
        "ROLE_RANK": str(worker.role_rank),
        "ROLE_NAME": spec.role,
        "LOCAL_WORLD_SIZE": str(spec.local_world_size),
        "WORLD_SIZE": str(worker.world_size),
        "GROUP_WORLD_SIZE": str(group.group_world_size),
        "ROLE_WORLD_SIZE": str(worker.role_world_size),
        "MASTER_ADDR": str(group.master_addr),
        "MASTER_PORT": str(group.master_port),
        "TORCHELASTIC_RESTART_COUNT": str(restart_count),
        "TORCHELASTIC_MAX_RESTARTS": str(spec.max_restarts),
        "TORCHELASTIC_RUN_ID": handler.get_run_id(),
        "TORCHELASTIC_USE_AGENT_STORE": str(bool(handler.use_agent_store)),
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": os.environ.get("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1"),
    }


def _place(spec: WorkerSpec, local_rank: int, environ: Mapping[str, str]) -> dict[str, str]:
    if not spec.virtual_local_rank:
        return {"LOCAL_RANK": str(local_rank)}
    source = _HIP_DEVICES if environ.get(_HIP_DEVICES) else _DEVICES
    inherited = environ.get(source)
    devices = [str(rank) for rank in range(spec.local_world_size)] if inherited is None else inherited.split(",")
    if local_rank >= len(devices):
        what = f"virtual_local_rank gives each worker one device: {len(devices)} in {source}={inherited!r}"
        raise ConfigError(f"{what} for {spec.local_world_size} workers", hint=f"name more devices, or unset {source}")
    return {"LOCAL_RANK": "0", **dict.fromkeys((source, _DEVICES), devices[local_rank].strip())}


def _filled(args: tuple[Any, ...], rank: int) -> tuple[Any, ...]:
    return tuple(arg.replace(_MACRO, str(rank)) if isinstance(arg, str) else arg for arg in args)
