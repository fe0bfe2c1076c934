"""A set of workers in the hands of a program that is no agent: torch's `PContext`."""

import os
import signal
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any

from elastic_torchrun.processes.logs_specs import DefaultLogsSpecs, LogsDest, LogsSpecs
from elastic_torchrun.processes.run_result import RunProcsResult


class PContext(ABC):
    """Workers that were started together, and are waited for and stopped together.

    Args:
        name: What the workers are, for people.
        entrypoint: A function, or a program.
        args: For each worker, by local rank; of a program each is turned into text.
        envs: What each worker's environment has beyond this process's, by local rank; left as it is.
        logs_specs: Says where their output goes.
        log_line_prefixes: What stands before each tee'd line, by local rank; `[<name><local rank>]:` where none is.
        duplicate_stdout_filters: Lines of tee'd stdout with one of these are copied to a file of all workers.
        duplicate_stderr_filters: The same of stderr.

    Threading: any thread; on the main thread, signals reach who waits.
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
        """Say where output will go; start nothing yet."""
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
        """Wait until all have ended well, or one has failed and the others are stopped.

        Args:
            timeout: Seconds at most; 0: only look; negative: for ever.
            period: Without effect: the kernel tells when a worker ends. It is torch's.

        Returns:
            What came of them; None: they run on.

        Raises:
            SignalException: this process was asked to end. The workers run on, for `close`.
            WorkerError: what a function returned can't be loaded here.
        """

    @abstractmethod
    def close(self, death_sig: signal.Signals | None = None, timeout: float = 30) -> None:
        """Stop what still runs, and give everything back; idempotent.

        Args:
            death_sig: What the workers are asked to end with; None: SIGTERM.
            timeout: Seconds until SIGKILL.
        """

    @abstractmethod
    def pids(self) -> dict[int, int]:
        """Return the workers' processes by local rank."""

    def discard_empty_logs(self) -> None:
        """Remove what was made for logs and errors that never came. Called: when all workers have ended."""
        if isinstance(self._logs_specs, DefaultLogsSpecs):
            self._logs_specs.discard_empty()

    def keeps_errors(self, local_rank: int) -> bool:
        """Return whether this worker has a file to record its error in."""
        return self.error_files.get(local_rank, "") not in ("", os.devnull)


def validate_full_rank(by_rank: Mapping[int, object], nprocs: int, what: str) -> None:
    """Refuse what is not there for exactly the local ranks from 0 up.

    Raises:
        RuntimeError: as torch has it.
    """
    if set(by_rank) != set(range(nprocs)):
        needed = f"0 to {nprocs - 1}" if nprocs else "none"
        raise RuntimeError(f"{what}: local rank mapping mismatch: has {sorted(by_rank)}; expected {needed}")
