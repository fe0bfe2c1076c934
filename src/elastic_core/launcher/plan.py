"""The complete command and environment of each worker of a round."""

import os
from collections.abc import Mapping

from elastic_core.errors import ConfigError
from elastic_core.moments import LaunchChange
from elastic_core.options.settings import Entrypoint, RunSettings
from elastic_core.options.worker_options import WorkerSettings
from elastic_core.processes.spec import Place, WorkerLaunch, WorkerPaths, place_variables, without_agents_own
from elastic_core.types import HookSettings, Record, Round

MACRO = "${local_rank}"


class Attempt(Record, frozen=True, kw_only=True):
    """Values of a round that only the agent knows."""

    round: Round
    restart_count: int
    membership_changes: int
    incarnation: str
    node_id: str
    changes: tuple[LaunchChange, ...] = ()
    """Changes by hooks, by local rank, or empty. Their variables never override those of the launcher."""
    use_agent_store: bool = False

    def change(self, local_rank: int) -> LaunchChange:
        """Return the changes by hooks to one worker."""
        return self.changes[local_rank] if self.changes else LaunchChange()


def hook_settings(settings: RunSettings, run_dir: str, *, dry_run: bool = False) -> HookSettings:
    """Return the settings of every hook; the registry adds its name and its options, the run what only it knows."""
    return HookSettings(
        name="",
        run_id=settings.nodes.run_id,
        run_dir=run_dir,
        node_id=settings.nodes.node_id or os.uname().nodename,
        role=settings.nodes.role,
        backend=settings.nodes.backend,
        endpoint=settings.nodes.endpoint.rpartition("@")[2].partition("?")[0],  # a URL may contain secrets
        entry_point=settings.entrypoint.name,
        max_restarts=settings.restarts.max_restarts,
        policy=settings.restarts.name,
        max_membership_changes=settings.nodes.max_membership_changes,
        incarnation=settings.nodes.incarnation,
        local_world_size=settings.nodes.local_world_size,
        devices=settings.workers.devices,
        workers_run=_kind(settings.entrypoint),
        command=settings.entrypoint.argv,
        environment=without_agents_own(_common_environment(settings, os.environ)),
        may_restart=settings.nodes.max_nodes > 1 or settings.restarts.restart_budget != 0,
        dry_run=dry_run,
        debugging=settings.workers.debug_rank is not None,
        shutdown_timeout_s=settings.stops.shutdown_timeout_s,
        preemption_signal=settings.stops.preemption_signal,
    )


def _kind(entrypoint: Entrypoint) -> str:
    if entrypoint.function is not None:
        return "function"
    return "python" if entrypoint.python else "program"


def worker_plan(
    settings: RunSettings,
    attempt: Attempt,
    paths: Mapping[int, WorkerPaths],
    *,
    inherited: Mapping[str, str] | None = None,
) -> list[WorkerLaunch]:
    """Return the workers of this node in rank order.

    `paths` is by local rank. `inherited` is the environment on which theirs is based (default: this process's).
    """
    base = dict(os.environ if inherited is None else inherited)
    return [
        WorkerLaunch(
            local_rank=rank,
            global_rank=attempt.round.global_rank(rank),
            argv=_command(settings.entrypoint, attempt, rank),
            env=worker_environment(settings, attempt, rank, paths[rank], base),
            stdout=paths[rank].stdout,
            stderr=paths[rank].stderr,
            foreground=settings.workers.debug_rank == rank,
            function="" if settings.entrypoint.function is None else settings.entrypoint.function.name,
            cpus=attempt.change(rank).processors,
        )
        for rank in range(settings.nodes.local_world_size)
    ]


def _command(entrypoint: Entrypoint, attempt: Attempt, local_rank: int) -> tuple[str, ...]:
    command = tuple(arg.replace(MACRO, str(local_rank)) for arg in entrypoint.argv)
    # A function is called by a process of --start-method, which has no command.
    return command if entrypoint.function is not None else attempt.change(local_rank).command + command


def worker_environment(
    settings: RunSettings, attempt: Attempt, local_rank: int, paths: WorkerPaths, base: Mapping[str, str]
) -> dict[str, str]:
    """Return the environment of one worker: the variables of torch 2.13's elastic agent, and ours."""
    env = _common_environment(settings, {**base, **attempt.change(local_rank).environment})
    env |= _devices(settings.workers, settings.nodes.local_world_size, local_rank, base)
    place = Place(
        run_id=settings.nodes.run_id,
        node_id=attempt.node_id,
        incarnation=attempt.incarnation,
        max_restarts=settings.restarts.max_restarts,
        round=attempt.round,
        local_rank=local_rank,
        restart_count=attempt.restart_count,
        membership_changes=attempt.membership_changes,
        use_agent_store=attempt.use_agent_store,
        virtual_local_rank=settings.workers.virtual_local_rank,
        files=paths,
        hooks=settings.workers.worker_hooks,
        startup=attempt.change(local_rank).startup,
    )
    return without_agents_own(env) | place_variables(place)


def _common_environment(settings: RunSettings, env: Mapping[str, str]) -> dict[str, str]:
    # Adds the variables that all workers have in every round.
    common = {"TORCH_NCCL_ASYNC_ERROR_HANDLING": "1", **env}
    if settings.workers.omp_threads is not None:
        common["OMP_NUM_THREADS"] = str(settings.workers.omp_threads)
    return common


def _devices(workers: WorkerSettings, nproc: int, local_rank: int, base: Mapping[str, str]) -> dict[str, str]:
    # The visible-devices variables of one worker. Empty if no option needs them.
    variable = workers.device_variable
    # ROCm builds of torch read both, and reject two that differ.
    both = (variable, "CUDA_VISIBLE_DEVICES") if variable == "HIP_VISIBLE_DEVICES" else (variable,)
    if workers.virtual_local_rank:
        visible = workers.devices or _inherited_devices(base.get(variable), nproc)
        if len(visible) < nproc:
            raise ConfigError(
                f"--virtual-local-rank gives each worker one device: {len(visible)} in {variable} for {nproc} workers",
                hint="name more devices, or lower --nproc-per-node",
            )
        return dict.fromkeys(both, visible[local_rank])
    return dict.fromkeys(both, ",".join(workers.devices)) if workers.devices else {}


def _inherited_devices(value: str | None, count: int) -> tuple[str, ...]:
    if value is None:
        return tuple(str(n) for n in range(count))
    return tuple(part.strip() for part in value.split(",") if part.strip())
