"""Finds workers in uninterruptible sleep: a device or a file server that does not answer holds them in the kernel.

No signal ends such a worker. One that reads a slow disk is in this state often, but never for long at a time; what
tells them apart is the kernel's count of how often it has gone to sleep.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Final

from elastic_core.clock import SYSTEM_CLOCK, Clock
from elastic_core.reactor import Reactor, Timer
from elastic_core.types import Record
from elastic_core.workers.procfs import read_file
from elastic_core.workers.spec import WorkerLaunch

LOOKS_A_LIMIT: Final = 4
SHORTEST_LOOK_S: Final = 0.05
LONGEST_LOOK_S: Final = 5.0


class Sleep(Record, frozen=True, kw_only=True):
    """One uninterruptible sleep of one worker: which it is, and since when it is seen."""

    serial: int
    since_s: float


class Sleeper(Record, frozen=True, kw_only=True):
    """A worker that has slept for too long; `wait`: where in the kernel, empty if that is not told."""

    local_rank: int
    global_rank: int
    pid: int
    slept_s: float
    wait: str = ""


def sleep_serial(pid: int, *, proc: str = "/proc") -> int | None:
    """Return how often a process has gone to sleep, if it is in uninterruptible sleep now; None: it is not."""
    fields = dict(
        line.split(b":", 1) for line in (read_file(f"{proc}/{pid}/status") or b"").splitlines() if b":" in line
    )
    if fields.get(b"State", b"").split()[:1] != [b"D"]:
        return None
    return int(fields.get(b"voluntary_ctxt_switches", b"0"))


def sleep_place(pid: int, *, proc: str = "/proc") -> str:
    """Return the kernel function in which a process sleeps; empty: not told."""
    name = (read_file(f"{proc}/{pid}/wchan") or b"").decode("ascii", "replace").strip()
    return "" if name == "0" else name


def look(before: Mapping[int, Sleep], serials: Mapping[int, int | None], *, now_s: float) -> dict[int, Sleep]:
    """Return who sleeps now, by local rank: since when, if it is the same sleep as before."""
    found = {}
    for rank, serial in serials.items():
        if serial is None:
            continue
        known = before.get(rank)
        same = known is not None and known.serial == serial
        found[rank] = known if known is not None and same else Sleep(serial=serial, since_s=now_s)
    return found


class SleepWatch:
    """Looks at this node's workers while they are meant to run.

    Args:
        reactor: The loop.
        limit_s: How long one may sleep; more than 0.
        on_stuck: Called with those that have slept for longer, the longest first: once a round, and as long as it
            returns False (something else is being decided) at the next look again.
        clock: The host's.
        proc: Where the kernel tells of processes.

    Threading: the reactor's thread.
    """

    def __init__(
        self,
        reactor: Reactor,
        *,
        limit_s: float,
        on_stuck: Callable[[tuple[Sleeper, ...]], bool],
        clock: Clock = SYSTEM_CLOCK,
        proc: str = "/proc",
    ) -> None:
        """Watch nothing yet."""
        self._reactor = reactor
        self._limit_s = limit_s
        self._on_stuck = on_stuck
        self._clock = clock
        self._proc = proc
        self._launches: dict[int, WorkerLaunch] = {}
        self._pids: dict[int, int] = {}
        self._sleeps: dict[int, Sleep] = {}
        self._timer: Timer | None = None

    def begin(self, launches: Iterable[WorkerLaunch], pids: Mapping[int, int]) -> None:
        """Begin to watch workers that were just started."""
        self.end()
        self._launches = {launch.local_rank: launch for launch in launches}
        self._pids = dict(pids)
        self._sleeps = {}
        self._look_later()

    def ended(self, local_rank: int) -> None:
        """Forget a worker that has ended: its pid may become another's."""
        self._pids.pop(local_rank, None)
        self._sleeps.pop(local_rank, None)

    def end(self) -> None:
        """Stop watching."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _look_later(self) -> None:
        pause_s = min(max(self._limit_s / LOOKS_A_LIMIT, SHORTEST_LOOK_S), LONGEST_LOOK_S)
        self._timer = self._reactor.call_later(pause_s, self._look)

    def _look(self) -> None:
        self._timer = None
        now_s = self._clock.monotonic_s()
        serials = {rank: sleep_serial(pid, proc=self._proc) for rank, pid in self._pids.items()}
        self._sleeps = look(self._sleeps, serials, now_s=now_s)
        stuck = [rank for rank, sleep in self._sleeps.items() if now_s - sleep.since_s >= self._limit_s]
        if not stuck or not self._is_told(stuck, now_s):
            self._look_later()

    def _is_told(self, stuck: Iterable[int], now_s: float) -> bool:
        sleepers = (self._sleeper(rank, now_s) for rank in stuck)
        return self._on_stuck(tuple(sorted(sleepers, key=lambda each: (-each.slept_s, each.local_rank))))

    def _sleeper(self, rank: int, now_s: float) -> Sleeper:
        pid = self._pids[rank]
        return Sleeper(
            local_rank=rank,
            global_rank=self._launches[rank].global_rank,
            pid=pid,
            slept_s=now_s - self._sleeps[rank].since_s,
            wait=sleep_place(pid, proc=self._proc),
        )
