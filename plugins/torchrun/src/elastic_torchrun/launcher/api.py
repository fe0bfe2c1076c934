"""Runs from Python: torch's `elastic_launch` and `launch_agent`, and `launch`, which needs no config object."""

import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from elastic_core.embedding import Entrypoint, Injected, RunSettings
from elastic_torchrun.launcher.entrypoints import entry_of, friendly_entry
from elastic_torchrun.launcher.launch_config import LaunchConfig
from elastic_torchrun.launcher.library_options import library_environment
from elastic_torchrun.launcher.library_run import HealthServer, run_for_caller
from elastic_torchrun.launcher.run_settings import brings_logs, settings_of_config, settings_of_options

if TYPE_CHECKING:
    from elastic_torchrun.agent.worker_group import RunResult

__all__ = ["LaunchConfig", "elastic_launch", "launch", "launch_agent"]


class elastic_launch:
    """Runs a function or a program as the workers of this node: `elastic_launch(config, train)(lr)`.

    Args:
        config: The run's settings; it is not changed.
        entrypoint: A function, or a program. The call's arguments are passed to it.
        health_check_server: A running server, which is stopped at the end. `None` means
            `TORCHELASTIC_HEALTH_CHECK_PORT` decides.
    """

    def __init__(
        self,
        config: LaunchConfig,
        entrypoint: Callable[..., Any] | str | None,
        health_check_server: HealthServer | None = None,
    ) -> None:
        """Run nothing yet."""
        self._config = config
        self._entrypoint = entrypoint
        self._health_check_server = health_check_server

    def __call__(self, *args: Any) -> dict[int, Any]:  # noqa: ANN401  # whatever the function takes
        """Run to the end, as `launch_agent` does."""
        return launch_agent(self._config, self._entrypoint, list(args), health_check_server=self._health_check_server)


def launch_agent(
    config: LaunchConfig,
    entrypoint: Callable[..., Any] | str | None,
    args: list[Any],
    health_check_server: HealthServer | None = None,
) -> dict[int, Any]:
    """Run to the end, restarts included. Return the results of this node's workers, by global rank.

    Args:
        config: The run's settings; it is not changed.
        entrypoint: A function, or a program.
        args: Arguments of the function or the program. `${local_rank}` in a text is replaced by the worker's.
        health_check_server: A running server, which is stopped at the end. `None` means
            `TORCHELASTIC_HEALTH_CHECK_PORT` decides.

    Raises:
        ChildFailedError: a worker failed, here or on another node, and no restart was left.
        SignalException: a signal stopped the run.
        RendezvousError: no round could be formed.
        ConfigError: the run can't be started with these settings.
    """
    entry = entry_of(entrypoint, args, start_method=config.start_method, environ=library_environment())
    logs_specs = config.logs_specs if brings_logs(config.logs_specs) else None
    injected = Injected(logs_specs=logs_specs)
    settings = settings_of_config(config, entry)
    return _values(run_for_caller(settings, injected, health_check_server=health_check_server), entry)


def launch(
    entrypoint: Callable[..., Any] | str | os.PathLike[str] | Sequence[str],
    args: Sequence[Any] = (),
    *,
    start_method: str = "spawn",
    logs_specs: Any = None,  # noqa: ANN401  # ours, torch's, or any with its methods
    health_check_server: HealthServer | None = None,
    **options: Any,  # noqa: ANN401  # as many kinds as there are options
) -> dict[int, Any]:
    """Run to the end. Return the results of this node's workers, by global rank (`None` for programs).

    Args:
        entrypoint: A function, the path of a Python script, a program, or a list of a program and its arguments.
        args: Arguments of the function, the script or the program.
        start_method: How processes that call a function start: `spawn`, `fork` or `forkserver`.
        logs_specs: Destination of workers' output, in place of `log_dir`, `redirects` and `tee`.
        health_check_server: As for `launch_agent`.
        options: The options of `elastic run`, with underscores: `nproc_per_node=4`, `max_restarts=3`,
            `nnodes="1:4"`, `rdzv_backend="redis"`. With `log_dir` alone, output goes to files there and to the console.

    Raises:
        ChildFailedError: a worker failed, here or on another node, and no restart was left.
        SignalException: a signal stopped the run.
        RendezvousError: no round could be formed.
        ConfigError: there is no such option, or the run can't be started with these options.
    """
    entry = friendly_entry(entrypoint, args, start_method=start_method, environ=library_environment())
    settings: RunSettings = settings_of_options(options, entry)
    injected = Injected(logs_specs=logs_specs)
    return _values(run_for_caller(settings, injected, health_check_server=health_check_server), entry)


def _values(result: "RunResult", entry: Entrypoint) -> dict[int, Any]:
    if result.is_failed():
        from elastic_torchrun.processes.child_failed import ChildFailedError

        raise ChildFailedError(name=entry.name, failures=result.failures)
    return result.return_values
