"""The ladder's eyes and hands for processes that are no workers: what workers started and left."""

import os
from collections.abc import Callable, Collection
from contextlib import suppress

from elastic_core.multiprocessing import procfs
from elastic_core.multiprocessing.ladder import Found
from elastic_core.multiprocessing.sweep import Survivor, environment_entry, kill_pids, survivors


class Sweeper:
    """Finds, signals and reaps them.

    Args:
        incarnation: What marks the environment of this agent's workers.
        subreaper: Whether this process is one: then everything that workers leave becomes its descendant.
        spared: Gives the pids of the agent's own children that are no workers (the guard).
    """

    def __init__(self, incarnation: str, *, subreaper: bool, spared: Callable[[], Collection[int]]) -> None:
        """Look at nothing yet."""
        self._incarnation = incarnation
        self._entry = environment_entry(incarnation)
        self._root_pid = os.getpid() if subreaper else None
        self._spared = spared

    def look(self, *, workers: Collection[int], abandoned: Collection[int]) -> tuple[Found, ...]:
        """Return what is alive of what the workers started."""
        exclude = {*self._spared(), *abandoned}
        seen = survivors(self._incarnation, root_pid=self._root_pid, exclude=exclude, workers=workers)
        found = []
        for survivor in seen:
            with suppress(ProcessLookupError):
                if self._root_pid is None or self._is_workers(survivor):
                    group = os.getpgid(survivor)
                    found.append(Found(pid=int(survivor), pgid=group, start_ticks=survivor.start_ticks))
        return tuple(found)

    def _is_workers(self, pid: int) -> bool:
        # Workers have sessions of their own. What shares ours is a child of the agent itself (a command that a hook
        # runs), unless the worker that has the terminal started it, which its environment tells.
        return os.getsid(pid) != os.getsid(0) or procfs.has_environment_entry(pid, self._entry)

    def send(self, found: Found, signum: int) -> None:
        """Signal one found process, if it still is the one that was found."""
        survivor = Survivor(found.pid)
        survivor.start_ticks = found.start_ticks
        kill_pids((survivor,), signum)

    def reap_adopted(self, *, workers: Collection[int] = ()) -> None:
        """Reap the ended orphans that came to us as a subreaper; what the agent itself started is left alone."""
        if self._root_pid is None:
            return
        kept = {*self._spared(), *workers}
        for pid in procfs.children_map()(self._root_pid):
            if pid not in kept:
                with suppress(ProcessLookupError, ChildProcessError):
                    if os.getsid(pid) != os.getsid(0):
                        os.waitpid(pid, os.WNOHANG)
