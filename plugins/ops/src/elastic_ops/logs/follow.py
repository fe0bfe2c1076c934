"""The log files of a run's agents on this host: once, or until the run ends."""

from collections.abc import Callable, Collection, Generator, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Final

from elastic_core.api import Record
from elastic_ops.logs.index import RoundLogs, WorkerLogs, read_index
from elastic_ops.logs.tail import LogTail
from elastic_ops.run_directories import run_at

STREAMS: Final = ("stdout", "stderr")
_LATE_LOOKS: Final = 2
"""The number of reads without new data after its round, before a file is closed: its writer may be late."""


class LogLine(Record, frozen=True, kw_only=True):
    """A line of a worker."""

    global_rank: int
    stream: str
    text: str


class _File:
    """One worker's stream in one round."""

    def __init__(self, rank: int, stream: str, path: str, last: int | None) -> None:
        self._rank, self._stream = rank, stream
        self._tail = LogTail(path, last=last)
        self._late = 0

    def lines(self, *, over: bool) -> Iterator[LogLine]:
        """Yield new lines. `over`: no process writes to the file any more."""
        for text in self._tail.rest() if over else self._tail.lines():
            self._late = 0
            yield LogLine(global_rank=self._rank, stream=self._stream, text=text)

    def is_left(self) -> bool:
        """Count a read after its round. Return whether there were enough."""
        self._late += 1
        return self._late > _LATE_LOOKS

    def close(self) -> None:
        self._tail.close()


class HostLogs:
    """The logs of a run's agents on this host.

    Args:
        runs: Their run directories.
        ranks: Global ranks. `None` means all on this host.
        streams: `stdout`, `stderr`, or both.
        last: The number of last lines of each file to begin with. `None` means all.
        ended: Returns whether their agents have ended. `None` means that the processes are checked.
    """

    def __init__(
        self,
        runs: Sequence[str],
        *,
        ranks: Collection[int] | None,
        streams: Sequence[str],
        last: int | None,
        ended: Callable[[], bool] | None = None,
    ) -> None:
        """Open nothing yet."""
        self._paths = [Path(run) for run in runs]
        self._ended = ended
        self._ranks, self._streams, self._last = ranks, streams, last
        self._files: dict[tuple[Path, int], list[_File]] = {}
        self._left: set[tuple[Path, int]] = set()
        self.found_ranks: set[int] = set()
        """Those that are, or were, on this host in the rounds that were looked at."""
        self.without_file: set[int] = set()
        """Those of them, of the ones asked for, whose output goes to the console."""

    def once(self, round_index: int | None = None) -> Generator[LogLine, None, None]:
        """Yield the lines of a round. `None` means each agent's last round."""
        for path in self._paths:
            rounds, over = self._look(path)
            for each in [each for each in rounds if round_index in (None, each.round_index)][-1:]:
                for file in self._opened(each, self._last):
                    with closing(file):
                        yield from file.lines(over=over or each is not rounds[-1])

    def follow(self) -> Generator[LogLine | None, None, None]:
        """Yield new lines, across restarts, until no agent of the run is alive here. `None` means no line for now."""
        begun: set[Path] = set()
        while True:
            over = True
            for path in self._paths:
                rounds, ended = self._look(path)
                if rounds and path not in begun:
                    self._left |= {(path, each.round_index) for each in rounds[:-1]}
                for each in rounds:
                    self._take(path, each, None if path in begun else self._last)
                yield from self._written(path, rounds[-1].round_index if rounds else -1, ended=ended)
                begun |= {path} if rounds else set()
                over = over and ended
            if over:
                return
            yield None

    def close(self) -> None:
        """Close the followed files; idempotent."""
        for files in self._files.values():
            for file in files:
                file.close()
        self._files.clear()

    def _look(self, path: Path) -> tuple[tuple[RoundLogs, ...], bool]:
        """Return the rounds of an agent, and whether it has ended."""
        if not path.is_dir():
            return (), True
        known = None if self._ended is None else self._ended()
        run = run_at(path)  # before its files are read: what an agent has written that has ended is all there
        return read_index(path, run.status).rounds, run.running is False if known is None else known

    def _take(self, path: Path, each: RoundLogs, last: int | None) -> None:
        key = (path, each.round_index)
        if key not in self._files and key not in self._left:
            self._files[key] = self._opened(each, last)

    def _written(self, path: Path, newest: int, *, ended: bool) -> Iterator[LogLine]:
        for key in [key for key in self._files if key[0] == path]:
            files = self._files[key]
            for file in files:
                yield from file.lines(over=ended)
            left = [file.is_left() for file in files] if key[1] < newest else [False]
            if ended or all(left):
                for file in files:
                    yield from file.lines(over=True)
                    file.close()
                del self._files[key]
                self._left.add(key)

    def _opened(self, each: RoundLogs, last: int | None) -> list[_File]:
        return [file for worker in each.workers for file in self._of_worker(worker, last)]

    def _of_worker(self, worker: WorkerLogs, last: int | None) -> Iterator[_File]:
        rank = worker.global_rank
        self.found_ranks.add(rank)
        if self._ranks is not None and rank not in self._ranks:
            return
        paths = {"stdout": worker.stdout, "stderr": worker.stderr}
        files = [_File(rank, stream, paths[stream], last) for stream in self._streams if paths[stream]]
        if not files:
            self.without_file.add(rank)
        yield from files
