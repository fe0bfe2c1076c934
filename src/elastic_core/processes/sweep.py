"""The sweep: finds and ends the processes that workers started and left behind.

The agent of `elastic run` is a subreaper: every process that a worker started is the agent's descendant until it ends,
even if it was detached. So a walk down from the agent is complete and, if nothing is left, costs one read.

There may be foreign descendants (the agent is process 1 of a container, or had children when it began), or the agent is
no subreaper. Then the marks and the kinship of `lineage` identify the workers' processes.
"""

import os
import resource  # imported now: later no descriptor may be free
import signal
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial

from elastic_core.processes import procfs
from elastic_core.processes.ladder import Found
from elastic_core.processes.lineage import Lineage, environment_entry

_PR_SET_CHILD_SUBREAPER = 36  # linux/prctl.h
_RLIMIT_LOCKS = 10  # asm-generic/resource.h; Python has no name for it


def has_strangers() -> bool:
    """Return whether this process may have descendants that no worker starts. Called: before the first start.

    Process 1 adopts processes that are attached to its container. A process that a shell became by `exec` has the
    shell's children.
    """
    own = os.getpid()
    return own == 1 or any(map(is_alive, procfs.children_map()(own)))


def set_limit(pid: int, soft: int) -> int | None:
    """Set the `RLIMIT_LOCKS` of a process (0: this one). Return the old value, or `None` if it was not possible."""
    try:
        before, hard = resource.prlimit(pid, _RLIMIT_LOCKS)
        resource.prlimit(pid, _RLIMIT_LOCKS, (soft, hard))
    except (OSError, ValueError):  # another user's process, an ended one, a sandbox, or a lower hard limit
        return None
    return before


def survivors(
    lineage: Lineage, *, root_pid: int | None, exclude: Collection[int] = ()
) -> tuple[procfs.ProcessStat, ...]:
    """Return the live processes of a lineage, in no particular order.

    `root_pid` is the agent if it is a subreaper: only its descendants are searched; `None` means all processes.
    `exclude` are processes of the agent itself, with all that they started.

    Ended processes that were not reaped are not alive. A found process may have ended meanwhile, and one that is being
    forked may be missed. Repeat the call until the result is empty if none may be left.
    """
    if root_pid is not None:
        seen = _descendants(root_pid, exclude)
    else:
        spared = {os.getpid(), *exclude, *(stat.pid for pid in exclude for stat in _descendants(pid, exclude))}
        seen = (stat for stat in procfs.all_stats() if stat.pid not in spared)
    return tuple(stat for stat in lineage.among(seen, {}) if stat.alive)


def _descendants(root_pid: int, exclude: Collection[int]) -> Iterator[procfs.ProcessStat]:
    children = procfs.children_map()
    seen = {root_pid, *exclude}
    todo = [root_pid]
    while todo:
        for pid in children(todo.pop()):
            if pid in seen:  # its pid was reused during the walk, which must not loop
                continue
            seen.add(pid)
            todo.append(pid)
            stat = procfs.read_stat(pid)
            if stat is not None:
                yield stat


def session_members(session: int) -> frozenset[tuple[int, int]]:
    """Return pid and start of each process in a session, including zombies."""
    return frozenset(
        (pid, stat.start_ticks)
        for pid in procfs.list_pids()
        if _id_of(os.getsid, pid) == session and (stat := procfs.read_stat(pid)) is not None
    )


def group_members(groups: Collection[int]) -> dict[int, tuple[procfs.ProcessStat, ...]]:
    """Return the live members of each of these process groups, without its leader."""
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
    """Send a signal to the process with this pid and start; return whether it got the signal.

    A process that has ended or that we may not signal is ignored. A reused pid is not signalled: the process is pinned
    by a pidfd first, and then compared.
    """
    try:
        pidfd = os.pidfd_open(pid)
    except ProcessLookupError:
        return False
    except (OSError, AttributeError):  # no pidfds or no descriptor: only compare
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
    """Return whether a process exists and has not ended (zombies have)."""
    stat = procfs.read_stat(pid)
    return stat is not None and stat.alive


class Sweeper:
    """Finds, signals and reaps processes that workers left, except those to be kept (`ELASTIC_KEEP=1`).

    `incarnation` marks the environment of this agent's workers. `subreaper`: processes that workers leave become
    this process's descendants; `strangers`: other processes may, too. `spared` returns the pids of the agent's own
    children that are no workers: the guard, and those of starters.
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
        """Whether other processes cannot be seen here."""

    @contextmanager
    def marking(self) -> Iterator[None]:
        """Mark processes that are started meanwhile before their first instruction, if this is an agent's own process.

        In a program's process, another thread could start a process at the same time, so only `started` marks there.
        """
        before = None if self._root_pid is None else set_limit(0, self._limit)
        try:
            yield
        finally:
            if before is not None:
                set_limit(0, before)

    def started(self, pid: int) -> None:
        """Mark a worker that was just started, and so all processes that it will start."""
        set_limit(pid, self._limit)

    def ended(self, pid: int) -> None:
        """Record the processes left in the session of a worker that was just reaped.

        While a process is left, the kernel does not reuse the session's number.
        """
        # Without foreign descendants all count, in any session.
        if self._goes_by_marks and not self.blind and (left := session_members(pid)):
            self._left[pid] = left

    @property
    def _goes_by_marks(self) -> bool:
        return self._root_pid is None or self._strangers

    def _sessions(self) -> frozenset[int]:
        # Sessions that workers left and that had processes ever since.
        still = {}
        for pid, before in self._left.items():
            now = session_members(pid)
            # Without a common member, the session has ended and its number was reused.
            if not before.isdisjoint(now):
                still[pid] = now
        self._left = still
        return frozenset(still)

    def look(self, *, workers: Collection[int], abandoned: Collection[int]) -> tuple[Found, ...]:
        """Return the live processes that workers started. `workers` are those not reaped that lead a session."""
        others = {*self._spared(), *abandoned}
        # Mostly nothing is left. Then no environment is read, so no thread is needed, which would wait for a core.
        if self.blind or (self._root_pid is not None and others.issuperset(procfs.children_map()(self._root_pid))):
            return ()
        return procfs.unblocked(partial(self._look, workers, others))

    def _look(self, workers: Collection[int], others: Collection[int]) -> tuple[Found, ...]:
        lineage = Lineage(
            self._incarnation,
            complete=not self._goes_by_marks,
            led={*workers, *self._sessions()},
            spared=self._is_agents,
        )
        # A process that survives SIGKILL stays for hours: finding it again would prolong the stop forever.
        found = survivors(lineage, root_pid=self._root_pid, exclude=others)
        self._kept = [stat for stat in lineage.kept.values() if stat.alive]
        return tuple(Found(pid=stat.pid, pgid=stat.group, start_ticks=stat.start_ticks) for stat in found)

    def _is_agents(self, stat: procfs.ProcessStat) -> bool:
        # Workers have their own sessions. A process in ours is the agent's (a hook's command), unless its environment
        # shows that the worker with the terminal started it.
        shares = self._root_pid is not None and stat.session == os.getsid(0)
        return shares and not procfs.has_environment_entry(stat.pid, self._entry)

    def left_running(self) -> tuple[str, ...]:
        """Return pid and name of each process that the last look kept and that still runs, for users."""
        kept = sorted(stat.pid for stat in self._kept if _is_same(stat.pid, stat.start_ticks))
        return tuple(f"{pid} {procfs.name_of(pid)}" for pid in kept)

    def send(self, found: Found, signum: int) -> None:
        """Signal one found process, unless its pid was reused."""
        kill(found.pid, found.start_ticks, signum)

    def mixed_groups(self, groups: Collection[int]) -> dict[int, tuple[procfs.ProcessStat, ...]]:
        """Return those of these groups that contain processes to be kept, each with its others, without the leader.

        A signal to such a group as a whole would reach the processes to be kept.
        """
        members = group_members(groups) if groups and not self.blind else {}
        return procfs.unblocked(partial(_mixed_groups, members)) if members else {}

    def reap_adopted(self, *, workers: Collection[int] = ()) -> None:
        """Reap ended orphans that this process has adopted as a subreaper. Called: whenever a child has ended."""
        if self._root_pid is None or self.blind:
            return
        own, session, known = os.getpid(), os.getsid(0), {*self._spared(), *workers}
        # Only strangers are in our own session. A child there may be a hook's, which waits for it: the kernel lists it
        # with the thread that forked it, and adopted ones with the main thread.
        adopted = frozenset(procfs.thread_children(own, own) if self._strangers else ())
        for pid in procfs.children_map()(own):
            # Another part waits for its exit code, which can be read only once.
            if pid in known:
                continue
            with suppress(ProcessLookupError, ChildProcessError):  # another part of this process reaped it
                if os.getsid(pid) != session or pid in adopted:
                    os.waitpid(pid, os.WNOHANG)


def _mixed_groups(members: Mapping[int, tuple[procfs.ProcessStat, ...]]) -> dict[int, tuple[procfs.ProcessStat, ...]]:
    mixed = {}
    for group, those in members.items():
        lineage = Lineage("", complete=True)
        others = tuple(lineage.among(those, {}))
        if lineage.kept:
            mixed[group] = others
    return mixed


def become_subreaper() -> bool:
    """Make this process the parent of workers' orphans, in place of init; return whether the kernel did so.

    Orphans are then descendants of the agent however they were detached, so that a sweep finds all.

    Called: before the first worker is started, because an orphan that init adopted never returns. The process stays a
    subreaper until it ends; children do not inherit that. The caller must also call `reap_adopted` at each SIGCHLD.
    """
    import _ctypes  # `ctypes` takes 2 ms to define types that this call does not need; only for `elastic run`

    try:
        program = _ctypes.dlopen(None, 0)  # type: ignore[arg-type]  # the stub lacks `None`, which means this program
        prctl = _ctypes.dlsym(program, "prctl")
    except (OSError, AttributeError):  # not Linux, or a statically linked interpreter
        return False
    return bool(_ctypes.call_function(prctl, (_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)) == 0)
