"""What each worker of a round is started with: complete command and environment."""

import os
from collections.abc import Mapping

from elastic_core.errors import ConfigError
from elastic_core.options.settings import RunSettings
from elastic_core.types import HookSettings, LaunchChange, Record, Round
from elastic_core.workers.spec import StreamPlan, WorkerLaunch

MACRO = "${local_rank}"


class WorkerPaths(Record, frozen=True, kw_only=True):
    """The files of one worker in one round."""

    error_file: str
    fault_file: str
    beat_file: str = ""
    """What it beats into; empty: it is not asked to."""
    control_socket: str = ""
    """Where its control plane may listen; empty: nowhere."""
    timer_file: str = ""
    """The pipe to which it may write timers; empty: as inherited."""
    stdout: StreamPlan = StreamPlan()
    stderr: StreamPlan = StreamPlan()


class Attempt(Record, frozen=True, kw_only=True):
    """What the agent knows and the settings don't."""

    round: Round
    restart_count: int
    membership_changes: int
    incarnation: str
    node_id: str
    changes: tuple[LaunchChange, ...] = ()
    """What hooks change, by local rank, empty: nothing; their variables never replace what the launcher sets."""
    use_agent_store: bool = False

    def change(self, local_rank: int) -> LaunchChange:
        """Return what hooks change about one worker."""
        return self.changes[local_rank] if self.changes else LaunchChange()


def hook_settings(settings: RunSettings, run_dir: str) -> HookSettings:
    """Return what every hook is built with; the registry adds its name and its options."""
    return HookSettings(
        name="",
        run_id=settings.nodes.run_id,
        run_dir=run_dir,
        local_world_size=settings.nodes.local_world_size,
        devices=settings.workers.devices,
    )


def worker_plan(
    settings: RunSettings,
    attempt: Attempt,
    paths: Mapping[int, WorkerPaths],
    *,
    inherited: Mapping[str, str] | None = None,
) -> list[WorkerLaunch]:
    """Return the workers of this node in rank order.

    `paths` by local rank; `inherited` is the environment that workers start from (default: ours).
    """
    base = dict(os.environ if inherited is None else inherited)
    return [
        WorkerLaunch(
            local_rank=rank,
            global_rank=attempt.round.global_rank(rank),
            argv=_command(settings, attempt, rank),
            env=worker_environment(settings, attempt, rank, paths[rank], base),
            stdout=paths[rank].stdout,
            stderr=paths[rank].stderr,
            foreground=settings.workers.debug_rank == rank,
            function=settings.entrypoint.function,
            cpus=attempt.change(rank).processors,
        )
        for rank in range(settings.nodes.local_world_size)
    ]


def _command(settings: RunSettings, attempt: Attempt, local_rank: int) -> tuple[str, ...]:
    entrypoint = settings.entrypoint
    command = tuple(arg.replace(MACRO, str(local_rank)) for arg in entrypoint.argv)
    # What calls a function is a process of ours, begun as --start-method says: there is nothing to be put before.
    return command if entrypoint.function is not None else attempt.change(local_rank).command + command


def worker_environment(
    settings: RunSettings, attempt: Attempt, local_rank: int, paths: WorkerPaths, base: Mapping[str, str]
) -> dict[str, str]:
    """Return the environment of one worker: what torch 2.13's elastic agent sets, and ours."""
    round_ = attempt.round
    env = {**base, **attempt.change(local_rank).environment}
    env.setdefault("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1")
    if settings.workers.omp_threads is not None:
        env["OMP_NUM_THREADS"] = str(settings.workers.omp_threads)
    env |= _devices(settings, local_rank, base)
    env |= {
        "LOCAL_RANK": "0" if settings.workers.virtual_local_rank else str(local_rank),
        "RANK": str(round_.global_rank(local_rank)),
        "GROUP_RANK": str(round_.node_rank),
        "ROLE_RANK": str(round_.role_base_rank + local_rank),
        "ROLE_NAME": round_.role,
        "LOCAL_WORLD_SIZE": str(round_.local_world_size),
        "WORLD_SIZE": str(round_.world_size),
        "GROUP_WORLD_SIZE": str(round_.node_count),
        "ROLE_WORLD_SIZE": str(round_.role_world_size),
        "MASTER_ADDR": round_.master_addr,
        "MASTER_PORT": str(round_.master_port),
        "TORCHELASTIC_RESTART_COUNT": str(attempt.restart_count),
        "TORCHELASTIC_MAX_RESTARTS": str(settings.restarts.max_restarts),
        "TORCHELASTIC_RUN_ID": settings.nodes.run_id,
        "TORCHELASTIC_USE_AGENT_STORE": str(attempt.use_agent_store),
        "TORCHELASTIC_ERROR_FILE": paths.error_file,
        "ELASTIC_ROUND": str(round_.index),
        "ELASTIC_MEMBERSHIP_CHANGES": str(attempt.membership_changes),
        "ELASTIC_NODE_ID": attempt.node_id,
        "ELASTIC_INCARNATION": attempt.incarnation,
    }
    env.pop("ELASTIC_WORKER_HOOKS", None)
    env.pop("ELASTIC_FAULT_FILE", None)
    env.pop("ELASTIC_BEAT_FILE", None)
    env.pop("ELASTIC_KEEP", None)  # for what a worker starts: ours would make all that it starts stay
    if paths.beat_file:
        env["ELASTIC_BEAT_FILE"] = paths.beat_file
    if paths.timer_file:
        env["TORCHELASTIC_TIMER_FILE"] = paths.timer_file
    if paths.control_socket:
        env.setdefault("TORCH_WORKER_SERVER_SOCKET", paths.control_socket)  # a user's own choice stands
    if settings.workers.worker_hooks and settings.entrypoint.python:
        env |= {"ELASTIC_WORKER_HOOKS": "1", "ELASTIC_FAULT_FILE": paths.fault_file}
    return env


def _devices(settings: RunSettings, local_rank: int, base: Mapping[str, str]) -> dict[str, str]:
    """Return the visible-devices variable of one worker, empty where nothing was asked for."""
    variable = settings.workers.device_variable
    if settings.workers.virtual_local_rank:
        visible = settings.workers.devices or _inherited_devices(base.get(variable), settings.nodes.local_world_size)
        if len(visible) < settings.nodes.local_world_size:
            raise ConfigError(
                f"--virtual-local-rank gives each worker one device: {len(visible)} in {variable} for "
                f"{settings.nodes.local_world_size} workers",
                hint="name more devices, or lower --nproc-per-node",
            )
        return {variable: visible[local_rank]}
    return {variable: ",".join(settings.workers.devices)} if settings.workers.devices else {}


def _inherited_devices(value: str | None, count: int) -> tuple[str, ...]:
    if value is None:
        return tuple(str(n) for n in range(count))
    return tuple(part.strip() for part in value.split(",") if part.strip())
