"""Start of workers from Python: torch's `start_processes`."""

from collections.abc import Callable, Mapping
from typing import Any

from elastic_torchrun.processes.context import PContext
from elastic_torchrun.processes.group_context import MultiprocessContext, SubprocessContext
from elastic_torchrun.processes.logs_specs import LogsSpecs


def start_processes(
    name: str,
    entrypoint: Callable[..., Any] | str,
    args: Mapping[int, tuple[Any, ...]],
    envs: Mapping[int, Mapping[str, str]],
    logs_specs: LogsSpecs,
    log_line_prefixes: Mapping[int, str] | None = None,
    start_method: str = "spawn",
    numa_options: object = None,
    duplicate_stdout_filters: list[str] | None = None,
    duplicate_stderr_filters: list[str] | None = None,
) -> PContext:
    """Start one worker for each local rank in `args`. Return the object to wait for them and stop them.

    Args:
        name: Name of the workers, for people, and in the prefix of tee'd lines.
        entrypoint: A function, or a program.
        args: Arguments of each worker, by local rank from 0. For a program, each is converted to text.
        envs: Variables of each worker in addition to this process's, for the same local ranks; not changed.
        logs_specs: Destination of output, and of recorded errors.
        log_line_prefixes: Prefix of each tee'd line, in place of `[<name><local rank>]:`.
        start_method: How processes that call a function start: `spawn`, `fork` or `forkserver`.
        numa_options: Binding of workers to processors (`elastic_numa.NumaOptions`). `None` means no binding.
        duplicate_stdout_filters: Lines of tee'd stdout that contain one of these are copied to `filtered_stdout.log`.
        duplicate_stderr_filters: The same for stderr.

    Raises:
        RuntimeError: `args` and `envs` are not for exactly the local ranks from 0 up.
        FileNotFoundError: there is no such program.
        WorkerError: a worker could not be started, or its function or arguments can't be sent to it.
        ConfigError: this is a worker that imports its caller's main module, which has no guard.
    """
    context: PContext
    if isinstance(entrypoint, str):
        context = SubprocessContext(
            name=name,
            entrypoint=entrypoint,
            args=args,
            envs=envs,
            logs_specs=logs_specs,
            log_line_prefixes=log_line_prefixes,
            numa_options=numa_options,
            duplicate_stdout_filters=duplicate_stdout_filters,
            duplicate_stderr_filters=duplicate_stderr_filters,
        )
    else:
        context = MultiprocessContext(
            name=name,
            entrypoint=entrypoint,
            args=args,
            envs=envs,
            start_method=start_method,
            logs_specs=logs_specs,
            log_line_prefixes=log_line_prefixes,
            numa_options=numa_options,
            duplicate_stdout_filters=duplicate_stdout_filters,
            duplicate_stderr_filters=duplicate_stderr_filters,
        )
    context.start()
    return context
