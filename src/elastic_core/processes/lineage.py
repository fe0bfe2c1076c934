"""Determines which processes belong to an agent's workers, for the agent's sweeps and for its guard.

It imports only `procfs`, because the small guard process uses it too.
"""

from __future__ import annotations

import os

from elastic_core.processes import procfs

TYPE_CHECKING = False  # as in procfs
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

KEEP_ENTRY = b"ELASTIC_KEEP=1"
"""The environment entry of a process that a worker leaves running on purpose."""


def environment_entry(incarnation: str) -> bytes:
    """Return the entry that marks the environment of an agent's workers."""
    return os.fsencode(f"ELASTIC_INCARNATION={incarnation}")


class Lineage:
    """The workers of an agent and all processes that they started, for one or several searches.

    A process belongs to it if it has one of two random marks: the incarnation in its environment, or a resource limit.
    So does a process whose parent belongs to it, or that is in a group or session that such a process has led.

    `complete`: all searched processes belong to it, marked or not. `workers` has the start time of each worker that
    the agent has named, by pid; `led` has process groups and sessions that workers led. `spared` returns whether a
    process that seems to belong to it is the agent's own.
    """

    def __init__(
        self,
        incarnation: str,
        *,
        complete: bool = False,
        workers: Mapping[int, int] | None = None,
        led: Iterable[int] = (),
        spared: Callable[[procfs.ProcessStat], bool] = lambda stat: False,
    ) -> None:
        self._entry = environment_entry(incarnation)
        self._limit = procfs.limit_mark(incarnation)
        self._complete = complete
        self._workers = {} if workers is None else workers
        self._led = set(led)
        self._spared = spared
        self._guards: set[int] = set()
        self.kept: dict[int, procfs.ProcessStat] = {}
        """Processes to be left running (`ELASTIC_KEEP=1`), and their children. They are never found."""

    def among(
        self, stats: Iterable[procfs.ProcessStat], found: dict[int, procfs.ProcessStat]
    ) -> Iterator[procfs.ProcessStat]:
        """Yield the processes of `stats` that belong to the lineage, each as soon as that is known.

        `stats` are all processes, read before the first is killed: an orphan has another parent. `found` has
        the processes that this search has found, by pid; yielded ones are added.
        """
        # Parents before their children, so that they are known first.
        left = sorted((stat for stat in stats if not stat.kernel), key=lambda stat: stat.start_ticks)
        # The limit comes last: most processes of a host are foreign, and it costs one more file for each.
        for is_marked in (self._has_entry, self._has_limit):
            yield from self._take(left, is_marked, found)
            while kin := list(self._take(left, lambda stat: self._is_kin(stat, found), found)):
                yield from kin

    def _take(
        self,
        left: list[procfs.ProcessStat],
        belongs: Callable[[procfs.ProcessStat], bool],
        found: dict[int, procfs.ProcessStat],
    ) -> Iterator[procfs.ProcessStat]:
        for stat in tuple(left):
            if belongs(stat):
                left.remove(stat)
                if not self._is_exempt(stat):
                    found[stat.pid] = stat
                    if stat.pid in (stat.group, stat.session):
                        self._led.add(stat.pid)
                    yield stat

    def _has_entry(self, stat: procfs.ProcessStat) -> bool:
        return self._complete or self._is_named(stat) or procfs.has_environment_entry(stat.pid, self._entry)

    def _has_limit(self, stat: procfs.ProcessStat) -> bool:
        # Processes keep the limit even if a worker clears their environment.
        return procfs.has_limit(stat.pid, self._limit) and not self._is_guards(stat)

    def _is_kin(self, stat: procfs.ProcessStat, found: dict[int, procfs.ProcessStat]) -> bool:
        related = stat.parent in found or stat.group in self._led or stat.session in self._led
        return related and not self._is_guards(stat)

    def _is_guards(self, stat: procfs.ProcessStat) -> bool:
        # A worker may be an agent itself. Its guard inherits the limit and must end the workers of that agent.
        if stat.parent in self._guards or procfs.is_guard(stat.pid):
            self._guards.add(stat.pid)
            return True
        return False

    def _is_named(self, stat: procfs.ProcessStat) -> bool:
        return self._workers.get(stat.pid) == stat.start_ticks

    def _is_exempt(self, stat: procfs.ProcessStat) -> bool:
        if self._is_named(stat):
            return False
        if self._spared(stat):
            return True
        if stat.parent in self.kept or procfs.has_environment_entry(stat.pid, KEEP_ENTRY):
            self.kept[stat.pid] = stat
            return True
        return False
