"""Where and when a failure was: which node, how far into the run, how long after its workers' start."""

from collections.abc import Callable, Sequence

from msgspec.structs import replace

from elastic_core.clock import Clock
from elastic_core.errors import ElasticError, is_momentary
from elastic_core.types import Failure, FailureClass, Round, WorkerExit

NO_STORE_CODE = 4


class Placing:
    """Fills these fields in, and makes the failures that no worker has. Threading: the supervisor's thread only.

    Args:
        node_id: Returns this node's id as the others of its last round know it.
        progress: Returns the furthest step of this node's workers, None: not known.
        clock: This node's.
    """

    def __init__(
        self, node_id: Callable[[], str], clock: Clock, *, progress: Callable[[], int | None] = lambda: None
    ) -> None:
        """Count from now on, until there is a round that knows how old the run is."""
        self._node_id = node_id
        self.progress = progress
        self._clock = clock
        self._began_s = self.spawned_s = clock.monotonic_s()

    def joined(self, round_: Round) -> None:
        """Take the run's age from a round that was formed just now: policies compare failures of different nodes."""
        if round_.counts is not None and round_.counts.at_s is not None:
            self._began_s = self._clock.monotonic_s() - round_.counts.at_s

    def spawning(self) -> None:
        """Take note that workers are started now."""
        self.spawned_s = self._clock.monotonic_s()

    def of_worker(self, failure: Failure, exits: Sequence[WorkerExit], round_: Round) -> Failure:
        """Return a worker's failure, with when that worker ended: not when its evidence had settled and was read."""
        at_s = next((exit.at_s for exit in exits if exit.local_rank == failure.local_rank), None)
        if at_s is None:  # it hangs, and has not ended
            at_s = exits[0].at_s if exits else self._clock.monotonic_s()
        return replace(
            failure,
            node_id=round_.node_id or failure.node_id or self._node_id(),
            at_s=at_s - self._began_s,
            uptime_s=at_s - self.spawned_s,
            progress=self.progress(),
            membership_changes=None if round_.counts is None else round_.counts.membership_changes,
        )

    def of_machine(self, failure: Failure, round_: Round | None) -> Failure:
        """Return a failure that the machine made up, with where and when."""
        if failure.node_id:
            return failure
        return replace(self.of_run(failure, round_), node_id=self._node_id(), progress=self.progress())

    def of_run(self, failure: Failure, round_: Round | None) -> Failure:
        """Return a failure that is no node's own, with when, and in a round of how many nodes."""
        count = None if round_ is None else round_.node_count
        at_s = self._clock.monotonic_s() - self._began_s
        return replace(failure, at_s=at_s, node_count=failure.node_count or count)

    def no_start(self, err: ElasticError, round_: Round) -> Failure:
        """Return the failure of workers that could not be started; another try can mend what was refused for now."""
        return Failure(
            failure_class=FailureClass.START_UP,
            summary=str(err),
            node_id=self._node_id(),
            round_index=round_.index,
            node_count=round_.node_count,
            at_s=self.spawned_s - self._began_s,
            uptime_s=0.0,
            exit_code=err.exit_code,
            message=str(err),
            retryable=is_momentary(err),
        )

    def no_store(self, reason: str, round_: Round) -> Failure:
        """Return the failure of a run whose store is gone."""
        return Failure(
            failure_class=FailureClass.STORE,
            summary=reason,
            node_id=self._node_id(),
            round_index=round_.index,
            node_count=round_.node_count,
            progress=self.progress(),
            at_s=self._clock.monotonic_s() - self._began_s,
            uptime_s=0.0,
            exit_code=NO_STORE_CODE,
            message=reason,
        )
