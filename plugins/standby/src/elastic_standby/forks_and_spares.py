"""The starter behind `--standby`: forks where they are possible, and spares or fresh interpreters elsewhere."""

from collections.abc import Callable
from dataclasses import dataclass

from elastic_core.api.starters import StartedProcess, WorkerStart, WorkerStarter
from elastic_standby.forks import ForkServer


@dataclass
class Starts:
    """How many workers of a round were started in each way."""

    forked: int = 0
    spare: int = 0
    fresh: int = 0

    @property
    def text(self) -> str:
        """The numbers other than 0, such as `8 forked`."""
        kinds = ((self.forked, "forked"), (self.spare, "from spares"), (self.fresh, "by exec"))
        return ", ".join(f"{count} {how}" for count, how in kinds if count)


class ForksAndSpares(WorkerStarter):
    """Starts workers as forks, and those that can't be forked from spares, which are prepared for them alone.

    Args:
        forks: The server.
        spares: `None` means that other workers are started afresh.
        record: Receives the number of workers of each kind after each round's start.
    """

    def __init__(
        self, forks: ForkServer | None, spares: WorkerStarter | None, record: Callable[[Starts], None]
    ) -> None:
        self._starters = [starter for starter in (forks, spares) if starter is not None]
        self._forks, self._spares, self._record = forks, spares, record
        self._starts = Starts()

    def prepare(self, count: int, done: Callable[[], None]) -> None:
        """Have the server prepared."""
        self._starts = Starts()
        if self._forks is None:
            done()
        else:
            self._forks.prepare(count, done)

    def start(self, worker: WorkerStart) -> StartedProcess | None:
        """Start a worker. `None` means that it must be started afresh."""
        started = None if self._forks is None else self._forks.start(worker)
        if started is not None:
            self._starts.forked += 1
            return started
        started = None if self._spares is None else self._spares.start(worker)
        if started is not None:
            self._starts.spare += 1
        else:
            self._starts.fresh += 1
        return started

    def round_started(self) -> None:
        """Prepare for the next round, and report how this one was started."""
        for starter in self._starters:
            starter.round_started()
        self._record(self._starts)

    def round_stopping(self) -> None:
        """Prepare nothing more."""
        for starter in self._starters:
            starter.round_stopping()

    def pids(self) -> frozenset[int]:
        """Return the processes that are no workers."""
        return frozenset().union(*(starter.pids() for starter in self._starters))

    def close(self) -> None:
        """End them; idempotent."""
        for starter in self._starters:
            starter.close()
