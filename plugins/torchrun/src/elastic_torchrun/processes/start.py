"""Starts workers from Python: torch's `start_processes`."""

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
    """Start one worker for each local rank in `args`, and return them.

    Args:
        name: What the workers are, for people: it stands before tee'd lines.
        entrypoint: A function, or a program.
        args: For each worker, by local rank from 0 up; of a program each is turned into text.
        envs: What each worker's environment has beyond this process's, for the same local ranks; left as it is.
        logs_specs: Says where output goes, and errors are recorded.
        log_line_prefixes: What stands before each tee'd line in place of `[<name><local rank>]:`.
        start_method: How processes that call a function begin: `spawn`, `fork` or `forkserver`.
        numa_options: Binds workers to processors (`elastic_numa.NumaOptions`); None: they may run anywhere.
        duplicate_stdout_filters: Lines of tee'd stdout with one of these are copied to `filtered_stdout.log`.
        duplicate_stderr_filters: The same of stderr.

    Raises:
        RuntimeError: `args` and `envs` are not for exactly the local ranks from 0 up.
        FileNotFoundError: there is no such program.
        WorkerError: a worker could not be started, or its function or arguments can't be sent to it.
        ConfigError: a worker that imports its caller's main module came here: that has no guard.
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
