"""The activity of workers without heartbeats: the bytes that they and their children read and write."""

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from elastic_core.api import Record
from elastic_watch import vitals


class Activity(Record, frozen=True, kw_only=True):
    """One worker's activity: `written` bytes so far, and a `mark` that changes whenever data are read or written.

    Both are `None` if neither its log files nor its counters can be read.
    """

    written: int | None = None
    mark: int | None = None


class ActivityMeter:
    """Reads the activity of a round's workers.

    Args:
        pids: By local rank.
        files: The log files of each; empty means none.
        ours: Returns how many bytes a worker has written on request; they are no sign of life.
    """

    def __init__(
        self, pids: Mapping[int, int], files: Mapping[int, Iterable[str]], ours: Callable[[int], int] = lambda rank: 0
    ) -> None:
        """Read nothing yet."""
        self._ours = ours
        self._pids = dict(pids)
        self._files = {rank: tuple(names) for rank, names in files.items()}
        self._own: dict[int, tuple[int, vitals.Traffic | None]] = {}
        self._session: dict[int, vitals.Traffic | None] = {}
        self._marks: dict[int, int] = {}
        self._written: dict[int, int] = {}

    def look(self, ranks: Iterable[int]) -> dict[int, Activity]:
        """Return the activity of each worker. Children are read only if the worker itself is idle."""
        still: dict[int, int] = {}
        found: dict[int, Activity] = {}
        for rank in ranks:
            size = sum(_size(name) for name in self._files.get(rank, ()) if name)
            traffic = self._without_ours(rank, vitals.traffic_of(self._pids[rank]))
            if traffic is None and not size:
                found[rank] = Activity()
                continue
            if self._own.get(rank) == (size, traffic):
                still[self._pids[rank]] = rank
            else:
                self._own[rank] = (size, traffic)
                self._note(rank, size + (0 if traffic is None else traffic.written))
        if still:
            for leader, sum_ in vitals.session_traffic(still).items():
                rank = still[leader]
                total = self._without_ours(rank, sum_)
                before = self._session.get(rank)
                self._session[rank] = total
                if before not in (None, total) and total is not None:
                    self._note(rank, total.written)
        for rank, mark in self._marks.items():
            if rank not in found:
                found[rank] = Activity(written=self._written[rank], mark=mark)
        return found

    def _without_ours(self, rank: int, traffic: vitals.Traffic | None) -> vitals.Traffic | None:
        if traffic is None:
            return None
        return vitals.Traffic(read=traffic.read, written=max(0, traffic.written - self._ours(rank)))

    def _note(self, rank: int, written: int) -> None:
        self._marks[rank] = self._marks.get(rank, 0) + 1
        self._written[rank] = max(written, self._written.get(rank, 0))


def _size(name: str) -> int:
    try:
        return Path(name).stat().st_size
    except OSError:
        return 0
