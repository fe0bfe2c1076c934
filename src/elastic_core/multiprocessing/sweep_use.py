"""The ladder's eyes and hands for processes that are no workers: what workers started and left."""

import os
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from functools import partial

from elastic_core.multiprocessing import procfs, sweep
from elastic_core.multiprocessing.ladder import Found


class Sweeper:
    """Finds, signals and reaps them; spares those that were started to stay (`ELASTIC_KEEP=1`).

    Args:
        incarnation: What marks the environment of this agent's workers.
        subreaper: Whether this process is one: then everything that workers leave becomes its descendant.
        strangers: Whether other processes may, too.
        spared: Gives the pids of the agent's own children that are no workers (the guard).
    """

    def __init__(
        self, incarnation: str, *, subreaper: bool, strangers: bool, spared: Callable[[], Collection[int]]
    ) -> None:
        """Look at nothing yet."""
        self._incarnation = incarnation
        self._entry = sweep.environment_entry(incarnation)
        self._limit = procfs.limit_mark(incarnation)
        self._root_pid = os.getpid() if subreaper else None
        self._strangers = strangers
        self._spared = spared
        self._left: dict[int, frozenset[tuple[int, int]]] = {}
        self._kept: tuple[sweep.Survivor, ...] = ()
        self.blind = not procfs.is_usable()
        """Whether other processes can't be seen here."""

    @contextmanager
    def marking(self) -> Iterator[None]:
        """Have what is started meanwhile be marked before its first instruction: in a process that is an agent alone.

        In somebody else's process another thread could start something at the same time; `started` must do.
        """
        before = None if self._root_pid is None else sweep.set_limit(0, self._limit)
        try:
            yield
        finally:
            if before is not None:
                sweep.set_limit(0, before)

    def started(self, pid: int) -> None:
        """Mark a worker that was just started, and so all that it will start."""
        sweep.set_limit(pid, self._limit)

    def ended(self, pid: int) -> None:
        """Note who is left in the session of a worker that was just reaped.

        As long as somebody is, the kernel gives its number to nobody else; afterwards the number may be a stranger's.
        """
        if self._goes_by_marks and not self.blind and (left := sweep.session_members(pid)):
            self._left[pid] = left

    @property
    def _goes_by_marks(self) -> bool:
        return self._root_pid is None or self._strangers

    def _sessions(self) -> frozenset[int]:
        """Return the sessions that workers left, as far as somebody has been in each of them ever since."""
        still = {}
        for pid, before in self._left.items():
            now = sweep.session_members(pid)
            if not before.isdisjoint(now):
                still[pid] = now
        self._left = still
        return frozenset(still)

    def look(self, *, workers: Collection[int], abandoned: Collection[int]) -> tuple[Found, ...]:
        """Return what is alive of what the workers started; `workers`: those not reaped that lead a session."""
        if self.blind:
            return ()
        return procfs.unblocked(partial(self._look, workers, abandoned))

    def _look(self, workers: Collection[int], abandoned: Collection[int]) -> tuple[Found, ...]:
        seen = sweep.survivors(
            self._incarnation,
            root_pid=self._root_pid,
            exclude={*self._spared(), *abandoned},
            workers={*workers, *self._sessions()},
            strangers=self._strangers,
        )
        if self._root_pid is not None:
            seen = tuple(survivor for survivor in seen if self._is_workers(survivor))
        self._kept = _kept_of(seen)
        return tuple(
            Found(pid=int(survivor), pgid=survivor.group, start_ticks=survivor.start_ticks)
            for survivor in seen
            if survivor not in self._kept
        )

    def _is_workers(self, pid: int) -> bool:
        # Workers have sessions of their own. What shares ours is a child of the agent itself (a command that a hook
        # runs), unless the worker that has the terminal started it, which its environment tells.
        with suppress(ProcessLookupError):
            return os.getsid(pid) != os.getsid(0) or procfs.has_environment_entry(pid, self._entry)
        return False

    def left_running(self) -> tuple[str, ...]:
        """Return who was spared by the last look and still runs: number and name of each, for people."""
        return tuple(f"{int(kept)} {procfs.name_of(kept)}" for kept in sorted(self._kept) if sweep.is_same(kept))

    def send(self, found: Found, signum: int) -> None:
        """Signal one found process, if it still is the one that was found."""
        survivor = sweep.Survivor(found.pid)
        survivor.start_ticks = found.start_ticks
        sweep.kill_pids((survivor,), signum)

    def mixed_groups(self, groups: Collection[int]) -> dict[int, tuple[sweep.Survivor, ...]]:
        """Return those of some workers' process groups that hold who is to be kept: of each its others, but the leader.

        A signal to such a group as a whole would reach the wrong.
        """
        return procfs.unblocked(partial(_mixed_groups, groups)) if groups and not self.blind else {}

    def reap_adopted(self, *, workers: Collection[int] = ()) -> None:
        """Reap the ended orphans that came to us as a subreaper; what the agent itself started is left alone."""
        if self._root_pid is not None and not self.blind:
            sweep.reap_adopted({*self._spared(), *workers}, own_session=self._strangers)


def _mixed_groups(groups: Collection[int]) -> dict[int, tuple[sweep.Survivor, ...]]:
    mixed = {}
    for group, members in sweep.group_members(groups).items():
        if kept := _kept_of(members):
            mixed[group] = tuple(member for member in members if member not in kept)
    return mixed


def _kept_of(seen: tuple[sweep.Survivor, ...]) -> tuple[sweep.Survivor, ...]:
    """Return those that are to stay, with all that they started."""
    kept = newcomers = {survivor for survivor in seen if sweep.is_kept(survivor)}
    while newcomers:
        newcomers = {survivor for survivor in seen if survivor not in kept and survivor.parent in kept}
        kept = kept | newcomers
    return tuple(kept)
