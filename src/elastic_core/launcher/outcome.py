"""The outcome of a run for a library call, beyond the exit code."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from elastic_core.agent.feed import Observation
from elastic_core.agent.machine.states import AgentEnd, Outcome
from elastic_core.errors import ElasticError
from elastic_core.moments import WorkerEnded
from elastic_core.types import Failure, Round, WorkerExit


@dataclass
class RunOutcome:
    """Filled by `run_job` when the run ends on this node. Workers are this node's, of the last round."""

    exit_code: int = 0
    reason: str = ""
    """Why the run ended, as one line."""
    succeeded: bool = False
    stopped: bool = False
    """Whether a signal or a request stopped it."""
    failure: Failure | None = None
    """The first cause, on any node. `None` if the run did not fail."""
    error: ElasticError | None = None
    """Why no round could be formed. `None` if one was."""
    return_values: dict[int, object] = field(default_factory=dict)
    """By global rank, for workers with exit code 0: the results of worker functions, `None` for programs."""
    round: Round | None = None
    exits: dict[int, WorkerExit] = field(default_factory=dict)
    """The workers that have ended, by global rank."""
    error_files: dict[int, str] = field(default_factory=dict)
    """By global rank; a worker without an error has no file there."""

    def begin_round(self, round_: Round, error_files: Mapping[int, str]) -> None:
        """Replace the last round by this one, with its workers' error files by global rank."""
        self.round = round_
        self.exits.clear()
        self.error_files = dict(error_files)

    def observe(self, what: Observation) -> None:
        """Record a worker's end."""
        if isinstance(what, WorkerEnded):
            self.exits[what.exit.global_rank] = what.exit

    def take(
        self,
        result: Outcome,
        value: Callable[[int], object],
        failure: Failure | None,
        error: ElasticError | None,
    ) -> None:
        """Record the run's end and its failure; `value` returns a worker's result by local rank."""
        self.error = error
        self.exit_code, self.reason = result.exit_code, result.reason
        self.succeeded = result.ending is AgentEnd.SUCCEEDED
        self.stopped = result.ending is AgentEnd.STOPPED
        self.failure = failure if result.ending is AgentEnd.FAILED else None
        self.return_values = {
            rank: value(exit.local_rank) for rank, exit in sorted(self.exits.items()) if exit.code == 0
        }
