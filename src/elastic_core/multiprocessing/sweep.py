"""Find and end what workers started and left behind.

Two ways to know such a process. The agent of `elastic run` is a subreaper: whatever a worker started, and however it
detached itself, is a descendant of the agent until it ends, so a walk down from the agent is complete and, when nothing
is left, one read of a few bytes. Without a subreaper the mark is the worker's environment: the incarnation in it is
random, and inherited by everything that does not clear its environment on purpose.
"""

import os
import signal
from collections.abc import Collection, Iterable, Iterator
from contextlib import suppress

from elastic_core.multiprocessing import procfs

INCARNATION_VARIABLE = "ELASTIC_INCARNATION"


class Survivor(int):
    """The pid of a process that was found alive; its process group, and when it was started.

    The start tells it from a later process that the kernel gave the same number.
    """

    group: int
    start_ticks: int

    @classmethod
    def of(cls, stat: procfs.ProcessStat) -> "Survivor":
        """Name the process that `stat` was read from."""
        survivor = cls(stat.pid)
        survivor.group = stat.group
        survivor.start_ticks = stat.start_ticks
        return survivor


def environment_entry(incarnation: str) -> bytes:
    """Return the entry that marks the environment of an agent's workers."""
    return os.fsencode(f"{INCARNATION_VARIABLE}={incarnation}")


def survivors(
    incarnation: str,
    *,
    root_pid: int | None,
    exclude: Collection[int] = (),
    workers: Collection[int] = (),
) -> tuple[Survivor, ...]:
    """Return the live processes that workers started, in no particular order.

    Args:
        incarnation: The `ELASTIC_INCARNATION` of this agent's workers; looked for where `root_pid` is None.
        root_pid: The agent, if it is a subreaper: all its descendants count. None: it is not.
        exclude: Processes that are the agent's own (the guard), with all that they started.
        workers: Pids of workers that led their own process group or session; without a subreaper whatever is still in
            one of those counts too, so that a program which overwrites its environment (to set its title, as
            setproctitle does) is found.

    Processes that have ended and were not reaped are not alive. One found may have ended by the time of return, and one
    just being forked may be missed: whoever wants none left asks until the answer is empty.
    """
    if root_pid is not None:
        found = _live_descendants(root_pid, exclude)
    else:
        found = _marked(environment_entry(incarnation), exclude, workers)
    return tuple(Survivor.of(stat) for stat in found)


def _live_descendants(root_pid: int, exclude: Collection[int]) -> Iterator[procfs.ProcessStat]:
    children = procfs.children_map()
    seen = {root_pid, *exclude}
    todo = [root_pid]
    while todo:
        for pid in children(todo.pop()):
            if pid in seen:  # a number that is used again while we walk must not send us round
                continue
            seen.add(pid)
            todo.append(pid)
            stat = procfs.read_stat(pid)
            if stat is not None and stat.alive:
                yield stat


def _marked(entry: bytes, exclude: Collection[int], workers: Collection[int]) -> Iterator[procfs.ProcessStat]:
    left_out = {os.getpid(), *exclude}
    for pid in procfs.list_pids():
        if pid in left_out:
            continue
        if procfs.has_environment_entry(pid, entry):
            stat = procfs.read_stat(pid)
        elif workers and (stat := procfs.read_stat(pid)) is not None:
            stat = stat if stat.group in workers or stat.session in workers else None
        else:
            continue
        if stat is not None and stat.alive:
            yield stat


def kill_pids(pids: Iterable[Survivor], signum: int) -> int:
    """Send a signal to survivors; return how many got it. One that has ended or is not ours to signal is passed over.

    A number that the kernel has meanwhile given to another process is left alone: the process is pinned by a pidfd
    first, and then compared with what was found.
    """
    return sum(_kill(survivor, signum) for survivor in pids)


def _kill(survivor: Survivor, signum: int) -> bool:
    try:
        pidfd = os.pidfd_open(survivor)
    except ProcessLookupError:
        return False
    except (OSError, AttributeError):  # no pidfds here, or no descriptor left: the comparison alone must do
        pidfd = -1
    try:
        if not _is_same(survivor):
            return False
        if pidfd >= 0:
            signal.pidfd_send_signal(pidfd, signum)
        else:
            os.kill(survivor, signum)
    except (ProcessLookupError, PermissionError):
        return False
    finally:
        if pidfd >= 0:
            os.close(pidfd)
    return True


def _is_same(survivor: Survivor) -> bool:
    stat = procfs.read_stat(survivor)
    return stat is not None and stat.alive and stat.start_ticks == survivor.start_ticks


def is_alive(pid: int) -> bool:
    """Return whether a process exists and has not ended (a zombie has)."""
    stat = procfs.read_stat(pid)
    return stat is not None and stat.alive


def reap_adopted(known: Collection[int]) -> list[int]:
    """Collect the exits of processes that a subreaper inherited; return their pids.

    Args:
        known: Our own children, whose exits others wait for: workers not yet reaped, and the guard.

    Each adopted process stays a zombie until this is called: call it at SIGCHLD or whenever a worker has ended.
    """
    own = os.getpid()
    reaped = []
    for pid in procfs.children_map()(own):
        if pid in known:
            continue
        with suppress(ChildProcessError):  # another part of this process was faster
            if os.waitpid(pid, os.WNOHANG)[0]:
                reaped.append(pid)
    return reaped
