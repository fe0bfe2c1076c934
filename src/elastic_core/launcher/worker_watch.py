"""What this node's workers say of themselves, and their stacks, for whoever wants to know: hooks, or a policy.

What gets at either is imported when it is first asked for: a run that nobody watches loads none of `agent.watch`.
"""

from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING

from msgspec.structs import replace

from elastic_core.encoding import decode_json
from elastic_core.hooks.handle import Offer
from elastic_core.processes.group import WorkerGroup
from elastic_core.processes.spec import WorkerPaths
from elastic_core.reactor import Reactor
from elastic_core.reports import WorkerStack
from elastic_core.types import Record

if TYPE_CHECKING:
    from elastic_core.agent.watch.beat_file import BeatFile, BeatFiles
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
        self, reactor: Reactor, *, workers: Callable[[], WorkerGroup], beat_file: "Callable[[int], BeatFile | None]"
    ) -> None:
        self._reactor = reactor
        self._workers = workers
        self._beat_file = beat_file
        self._fault_files: dict[int, str] = {}
        self._requests: set[StackRequest] = set()

    def begin_round(self, paths: Mapping[int, WorkerPaths]) -> None:
        """Take the files of the workers that are about to be started."""
        self._fault_files = {rank: files.fault_file for rank, files in paths.items()}

    def end_round(self) -> None:
        """Wait no longer for the stacks of workers that have ended. Called: before their files are closed."""
        for request in self._requests:
            request.settle()

    def take(
        self, on_taken: Callable[[Mapping[int, WorkerStack]], None], *, ranks: Collection[int] | None = None
    ) -> None:
        """Have stacks taken, of all workers or of those; `on_taken` gets them later, while the run lasts."""
        from elastic_core.agent.watch.stack_collector import StackRequest

        def done(found: Mapping[int, WorkerStack]) -> None:
            self._requests.discard(request)
            on_taken(found)

        sources = {rank: source for rank, source in self._sources().items() if ranks is None or rank in ranks}
        request = StackRequest(self._reactor, sources, on_done=done)
        self._requests.add(request)

    def _sources(self) -> "dict[int, tuple[int, int, StackFile | None]]":
        """Return for each live worker its pid, that of the process to look at, and where it writes its stacks."""
        from elastic_core.agent.watch.stack_collector import FaultFile

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


class _Asked(Record, frozen=True, kw_only=True):
    """The part of the `planned-stops` offer that shows how far workers are that call `should_stop`."""

    step: int | None = None


class Heartbeats:
    """The memory that each worker beats into; nothing at all where nobody wants to know.

    Args:
        for_hooks: Whether a hook does.
        for_policy: Whether the policy does.
        notice: Takes one line for people.
    """

    def __init__(self, *, for_hooks: bool, for_policy: bool, notice: Callable[[str], None]) -> None:
        self._for_hooks = for_hooks
        self._notice = notice
        self.files: BeatFiles | None = None
        if for_hooks or for_policy:
            from elastic_core.agent.watch import beat_file

            self.files = beat_file.BeatFiles()

    def with_files(self, paths: Mapping[int, WorkerPaths]) -> dict[int, WorkerPaths]:
        """Return the files of a round's workers with those that they are to beat into."""
        if self.files is None:
            return dict(paths)
        try:
            files = self.files.open(paths)
        except OSError as error:
            files = {}
            if not self._for_hooks:  # they know, and have their own ways
                self._notice(f"heartbeats can't be taken ({error}): the policy does not know of steps")
        return {rank: replace(own, beat_file=files.get(rank, "")) for rank, own in paths.items()}

    def progress(self, offers: Mapping[str, Offer]) -> int | None:
        """Return the furthest step of this node's workers: of heartbeats, else of `should_stop`; None: of neither."""
        step, asked = None if self.files is None else self.files.progress(), offers.get("planned-stops")
        if step is None and asked is not None:
            with suppress(Exception):  # a hook's answer: the decision needs none
                step = decode_json(asked({}).content, _Asked).step
        return step

    def file(self, local_rank: int) -> "BeatFile | None":
        """Return what a worker beats into, and writes its stacks to; None: nothing."""
        return None if self.files is None else self.files.get(local_rank)

    def close(self) -> None:
        """Give everything back."""
        if self.files is not None:
            self.files.close()
