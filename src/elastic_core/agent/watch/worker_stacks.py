"""The stacks of this node's workers, for whoever wants them: hooks, the control plane, timers."""

from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING

from elastic_core.agent.parts import Workers
from elastic_core.processes.spec import WorkerPaths
from elastic_core.reactor import Reactor
from elastic_core.reports import WorkerStack

if TYPE_CHECKING:
    from elastic_core.agent.watch.beat_file import BeatFile
    from elastic_core.agent.watch.stack_collector import StackFile, StackRequest


class WorkerStacks:
    """Knows where each worker writes its stacks, and has them taken.

    Args:
        reactor: The loop.
        workers: Returns those of this node.
        beat_file: Returns what a worker beats into, by local rank; None: nothing.

    Threading: the reactor's thread.
    """

    def __init__(
        self, reactor: Reactor, *, workers: Callable[[], Workers], beat_file: "Callable[[int], BeatFile | None]"
    ) -> None:
        self._reactor = reactor
        self._workers = workers
        self._beat_file = beat_file
        self._fault_files: dict[int, str] = {}
        self._requests: set[StackRequest] = set()

    def begin_round(self, paths: Mapping[int, WorkerPaths]) -> None:
        """Take the files of the workers that are about to be started."""
        self._fault_files = {rank: files.fault_file for rank, files in paths.items()}

    def take(
        self, on_taken: Callable[[Mapping[int, WorkerStack]], None], *, ranks: Collection[int] | None = None
    ) -> None:
        """Have stacks taken, of all workers or of those; `on_taken` gets them later, while the run lasts."""
        from elastic_core.agent.watch.stack_collector import StackRequest  # for those who ask

        def done(found: Mapping[int, WorkerStack]) -> None:
            self._requests.discard(request)
            on_taken(found)

        sources = {rank: source for rank, source in self._sources().items() if ranks is None or rank in ranks}
        request = StackRequest(self._reactor, sources, on_done=done)
        self._requests.add(request)

    def _sources(self) -> "dict[int, tuple[int, int, StackFile | None]]":
        """Return for each live worker its pid, that of the process to look at, and where it writes its stacks."""
        from elastic_core.agent.watch.fault_file import FaultFile

        workers = self._workers()
        pids = workers.pids
        sources: dict[int, tuple[int, int, StackFile | None]] = {}
        for rank in sorted(workers.alive):
            beat_file, fault_file = self._beat_file(rank), self._fault_files.get(rank, "")
            if beat_file is not None:  # the worker may be a shell around the process that beats
                sources[rank] = (pids[rank], beat_file.read().owner or pids[rank], beat_file)
            else:
                sources[rank] = (pids[rank], pids[rank], FaultFile(fault_file) if fault_file else None)
        return sources

    def helpers(self) -> frozenset[int]:
        """Return the pids of this process's children that are no workers."""
        return frozenset().union(*(request.helpers() for request in self._requests))

    def close(self) -> None:
        """Ask nobody any more, and answer nobody; idempotent."""
        for request in self._requests:
            request.cancel()
        self._requests.clear()
