"""The agent's end of torch's flight recorder: takes snapshots of its workers, and keeps the recorder's files."""

import os
import threading
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Final

import msgspec

from elastic_core.api import SYSTEM_CLOCK, RunHandle
from elastic_watch import vitals
from elastic_watch.beat_file import BeatFile, BeatFiles
from elastic_watch.collectives.evidence import Snapshot
from elastic_watch.recorder.group_states import MAX_ARRIVALS, MAX_GROUPS, MAX_LAST, MAX_TEXT
from elastic_watch.recorder.variables import FILE_PREFIX

ANSWER_S: Final = 1.0
"""How long workers may take for snapshots."""
FILE_S: Final = 5.0
"""How long they may take for the recorder's files after that."""

_LOOK_S: Final = 0.02

SnapshotsTaken = Callable[[Mapping[int, Snapshot]], None]
"""A function that takes snapshots, by local rank."""


class SnapshotCollector:
    """Takes snapshots of the process groups of this node's workers, from torch's flight recorder.

    Args:
        run: The run's handle.
        files: The memory that the workers share with this agent.
        closed: Set when the run is over: a request in progress ends with the snapshots so far.

    Threading: any.
    """

    def __init__(self, run: RunHandle, files: BeatFiles, *, closed: threading.Event) -> None:
        self._run = run
        self._files = files
        self._closed = closed

    def take(
        self, ranks: Collection[int] | None = None, *, dump: Path | None = None, arrivals: bool = False
    ) -> dict[int, Snapshot]:
        """Return snapshots of running workers by local rank. Workers without a response within a second are missing.

        A worker responds once its script has imported `torch.distributed`. It does not respond while it is stopped, or
        while its main thread holds the interpreter.

        Args:
            ranks: Only of these local ranks. `None` means all.
            dump: A folder for the recorder's files, `rank_N` by global rank, for `torchfrtrace`. It is made if it is
                missing. The agent does not unpickle them. `None` means no files.
            arrivals: Whether snapshots have the times at which the worker entered its last operations.

        Raises:
            OSError: the files can't be written.
        """
        snapshots, contents = self._take(ranks, files=dump is not None, arrivals=arrivals)
        if dump is not None:
            _keep(dump, contents)
        return snapshots

    def _take(
        self, ranks: Collection[int] | None, *, files: bool, arrivals: bool
    ) -> tuple[dict[int, Snapshot], dict[int, bytes]]:
        """Return snapshots by local rank, and the contents of the recorder's files by global rank."""
        workers = {each.local_rank: each for each in self._run.workers() if ranks is None or each.local_rank in ranks}
        written: dict[int, bytes] = {}
        with self._files.snapshots:
            pages = {rank: page for rank in workers if (page := self._files.get(rank)) is not None}
            since_ns = int(SYSTEM_CLOCK.monotonic_s() * 1e9)
            numbers = {
                rank: page.ask_for_snapshot(arrivals=arrivals, file=files)
                for rank, page in pages.items()
                if page.server > 0 and vitals.lives(page.server)
            }
            taken = self._wait(pages, numbers, BeatFile.snapshot, ANSWER_S)
            if files:
                written = self._wait(pages, {rank: numbers[rank] for rank in taken}, BeatFile.recorder_file, FILE_S)
        snapshots = {rank: _snapshot(content, since_ns=since_ns) for rank, content in sorted(taken.items())}
        return snapshots, {workers[rank].global_rank: content for rank, content in written.items() if content}

    def take_later(
        self,
        on_taken: SnapshotsTaken,
        *,
        ranks: Collection[int] | None = None,
        dump: Path | None = None,
        arrivals: bool = False,
    ) -> None:
        """Have a thread take snapshots, as `take` does.

        `on_taken` receives them on the thread of the hooks, while the run lasts. With `dump`, the files exist by then;
        if they can't be written, the agent prints a line.
        """

        def take() -> None:
            found, contents = self._take(ranks, files=dump is not None, arrivals=arrivals)
            fault = ""
            try:
                if dump is not None:
                    _keep(dump, contents)
            except OSError as error:
                fault = f"the recorder's files can't be written to {str(dump)!r}: {error.strerror}"

            def report() -> None:
                if fault:
                    self._run.notice(fault, named=False)
                on_taken(found)

            self._run.call_later(0.0, report)

        try:
            threading.Thread(target=take, name="elastic-snapshots", daemon=True).start()
        except RuntimeError:  # the system has no thread left
            self._run.call_later(0.0, lambda: on_taken({}))

    def _wait(
        self,
        pages: Mapping[int, BeatFile],
        numbers: Mapping[int, int],
        read: Callable[[BeatFile, int], bytes | None],
        limit_s: float,
    ) -> dict[int, bytes]:
        """Return the responses to these requests, as far as they arrive within the limit."""
        found: dict[int, bytes] = {}
        waiting = dict(numbers)
        until_s = SYSTEM_CLOCK.monotonic_s() + limit_s
        while waiting:
            for rank, number in list(waiting.items()):
                content = read(pages[rank], number)
                if content is not None:
                    found[rank] = content
                if content is not None or not vitals.lives(pages[rank].server):
                    del waiting[rank]
            if not waiting or SYSTEM_CLOCK.monotonic_s() >= until_s or self._closed.wait(_LOOK_S):
                break
        return found


def _keep(folder: Path, contents: Mapping[int, bytes]) -> None:
    """Write each rank's file. No other user can read them."""
    if not contents:
        return
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    for rank, content in contents.items():
        path = folder / f"{FILE_PREFIX}{rank}"
        partial = folder / f".{os.getpid()}.{rank}.new"  # a name without the prefix, by which torchfrtrace finds files
        with suppress(FileNotFoundError):
            partial.unlink()
        fd = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with os.fdopen(fd, "wb") as file:
            file.write(content)
        partial.replace(path)


# --- what a worker wrote, which is not trusted

_Text = Annotated[str, msgspec.Meta(max_length=MAX_TEXT)]
_Count = Annotated[int, msgspec.Meta(ge=0, lt=1 << 62)]


class _Operation(msgspec.Struct, forbid_unknown_fields=True):
    seq: _Count
    name: _Text
    signature: _Text = ""


class _Group(msgspec.Struct, forbid_unknown_fields=True):
    group: _Text
    description: _Text = ""
    backend: _Text = ""
    members: tuple[Annotated[int, msgspec.Meta(ge=0, lt=1 << 31)], ...] = ()
    enqueued: _Count = 0
    completed: _Count = 0
    last: Annotated[tuple[_Operation, ...], msgspec.Meta(max_length=MAX_LAST)] = ()
    started: bool | None = None


class _Arrival(msgspec.Struct, forbid_unknown_fields=True):
    group: _Text
    seq: _Count
    entered_ns: Annotated[int, msgspec.Meta(gt=-1 << 62, lt=1 << 62)]


class _Written(msgspec.Struct, forbid_unknown_fields=True):
    """A snapshot as it may be written: `Snapshot` with limits."""

    taken_ns: _Count
    torch: _Text = ""
    recorder: bool = False
    groups: Annotated[tuple[_Group, ...], msgspec.Meta(max_length=MAX_GROUPS)] = ()
    groups_dropped: _Count = 0
    error: _Text = ""
    arrivals: Annotated[tuple[_Arrival, ...], msgspec.Meta(max_length=MAX_ARRIVALS)] = ()


def _snapshot(content: bytes, *, since_ns: int) -> Snapshot:
    """Return the snapshot that a worker wrote since the request. One that breaks the format is an error's."""
    now_ns = int(SYSTEM_CLOCK.monotonic_s() * 1e9)
    try:
        written = msgspec.json.decode(content, type=_Written)
        fault = _fault(written)
        snapshot = msgspec.json.decode(content, type=Snapshot)
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        fault = str(error)[:MAX_TEXT]
    if fault:
        return Snapshot(taken_ns=now_ns, error=f"the worker wrote no valid snapshot: {fault}")
    return msgspec.structs.replace(snapshot, taken_ns=min(max(snapshot.taken_ns, since_ns), now_ns))


def _fault(written: _Written) -> str:
    for group in written.groups:
        if any(former >= later for former, later in zip(group.members, group.members[1:], strict=False)):
            return "members are not sorted"
        numbers = [operation.seq for operation in group.last]
        if group.completed > group.enqueued or numbers != sorted(set(numbers)) or numbers[-1:] > [group.enqueued]:
            return "operations are not in order"
    return ""
