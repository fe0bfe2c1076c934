"""The two kinds of `PContext`: for a function, and for a program."""

import atexit
import logging
import os
import signal
import sys
from abc import abstractmethod
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from elastic_core.api import ConfigError
from elastic_core.api.workers import WorkerError
from elastic_core.embedding import StreamPlan, WorkerLaunch
from elastic_torchrun.functions.call import FunctionCall
from elastic_torchrun.processes.binding import cpus_for
from elastic_torchrun.processes.context import PContext
from elastic_torchrun.processes.logs_specs import LogsSpecs, plan_of
from elastic_torchrun.processes.run_result import RunProcsResult
from elastic_torchrun.processes.signals import SignalWatch, wait_for
from elastic_torchrun.processes.supervised import SupervisedWorkers

if TYPE_CHECKING:
    from elastic_torchrun.processes.process_failure import ProcessFailure

LOG = logging.getLogger(__name__)

_AGENTS_OWN = ("ELASTIC_FAULT_FILE", "ELASTIC_WORKER_HOOKS", "ELASTIC_KEEP")
"""Variables that this process may have from its own agent, and must not pass to its workers."""


class GroupContext(PContext):
    """Workers under the agent's supervision: stop sequence, process groups, output without polling."""

    def __init__(
        self,
        name: str,
        entrypoint: Callable[..., Any] | str,
        args: Mapping[int, tuple[Any, ...]],
        envs: Mapping[int, Mapping[str, str]],
        logs_specs: LogsSpecs,
        log_line_prefixes: Mapping[int, str] | None = None,
        numa_options: object = None,
        duplicate_stdout_filters: list[str] | None = None,
        duplicate_stderr_filters: list[str] | None = None,
    ) -> None:
        """Start nothing yet; `numa_options` (`elastic_numa.NumaOptions`) bind workers to processors."""
        super().__init__(
            name,
            entrypoint,
            args,
            envs,
            logs_specs,
            log_line_prefixes,
            duplicate_stdout_filters,
            duplicate_stderr_filters,
        )
        self._numa_options = numa_options
        self._signals = SignalWatch()
        self._workers: SupervisedWorkers | None = None
        self._result: RunProcsResult | None = None
        self._pid = os.getpid()

    @abstractmethod
    def _make_workers(self) -> SupervisedWorkers:
        """Return the supervisor of the workers; nothing is started yet."""

    @abstractmethod
    def _command(self, local_rank: int) -> tuple[str, ...]:
        """Return one worker's command."""

    def _release(self) -> None:
        """Release the objects that `_make_workers` took."""

    def start(self) -> None:
        """As in `PContext`."""
        if self._workers is not None:
            raise ValueError("the workers of this context were started before")
        self._pid = os.getpid()
        # First, for what forks this process; the thread that supervises comes after.
        self._workers = self._make_workers()
        self._signals.begin()
        atexit.register(self.close)  # no worker outlives a caller that forgets it
        try:
            self._workers.start([self._launch(rank) for rank in range(self.nprocs)])
        except BaseException as error:
            self._end()
            if isinstance(error, WorkerError) and isinstance(error.__cause__, FileNotFoundError):
                # As with torch, by its class; the text is ours.
                raise FileNotFoundError(error.__cause__.errno, str(error)) from error
            raise

    def _launch(self, rank: int) -> WorkerLaunch:
        assert self._workers is not None
        env = {name: value for name, value in os.environ.items() if name not in _AGENTS_OWN}
        env |= {**self.envs[rank], **self._workers.mark}
        if self.keeps_errors(rank):
            env["ELASTIC_WORKER_HOOKS"] = "1"
        dest = self.logs_dest
        prefix = self.log_line_prefixes.get(rank, f"[{self.name}{rank}]:")
        stdout = plan_of(dest.stdouts[rank], dest.tee_stdouts.get(rank), prefix=prefix)
        stderr = plan_of(dest.stderrs[rank], dest.tee_stderrs.get(rank), prefix=prefix)
        return WorkerLaunch(
            local_rank=rank,
            global_rank=rank,
            argv=self._command(rank),
            env=env,
            stdout=_filtered(stdout, self.duplicate_stdout_filters, dest.filtered_stdout),
            stderr=_filtered(stderr, self.duplicate_stderr_filters, dest.filtered_stderr),
            cpus=cpus_for(self._numa_options, rank, self.nprocs),
        )

    def pids(self) -> dict[int, int]:
        """As in `PContext`."""
        return {} if self._workers is None else dict(self._workers.pids)

    def wait(self, timeout: float = -1, period: float = 1) -> RunProcsResult | None:
        """As in `PContext`."""
        if self._workers is None:
            raise ValueError("the workers of this context were not started")
        with self._signals.wait():
            ended = wait_for(self._workers.finished, None if timeout < 0 else timeout)
        if not ended:
            return None
        try:
            if self._result is None:
                self._result = self._make_result(self._workers)
        finally:
            self._end()
        return self._result

    def _make_result(self, workers: SupervisedWorkers) -> RunProcsResult:
        from elastic_torchrun.processes.process_failure import ProcessFailure

        failures = {
            rank: ProcessFailure(
                local_rank=rank,
                pid=exit.pid,
                exitcode=exit.code,
                error_file=self.error_files.get(rank, ""),
                ended_ns=exit.at_ns,
            )
            for rank, exit in sorted(workers.exits.items())
            if exit.code != 0
        }
        own = {rank: each for rank, each in failures.items() if _failed_first(each, workers.exits[rank].stop_sent_ns)}
        failures = own or failures  # none of their own: the caller has stopped them all
        values = {} if failures else workers.return_values
        return RunProcsResult(return_values=values, failures=failures, stdouts=self.stdouts, stderrs=self.stderrs)

    def close(self, death_sig: signal.Signals | None = None, timeout: float = 30) -> None:
        """As in `PContext`."""
        if os.getpid() != self._pid:
            return  # a forked child on its way out: they are its parent's
        if self._workers is not None:
            self._workers.stop(death_sig or signal.SIGTERM, timeout)
            self._workers.finished.wait()  # the ladder ends by itself, whatever a worker does
        self._end()

    def _end(self) -> None:
        atexit.unregister(self.close)
        self._signals.end()
        self._release()
        self.discard_empty_logs()


class MultiprocessContext(GroupContext):
    """Workers that call a function.

    Args:
        start_method: `spawn`, `fork` or `forkserver`; see `elastic_torchrun.functions`.
        others: As in `PContext`.

    Raises:
        ConfigError: there is no such start method, or this is a worker that imports a main module without its guard.
    """

    def __init__(
        self,
        name: str,
        entrypoint: Callable[..., Any],
        args: Mapping[int, tuple[Any, ...]],
        envs: Mapping[int, Mapping[str, str]],
        start_method: str,
        logs_specs: LogsSpecs,
        log_line_prefixes: Mapping[int, str] | None = None,
        numa_options: object = None,
        duplicate_stdout_filters: list[str] | None = None,
        duplicate_stderr_filters: list[str] | None = None,
    ) -> None:
        """Start nothing yet."""
        super().__init__(
            name,
            entrypoint,
            args,
            envs,
            logs_specs,
            log_line_prefixes,
            numa_options,
            duplicate_stdout_filters,
            duplicate_stderr_filters,
        )
        self.start_method = start_method
        try:
            self._call = FunctionCall(fn=entrypoint, args=self.args, start_method=start_method)
        except ConfigError:
            self.discard_empty_logs()
            raise

    def _make_workers(self) -> SupervisedWorkers:
        self._starter = self._call.begin()
        for line in self._starter.warnings:
            LOG.warning("%s", line)
        return SupervisedWorkers(self.name, functions=self._starter)

    def _command(self, local_rank: int) -> tuple[str, ...]:
        return (sys.executable, self._call.name)

    def _launch(self, rank: int) -> WorkerLaunch:
        return replace(super()._launch(rank), function=self._call.name)

    def _release(self) -> None:
        if self._workers is not None:
            self._starter.close()


class SubprocessContext(GroupContext):
    """Workers that run a program: `entrypoint` with its `args`, each in its own environment."""

    def _make_workers(self) -> SupervisedWorkers:
        return SupervisedWorkers(self.name)

    def _command(self, local_rank: int) -> tuple[str, ...]:
        return (str(self.entrypoint), *map(str, self.args[local_rank]))


def _failed_first(failure: "ProcessFailure", stop_sent_ns: int | None) -> bool:
    """Return whether a worker failed by itself: it was not stopped, or its exception is older than the stop."""
    return stop_sent_ns is None or failure.timestamp_ns < stop_sent_ns


def _filtered(plan: StreamPlan, filters: tuple[str, ...], file: str) -> StreamPlan:
    return replace(plan, filters=filters, filtered_file=file or None) if filters and plan.console else plan
