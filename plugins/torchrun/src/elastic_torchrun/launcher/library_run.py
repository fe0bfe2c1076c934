"""A run from a function of the library; it ends with a result or an exception."""

import os
import signal
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Final, Protocol

from msgspec.structs import replace

from elastic_core.api import ElasticError, Failure, FailureClass
from elastic_core.api.rendezvous import RendezvousError
from elastic_core.api.workers import WorkerError
from elastic_core.embedding import NOTHING, Injected, RunOutcome, RunSettings
from elastic_torchrun.agent.worker_group import RunResult, WorkerState
from elastic_torchrun.options import HEALTH_CHECK_PORT

if TYPE_CHECKING:
    from elastic_torchrun.processes.process_failure import ProcessFailure

_SET_FOR_TORCH: Final = "TORCH_DISABLE_SHARE_RDZV_TCP_STORE"
"""An option for handlers that were written for torch, which read it repeatedly."""
_NO_RANK: Final = -1
_OTHER_NODES_PID: Final = 0
_KINDS: Final[Mapping[FailureClass, type[ElasticError]]] = {
    FailureClass.RENDEZVOUS: RendezvousError,
    FailureClass.STORE: RendezvousError,
    FailureClass.START_UP: WorkerError,
}


class HealthServer(Protocol):
    """A server of an agent's health checks, such as torch's `HealthCheckServer`."""

    def stop(self) -> None:
        """Stop serving."""
        ...


def run_for_caller(
    settings: RunSettings,
    injected: Injected = NOTHING,
    outcome: RunOutcome | None = None,
    *,
    health_check_server: HealthServer | None = None,
) -> RunResult:
    """Run to the end, restore the caller's process, and return the result.

    Args:
        settings: The run's.
        injected: Objects that the caller has made.
        outcome: Filled at the end. `None` means a new one.
        health_check_server: A running server, which is stopped at the end. `None` means
            `TORCHELASTIC_HEALTH_CHECK_PORT` decides.

    Threading: the caller's; signals are handled on the main thread only.

    Raises:
        SignalException: a signal stopped the run.
        RendezvousError: no round could be formed.
        ElasticError: the run could not begin, or failed for another reason than a worker.
    """
    from elastic_core.embedding import run_job

    outcome = RunOutcome() if outcome is None else outcome
    with _unchanged(_SET_FOR_TORCH), ExitStack() as cleanup:
        if health_check_server is not None:
            cleanup.callback(health_check_server.stop)
            others = {name: value for name, value in settings.hook_options.items() if name != HEALTH_CHECK_PORT.name}
            settings = replace(settings, hook_options=others)
        run_job(settings, own_process=False, outcome=outcome, injected=injected)
    if outcome.stopped and outcome.exit_code > 128:
        raise _stopped(outcome)
    if outcome.succeeded:
        return RunResult(state=WorkerState.SUCCEEDED, return_values=dict(sorted(outcome.return_values.items())))
    if outcome.failure is None:  # a hook would not let it begin, say
        raise outcome.error or _with_code(ElasticError(outcome.reason), outcome.exit_code)
    failures = failures_of(outcome, outcome.failure)
    if not failures:
        raise _error(outcome.failure, outcome.error)
    stuck = any(exit.unreapable for exit in outcome.exits.values())
    return RunResult(state=WorkerState.UNHEALTHY if stuck else WorkerState.FAILED, failures=failures)


@contextmanager
def _unchanged(variable: str) -> Iterator[None]:
    before = os.environ.get(variable)
    try:
        yield
    finally:
        if before is None:
            os.environ.pop(variable, None)
        else:
            os.environ[variable] = before


def failures_of(outcome: RunOutcome, cause: Failure) -> "dict[int, ProcessFailure]":
    """Return the workers of this node that failed by themselves, and the first one, if it is another node's.

    That one has the earliest time, so that all nodes report the same first cause. Empty if no worker caused the
    failure.
    """
    from elastic_torchrun.processes.process_failure import ProcessFailure

    failures = {
        rank: ProcessFailure(
            local_rank=exit.local_rank,
            pid=exit.pid,
            exitcode=exit.code,
            error_file=outcome.error_files.get(rank, ""),
            ended_ns=exit.at_ns,
        )
        for rank, exit in sorted(outcome.exits.items())
        if rank == cause.global_rank or (exit.code != 0 and exit.stop_signal is None)
    }
    if cause.global_rank is None:
        return failures
    first = failures.get(cause.global_rank)
    if first is None:
        first = ProcessFailure(
            local_rank=_NO_RANK if cause.local_rank is None else cause.local_rank,
            pid=_OTHER_NODES_PID,
            exitcode=-cause.signal if cause.signal is not None else cause.exit_code,
            error_file=os.devnull,
        )
    if not isinstance(first.message, dict):  # it left no record: what we have found out says more than how it ended
        first.message = cause.summary
    failures[cause.global_rank] = first
    first.timestamp_ns = min(each.timestamp_ns for each in failures.values()) - (len(failures) > 1)
    return failures


def _error(cause: Failure, joining: ElasticError | None) -> ElasticError:
    if joining is not None and cause.failure_class is FailureClass.RENDEZVOUS:
        return joining
    kind = _KINDS.get(cause.failure_class, ElasticError)
    return _with_code(kind(cause.summary), cause.exit_code)


def _with_code(error: ElasticError, exit_code: int) -> ElasticError:
    vars(error)["exit_code"] = exit_code  # this one's own, over that of its class
    return error


def _stopped(outcome: RunOutcome) -> Exception:
    from elastic_torchrun.processes.signals import SignalException

    signum = signal.Signals(outcome.exit_code - 128)
    return SignalException(f"the run was stopped by {signum.name}", signum)
