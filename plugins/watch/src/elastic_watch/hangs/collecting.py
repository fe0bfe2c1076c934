"""The evidence of one node: its workers' stacks, and two snapshots of their process groups, taken without blocking."""

import threading
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Final, Protocol

from msgspec.structs import replace

from elastic_core.api import SYSTEM_CLOCK, Clock, Record, RunHandle
from elastic_watch.collectives.calls import UNKNOWN, call_of, certain, in_backward, in_engine, source_line
from elastic_watch.collectives.evidence import NodeEvidence, RankEvidence, Snapshot, Status
from elastic_watch.stacks import StacksTaken, WorkerStack

_SLOW_S: Final = 0.4
"""The time for a line of source from which its file system counts as hanging."""


class Stacks(Protocol):
    """Takes stacks of workers, as `elastic_watch.stacks.StackCollector`."""

    def take_later(self, on_taken: StacksTaken, *, ranks: Collection[int] | None = None) -> None:
        """Have a thread take stacks, and pass them to `on_taken` on the thread of the hooks."""


class Snapshots(Protocol):
    """Takes snapshots of workers, as `elastic_watch.recorder.collector.SnapshotCollector`."""

    def take_later(
        self, on_taken: Callable[[Mapping[int, Snapshot]], None], *, ranks: Collection[int], dump: Path | None
    ) -> None:
        """Have a thread take snapshots, and pass them to `on_taken` on the thread of the hooks."""


class Collected(Record, frozen=True, kw_only=True):
    """What was collected, by local rank. `after` has only workers that responded to both requests."""

    begun_s: float
    """When the collection began, in monotonic seconds."""
    stacks: Mapping[int, WorkerStack] = {}
    calls: Mapping[int, str] = {}
    """The calls of torch.distributed in which main threads are (`calls.call_of`)."""
    before: Mapping[int, Snapshot] = {}
    after: Mapping[int, Snapshot] = {}
    recorder: str = ""
    """The folder with the recorder's files. Empty if there are none."""
    beats: Mapping[int, float | None] = {}
    """The times of the last heartbeats before the collection, in monotonic seconds. `None` before the first."""

    @property
    def unstable(self) -> set[int]:
        """The local ranks whose process groups changed between the two snapshots: they make progress.

        If there are any, a rank without a second snapshot may make progress, too.
        """
        found = {rank for rank, last in self.after.items() if not same_groups(self.before[rank], last)}
        return found | (self.before.keys() - self.after.keys()) if found else found

    @property
    def waiting(self) -> set[int]:
        """The local ranks whose main thread is certainly in a call of torch.distributed."""
        return {rank for rank, call in self.calls.items() if certain(call)}

    @property
    def may_wait(self) -> set[int]:
        """The local ranks that compute gradients, or wait for a collective of theirs."""
        return {rank for rank, call in self.calls.items() if in_engine(call, self.stacks[rank].frames)}

    def outlived(self, beats: Mapping[int, float | None]) -> set[int]:
        """Return the local ranks that have moved since: what was collected does not show where they are now.

        Args:
            beats: The times of the present last heartbeats.
        """
        return {rank for rank in beats.keys() | self.beats.keys() if beats.get(rank) != self.beats.get(rank)}


def same_groups(before: Snapshot, after: Snapshot) -> bool:
    """Return whether the process groups of a worker are in the same state in both snapshots."""
    return _marks(before) == _marks(after)


def _marks(snapshot: Snapshot) -> dict[tuple[str, tuple[int, ...]], tuple[int, int]]:
    return {(each.group, each.members): (each.enqueued, each.completed) for each in snapshot.groups}


class Collector:
    """Collects the evidence of this node's workers, one collection at a time.

    Args:
        run: The run's handle.
        stacks: Takes stacks.
        snapshots: Takes snapshots.
        clock: This node's.

    Threading: the hooks' thread.
    """

    def __init__(self, run: RunHandle, stacks: Stacks, snapshots: Snapshots, *, clock: Clock = SYSTEM_CLOCK) -> None:
        self._run = run
        self._stacks = stacks
        self._snapshots = snapshots
        self._clock = clock
        self._current: _Collection | None = None

    @property
    def busy(self) -> bool:
        """Whether a collection is in progress."""
        return self._current is not None

    def take(
        self, ranks: Collection[int], on_taken: Callable[[Collected], None], *, gap_s: float, recorder: Path
    ) -> None:
        """Collect evidence; a collection in progress is dropped. Stacks take up to 11 s, mostly a tenth of a second.

        Args:
            ranks: The local ranks.
            on_taken: Receives the evidence.
            gap_s: The time between the two snapshots of a worker, in seconds.
            recorder: The folder for the recorder's files.
        """
        self.cancel()

        def done(collected: Collected) -> None:
            self._current = None
            on_taken(collected)

        self._current = _Collection(self._run, self._snapshots, done, gap_s=gap_s, recorder=recorder, clock=self._clock)
        self._current.begin(self._stacks, tuple(ranks))

    def cancel(self) -> None:
        """Drop the collection in progress."""
        if self._current is not None:
            self._current.cancelled = True
            self._current = None


class _Collection:
    """One collection. Stacks and snapshots arrive in any order."""

    def __init__(
        self,
        run: RunHandle,
        snapshots: Snapshots,
        done: Callable[[Collected], None],
        *,
        gap_s: float,
        recorder: Path,
        clock: Clock,
    ) -> None:
        self.cancelled = False
        self._run = run
        self._snapshots = snapshots
        self._done = done
        self._gap_s = gap_s
        self._recorder = recorder
        self._clock = clock
        self._found = Collected(begun_s=clock.monotonic_s())
        self._missing = 2  # stacks and snapshots

    def begin(self, stacks: Stacks, ranks: tuple[int, ...]) -> None:
        stacks.take_later(self._have_stacks, ranks=ranks)
        self._snapshots.take_later(self._have_first, ranks=ranks, dump=None)

    def _have_stacks(self, stacks: Mapping[int, WorkerStack]) -> None:
        # The source of a script is read for it, from a file system that may hang as the worker does.
        def find() -> None:
            calls = calls_of(stacks)
            self._run.call_later(0.0, lambda: self._have(replace(self._found, stacks=dict(stacks), calls=calls)))

        try:
            threading.Thread(target=find, name="elastic-calls", daemon=True).start()
        except RuntimeError:  # the system has no thread left
            self._have(replace(self._found, stacks=dict(stacks)))

    def _have_first(self, snapshots: Mapping[int, Snapshot]) -> None:
        if self.cancelled:
            return
        self._found = replace(self._found, before=dict(snapshots))
        if snapshots:
            last_s = max(each.taken_ns for each in snapshots.values()) / 1e9
            passed_s = self._clock.monotonic_s() - max(last_s, self._found.begun_s)
            self._run.call_later(max(0.0, self._gap_s - passed_s), self._take_second)
        else:  # no worker uses torch.distributed
            self._have(self._found)

    def _take_second(self) -> None:
        if self.cancelled:
            return
        before = self._found.before
        dump = self._recorder if any(each.recorder for each in before.values()) else None
        self._snapshots.take_later(self._have_second, ranks=tuple(before), dump=dump)

    def _have_second(self, snapshots: Mapping[int, Snapshot]) -> None:
        after = {rank: each for rank, each in snapshots.items() if rank in self._found.before}
        recorder = str(self._recorder) if _has_files(self._recorder) else ""
        self._have(replace(self._found, after=after, recorder=recorder))

    def _have(self, found: Collected) -> None:
        if self.cancelled:
            return
        self._found = found
        self._missing -= 1
        if not self._missing:
            self._done(self._found)


def calls_of(stacks: Mapping[int, WorkerStack]) -> dict[int, str]:
    """Return the calls of torch.distributed in which main threads are, by local rank.

    If one line of source can't be read in time, no further lines are read. Threading: any; blocks.
    """
    hangs = False

    def line_of(file: str, line: int) -> str:
        nonlocal hangs
        if hangs:
            return ""
        begun_s = SYSTEM_CLOCK.monotonic_s()
        text = source_line(file, line)
        hangs = not text and SYSTEM_CLOCK.monotonic_s() - begun_s >= _SLOW_S
        return text

    return {rank: call_of(own.frames, threads=own.text, line_of=line_of) for rank, own in stacks.items() if own.frames}


def _has_files(folder: Path) -> bool:
    try:
        return any(folder.iterdir())
    except OSError:
        return False


# --- what a node sends


def node_evidence(
    node_id: str,
    ranks: Mapping[int, int],
    collected: Collected,
    *,
    world_size: int,
    running: Collection[int],
    moved: Collection[int],
    steps: Mapping[int, int | None],
) -> NodeEvidence:
    """Return the evidence of a node.

    Args:
        node_id: This node.
        ranks: The global ranks of all workers of the round on this node, by local rank.
        collected: Their stacks and snapshots.
        world_size: The number of ranks in the round.
        running: The local ranks of workers that have not ended.
        moved: The local ranks of workers with a sign of life since the collection began.
        steps: Their last steps.
    """
    return NodeEvidence(
        node_id=node_id,
        world_size=world_size,
        ranks=tuple(
            _rank_evidence(
                global_rank,
                rank,
                collected,
                ended=rank not in running,
                stable=rank not in moved and rank not in collected.unstable,
                step=steps.get(rank),
            )
            for rank, global_rank in sorted(ranks.items())
        ),
    )


def _rank_evidence(
    global_rank: int, rank: int, collected: Collected, *, ended: bool, stable: bool, step: int | None
) -> RankEvidence:
    if ended:
        return RankEvidence(global_rank=global_rank, status=Status.ENDED, step=step)
    # Without a second snapshot, it is not known whether the groups change: the stack decides then.
    stack, snapshot = collected.stacks.get(rank, WorkerStack()), collected.after.get(rank)
    call = collected.calls.get(rank)
    known = call is not None or snapshot is not None
    if call is not None and in_backward(call) and not in_engine(call, stack.frames):
        call = UNKNOWN  # in a hook of the user's, which other ranks in backward() may wait for
    return RankEvidence(
        global_rank=global_rank,
        status=Status.ANSWERED if known else Status.SILENT,
        recorder=snapshot is not None and snapshot.recorder,
        stable=stable,
        groups=() if snapshot is None else snapshot.groups,
        groups_dropped=0 if snapshot is None else snapshot.groups_dropped,
        stack=call is not None,
        call=call or "",
        place=stack.place,
        step=step,
    )
