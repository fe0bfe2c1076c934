"""The sweep: finds and ends the processes that workers started and left behind.

The agent of `elastic run` is a subreaper: every process that a worker started is a descendant of the agent until it
ends, however it detached itself. So a walk down from the agent is complete and, if nothing is left, costs one read.

If there may be strangers among the descendants (the agent is process 1 of a container, or had children when it began),
or the agent is no subreaper, the marks and the kinship of `lineage` tell the workers' processes from others.
"""

import os
import resource  # not later: a descriptor for it may be lacking then
import signal
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from functools import partial

from elastic_core.processes import procfs
from elastic_core.processes.ladder import Found
from elastic_core.processes.lineage import Lineage, environment_entry

_PR_SET_CHILD_SUBREAPER = 36  # linux/prctl.h
_RLIMIT_LOCKS = 10  # asm-generic/resource.h; Python has no name for it


def has_strangers() -> bool:
    """Return whether this process may have descendants that none of its workers starts. Called: before the first start.

    Process 1 inherits processes that others attach to its container; a process that a shell became by `exec` has the
    children of that shell.
    """
    own = os.getpid()
    return own == 1 or any(map(is_alive, procfs.children_map()(own)))


def set_limit(pid: int, soft: int) -> int | None:
    """Set the `RLIMIT_LOCKS` of a process (0: this one); return what it was, None where that was not possible."""
    try:
        before, hard = resource.prlimit(pid, _RLIMIT_LOCKS)
        resource.prlimit(pid, _RLIMIT_LOCKS, (soft, hard))
    except (OSError, ValueError):  # it has changed its user, or ended; a sandbox; a lower limit
        return None
    return before


def survivors(
    lineage: Lineage, *, root_pid: int | None, exclude: Collection[int] = ()
) -> tuple[procfs.ProcessStat, ...]:
    """Return the live processes of a lineage, in no particular order.

    Args:
        lineage: Tells them from others.
        root_pid: The agent, if it is a subreaper: only its descendants are looked at. None: every process is.
        exclude: Processes that are the agent's own (the guard); below a root with all that they started.

    Processes that have ended and were not reaped are not alive. One found may have ended by the time of return, and one
    just being forked may be missed: a caller that wants none left looks until the answer is empty.
    """
    if root_pid is not None:
        seen = _descendants(root_pid, exclude)
    else:
        seen = (stat for stat in procfs.all_stats() if stat.pid != os.getpid() and stat.pid not in exclude)
    return tuple(stat for stat in lineage.among(seen, {}) if stat.alive)


def _descendants(root_pid: int, exclude: Collection[int]) -> Iterator[procfs.ProcessStat]:
    children = procfs.children_map()
    seen = {root_pid, *exclude}
    todo = [root_pid]
    while todo:
        for pid in children(todo.pop()):
            if pid in seen:  # the kernel gave its number to another process during the walk, which must not go round
                continue
            seen.add(pid)
            todo.append(pid)
            stat = procfs.read_stat(pid)
            if stat is not None:
                yield stat


def session_members(session: int) -> frozenset[tuple[int, int]]:
    """Return number and start of each process in a session, zombies included."""
    return frozenset(
        (pid, stat.start_ticks)
        for pid in procfs.list_pids()
        if _id_of(os.getsid, pid) == session and (stat := procfs.read_stat(pid)) is not None
    )


def group_members(groups: Collection[int]) -> dict[int, tuple[procfs.ProcessStat, ...]]:
    """Return the live members of each of some process groups, without its leader."""
    members = dict[int, tuple[procfs.ProcessStat, ...]]()
    for pid in procfs.list_pids():
        group = _id_of(os.getpgid, pid)
        if group in groups and pid != group and (stat := procfs.read_stat(pid)) is not None and stat.alive:
            members[group] = (*members.get(group, ()), stat)
    return members


def _id_of(get: Callable[[int], int], pid: int) -> int:
    try:
        return get(pid)
    except ProcessLookupError:
        return -1


def kill(pid: int, start_ticks: int, signum: int) -> bool:
    """Send a signal to the process that was found with this number and start; return whether it got the signal.

    One that has ended or is not ours to signal is passed over. A number that the kernel has meanwhile given to another
    process is left alone: the process is pinned by a pidfd first, and then compared with what was found.
    """
    try:
        pidfd = os.pidfd_open(pid)
    except ProcessLookupError:
        return False
    except (OSError, AttributeError):  # no pidfds here, or no descriptor left: the comparison alone must do
        pidfd = -1
    try:
        if not _is_same(pid, start_ticks):
            return False
        if pidfd >= 0:
            signal.pidfd_send_signal(pidfd, signum)
        else:
            os.kill(pid, signum)
    except (ProcessLookupError, PermissionError):
        return False
    finally:
        if pidfd >= 0:
            os.close(pidfd)
    return True


def _is_same(pid: int, start_ticks: int) -> bool:
    stat = procfs.read_stat(pid)
    return stat is not None and stat.alive and stat.start_ticks == start_ticks


def is_alive(pid: int) -> bool:
    """Return whether a process exists and has not ended (a zombie has)."""
    stat = procfs.read_stat(pid)
    return stat is not None and stat.alive


def reap_adopted(known: Collection[int], *, own_session: bool = True) -> list[int]:
    """Collect the exits of processes that a subreaper inherited; return their pids.

    Args:
        known: Our own children, whose exits others wait for: workers not yet reaped, and the guard.
        own_session: Also those in our session, which come from elsewhere than from workers. A child there may be what
            a hook has started and waits for: the kernel lists it with the thread that forked it, and what this process
            adopted with the main thread.

    Each adopted process stays a zombie until this is called: call it at SIGCHLD or whenever a worker has ended.
    """
    own = os.getpid()
    session = os.getsid(0)
    adopted = frozenset(procfs.thread_children(own, own) if own_session else ())
    reaped = []
    for pid in procfs.children_map()(own):
        # Its exit code belongs to the part that waits for it, and can be read only once.
        if pid in known:
            continue
        with suppress(ProcessLookupError, ChildProcessError):  # another part of this process was faster
            if (os.getsid(pid) != session or pid in adopted) and os.waitpid(pid, os.WNOHANG)[0]:
                reaped.append(pid)
    return reaped


class Sweeper:
    """Finds, signals and reaps processes that workers left; spares those started to stay (`ELASTIC_KEEP=1`).

    Args:
        incarnation: The mark in the environment of this agent's workers.
        subreaper: Whether this process is one: then every process that workers leave becomes its descendant.
        strangers: Whether other processes may become its descendants, too.
        spared: Returns the pids of the agent's own children that are no workers: the guard, and those of starters.
    """

    def __init__(
        self, incarnation: str, *, subreaper: bool, strangers: bool, spared: Callable[[], Collection[int]]
    ) -> None:
        self._incarnation = incarnation
        self._entry = environment_entry(incarnation)
        self._limit = procfs.limit_mark(incarnation)
        self._root_pid = os.getpid() if subreaper else None
        self._strangers = strangers
        self._spared = spared
        self._left: dict[int, frozenset[tuple[int, int]]] = {}
        self._kept: list[procfs.ProcessStat] = []
        self.blind = not procfs.is_usable()
        """Whether other processes can't be seen here."""

    @contextmanager
    def marking(self) -> Iterator[None]:
        """Mark processes that are started meanwhile before their first instruction, if this process is only an agent.

        In a user's process another thread could start a process at the same time: there `started` marks alone.
        """
        before = None if self._root_pid is None else set_limit(0, self._limit)
        try:
            yield
        finally:
            if before is not None:
                set_limit(0, before)

    def started(self, pid: int) -> None:
        """Mark a worker that was just started, and so all that it will start."""
        set_limit(pid, self._limit)

    def ended(self, pid: int) -> None:
        """Note the processes left in the session of a worker that was just reaped.

        While there is one, the kernel gives the session's number to no other; afterwards it may be a stranger's.
        """
        # Without strangers every descendant counts, whatever its session.
        if self._goes_by_marks and not self.blind and (left := session_members(pid)):
            self._left[pid] = left

    @property
    def _goes_by_marks(self) -> bool:
        return self._root_pid is None or self._strangers

    def _sessions(self) -> frozenset[int]:
        """Return the sessions that workers left and that have had a process in them ever since."""
        still = {}
        for pid, before in self._left.items():
            now = session_members(pid)
            # No member of before is left: the session has ended, and this one is of a process that got its number.
            if not before.isdisjoint(now):
                still[pid] = now
        self._left = still
        return frozenset(still)

    def look(self, *, workers: Collection[int], abandoned: Collection[int]) -> tuple[Found, ...]:
        """Return the live processes that workers started; `workers`: those not reaped that lead a session."""
        if self.blind:
            return ()
        return procfs.unblocked(partial(self._look, workers, abandoned))

    def _look(self, workers: Collection[int], abandoned: Collection[int]) -> tuple[Found, ...]:
        lineage = Lineage(
            self._incarnation,
            complete=not self._goes_by_marks,
            led={*workers, *self._sessions()},
            spared=self._is_agents,
        )
        # A process that SIGKILL did not end stays in the table for hours: a stop that found it again would never end.
        found = survivors(lineage, root_pid=self._root_pid, exclude={*self._spared(), *abandoned})
        self._kept = [stat for stat in lineage.kept.values() if stat.alive]
        return tuple(Found(pid=stat.pid, pgid=stat.group, start_ticks=stat.start_ticks) for stat in found)

    def _is_agents(self, stat: procfs.ProcessStat) -> bool:
        # Workers have sessions of their own. What shares ours is a child of the agent itself (a command that a hook
        # runs), unless the worker that has the terminal started it, which its environment tells.
        shares = self._root_pid is not None and stat.session == os.getsid(0)
        return shares and not procfs.has_environment_entry(stat.pid, self._entry)

    def left_running(self) -> tuple[str, ...]:
        """Return number and name of each process that the last look has kept and that still runs, for people."""
        kept = sorted(stat.pid for stat in self._kept if _is_same(stat.pid, stat.start_ticks))
        return tuple(f"{pid} {procfs.name_of(pid)}" for pid in kept)

    def send(self, found: Found, signum: int) -> None:
        """Signal one found process, if it still is the one that was found."""
        kill(found.pid, found.start_ticks, signum)

    def mixed_groups(self, groups: Collection[int]) -> dict[int, tuple[procfs.ProcessStat, ...]]:
        """Return those of some workers' process groups that hold processes to be kept: of each the others, no leader.

        A signal to such a group as a whole would reach the kept ones.
        """
        return procfs.unblocked(partial(_mixed_groups, groups)) if groups and not self.blind else {}

    def reap_adopted(self, *, workers: Collection[int] = ()) -> None:
        """Reap ended orphans that this process has adopted as a subreaper, but no process that the agent started."""
        if self._root_pid is not None and not self.blind:
            reap_adopted({*self._spared(), *workers}, own_session=self._strangers)


def _mixed_groups(groups: Collection[int]) -> dict[int, tuple[procfs.ProcessStat, ...]]:
    mixed = {}
    for group, members in group_members(groups).items():
        lineage = Lineage("", complete=True)
        others = tuple(lineage.among(members, {}))
        if lineage.kept:
            mixed[group] = others
    return mixed


def become_subreaper() -> bool:
    """Make this process the parent of the orphans of workers, in place of init; return whether the kernel did so.

    Orphans are then descendants of the agent however they detached themselves, so that a sweep finds all.

    Called: before the first worker is started, since an orphan that init adopted never comes back. The process stays a
    subreaper until it ends; children don't inherit that. The caller must also call `reap_adopted` at each SIGCHLD.
    """
    import ctypes  # 1.4 ms, and only `elastic run` needs it

    try:
        prctl = ctypes.CDLL(None, use_errno=True).prctl
    except (OSError, AttributeError):  # no Linux, or a statically linked interpreter
        return False
    unused = ctypes.c_ulong(0)
    return bool(prctl(_PR_SET_CHILD_SUBREAPER, ctypes.c_ulong(1), unused, unused, unused) == 0)
