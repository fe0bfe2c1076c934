"""What a caller of the library gets of a run that has ended, beyond its exit code."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from elastic_core.agent.feed import Observation
from elastic_core.agent.machine.states import AgentEnd
from elastic_core.agent.parts import AgentResult
from elastic_core.errors import ElasticError
from elastic_core.moments import WorkerEnded
from elastic_core.types import Failure, Round, WorkerExit


@dataclass
class RunOutcome:
    """Filled by `run_job` when the run ends on this node; all of it is about the last round's workers of this node."""

    exit_code: int = 0
    reason: str = ""
    """Why the run ended, as one line."""
    succeeded: bool = False
    stopped: bool = False
    """A signal or a request stopped it."""
    failure: Failure | None = None
    """The first cause, on whichever node; None: the run did not fail."""
    error: ElasticError | None = None
    """Why no round could be formed, if that was so."""
    return_values: dict[int, object] = field(default_factory=dict)
    """By global rank: what the worker functions returned, None for programs; of workers that ended well only."""
    round: Round | None = None
    exits: dict[int, WorkerExit] = field(default_factory=dict)
    """By global rank, of those that have ended."""
    error_files: dict[int, str] = field(default_factory=dict)
    """By global rank; a worker that recorded nothing has left none there."""

    def begin_round(self, round_: Round, error_files: Mapping[int, str]) -> None:
        """Forget the round before, and take where the workers of this one would record errors, by global rank."""
        self.round = round_
        self.exits.clear()
        self.error_files = dict(error_files)

    def observe(self, what: Observation) -> None:
        """Take a worker's end."""
        if isinstance(what, WorkerEnded):
            self.exits[what.exit.global_rank] = what.exit

    def take(
        self,
        result: AgentResult,
        value: Callable[[int], object],
        failure: Failure | None,
        error: ElasticError | None,
    ) -> None:
        """Take how the run ended, and what failed it; `value` gives what a worker returned, by local rank."""
        self.error = error
        self.exit_code, self.reason = result.exit_code, result.reason
        self.succeeded = result.ending is AgentEnd.SUCCEEDED
        self.stopped = result.ending is AgentEnd.STOPPED
        self.failure = failure if result.ending is AgentEnd.FAILED else None
        self.return_values = {
            rank: value(exit.local_rank) for rank, exit in sorted(self.exits.items()) if exit.code == 0
        }
