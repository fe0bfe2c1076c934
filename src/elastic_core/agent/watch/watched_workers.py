"""A worker group whose workers are watched for hangs while they are meant to run."""

from collections.abc import Iterable, Mapping
from typing import Protocol

from elastic_core.agent.parts import Workers
from elastic_core.processes.spec import WorkerLaunch


class Watch(Protocol):
    """What looks at workers."""

    def begin(self, launches: Iterable[WorkerLaunch], pids: Mapping[int, int]) -> None:
        """Begin to watch workers that were just started; `pids` by local rank."""
        ...

    def end(self) -> None:
        """Stop watching."""
        ...


class WatchedWorkers:
    """Stands between the agent and its workers: the watch begins with their start, and ends with the order to stop."""

    def __init__(self, workers: Workers, watch: Watch) -> None:
        """Watch nothing yet."""
        self._workers = workers
        self._watch = watch

    @property
    def pids(self) -> Mapping[int, int]:
        """As of the workers."""
        return self._workers.pids

    @property
    def alive(self) -> frozenset[int]:
        """As of the workers."""
        return self._workers.alive

    def start(self, launches: Iterable[WorkerLaunch]) -> None:
        """Start them, then watch them."""
        launches = tuple(launches)
        self._workers.start(launches)
        self._watch.begin(launches, self._workers.pids)

    def stop(self, signum: int, *, grace_s: float) -> None:
        """Watch no longer, and stop them."""
        self._watch.end()
        self._workers.stop(signum, grace_s=grace_s)

    def kill(self) -> None:
        """Watch no longer, and kill them."""
        self._watch.end()
        self._workers.kill()

    def forward(self, signum: int) -> None:
        """As of the workers."""
        self._workers.forward(signum)

    def reap(self) -> None:
        """As of the workers."""
        self._workers.reap()
