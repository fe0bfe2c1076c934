"""A set of workers for a program that is not an agent: torch's `PContext`."""

import os
import signal
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any

from elastic_torchrun.processes.logs_specs import DefaultLogsSpecs, LogsDest, LogsSpecs
from elastic_torchrun.processes.run_result import RunProcsResult


class PContext(ABC):
    """Workers that are started, waited for and stopped together.

    Args:
        name: Name of the workers, for people.
        entrypoint: A function, or a program.
        args: Arguments of each worker, by local rank. For a program, each is converted to text.
        envs: Variables of each worker in addition to this process's, by local rank; not changed.
        logs_specs: Destination of their output.
        log_line_prefixes: Prefix of each tee'd line, by local rank; default `[<name><local rank>]:`.
        duplicate_stdout_filters: Lines of tee'd stdout that contain one of these are copied to a file of all workers.
        duplicate_stderr_filters: The same for stderr.

    Threading: any thread. On the main thread, signals interrupt the waiting caller.
    """

    def __init__(
        self,
        name: str,
        entrypoint: Callable[..., Any] | str,
        args: Mapping[int, tuple[Any, ...]],
        envs: Mapping[int, Mapping[str, str]],
        logs_specs: LogsSpecs,
        log_line_prefixes: Mapping[int, str] | None = None,
        duplicate_stdout_filters: list[str] | None = None,
        duplicate_stderr_filters: list[str] | None = None,
    ) -> None:
        """Prepare the destinations of output; start nothing yet."""
        self.name = name
        self.nprocs = len(args)
        validate_full_rank(args, self.nprocs, "args")
        validate_full_rank(envs, self.nprocs, "envs")
        self.entrypoint = entrypoint
        self.args = dict(args)
        self.envs = {rank: dict(env) for rank, env in envs.items()}
        self.logs_dest: LogsDest = logs_specs.reify(self.envs)
        validate_full_rank(self.logs_dest.stdouts, self.nprocs, "stdouts")
        validate_full_rank(self.logs_dest.stderrs, self.nprocs, "stderrs")
        self.stdouts, self.stderrs = self.logs_dest.stdouts, self.logs_dest.stderrs
        self.error_files = self.logs_dest.error_files
        self.log_line_prefixes = dict(log_line_prefixes or {})
        self.duplicate_stdout_filters = tuple(duplicate_stdout_filters or ())
        self.duplicate_stderr_filters = tuple(duplicate_stderr_filters or ())
        self._logs_specs = logs_specs

    @abstractmethod
    def start(self) -> None:
        """Start the workers.

        Raises:
            FileNotFoundError: there is no such program.
            WorkerError: a worker could not be started; none is left.
            ValueError: they were started before.
        """

    @abstractmethod
    def wait(self, timeout: float = -1, period: float = 1) -> RunProcsResult | None:
        """Wait until all have succeeded, or one has failed and the others are stopped.

        Args:
            timeout: Seconds at most; 0 means no wait; negative means no limit.
            period: Torch's parameter, without effect: the kernel notifies this process when a worker ends.

        Returns:
            The workers' results. `None` if they still run.

        Raises:
            SignalException: a signal stopped this process. The workers run on until `close`.
            WorkerError: the result of a function can't be loaded here.
        """

    @abstractmethod
    def close(self, death_sig: signal.Signals | None = None, timeout: float = 30) -> None:
        """Stop running workers, and release everything; idempotent.

        Args:
            death_sig: The signal that stops workers. `None` means SIGTERM.
            timeout: Seconds until SIGKILL.
        """

    @abstractmethod
    def pids(self) -> dict[int, int]:
        """Return the workers' processes by local rank."""

    def discard_empty_logs(self) -> None:
        """Remove empty files for logs and errors. Called: when all workers have ended."""
        if isinstance(self._logs_specs, DefaultLogsSpecs):
            self._logs_specs.discard_empty()

    def keeps_errors(self, local_rank: int) -> bool:
        """Return whether this worker has an error file."""
        return self.error_files.get(local_rank, "") not in ("", os.devnull)


def validate_full_rank(by_rank: Mapping[int, object], nprocs: int, what: str) -> None:
    """Check that there is a value for exactly the local ranks from 0 up.

    Raises:
        RuntimeError: as in torch.
    """
    if set(by_rank) != set(range(nprocs)):
        needed = f"0 to {nprocs - 1}" if nprocs else "none"
        raise RuntimeError(f"{what}: local rank mapping mismatch: has {sorted(by_rank)}; expected {needed}")
