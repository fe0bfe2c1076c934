"""Heeds the timers that workers set over a named pipe, in the agent's own loop.

A worker can only set timers for itself and for what it has started. Whatever else comes through the pipe (no request,
another's pid) is told once, and left out: nobody is signalled because of it.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Final

from elastic_core.clock import SYSTEM_CLOCK, Clock
from elastic_core.processes.procfs import read_stat
from elastic_core.processes.spec import WorkerLaunch
from elastic_core.reactor import Reactor, Timer
from elastic_core.timer.deadlines import MOST, Deadlines, Expired
from elastic_core.timer.file_request import LONGEST_LINE, FileTimerRequest, Lines, parse
from elastic_core.timer.pipe import TimerPipe
from elastic_core.types import Record

STOOD_STILL_S: Final = 1.0
"""A look that comes so much too late: the agent was stopped, perhaps with its workers."""
GO_ON_S: Final = 5.0
"""What workers then have to go on: nobody knows how much of their time was left when they were stopped."""
_MOST_READS: Final = 32
_MOST_ANCESTORS: Final = 64
_SHOWN: Final = 100


class Overdue(Record, frozen=True, kw_only=True):
    """A timer of a live worker, or of something that it has started, that has run down `late_s` seconds ago."""

    local_rank: int
    request: FileTimerRequest
    late_s: float


class TimerWatch:
    """The server's end of the pipe.

    Args:
        reactor: The loop.
        pipe: Closed here.
        on_overdue: Called with timers that have run down, the earliest first.
        notice: Takes one line for people.
        heeds: Whether timers may run down; else they are read, and forgotten.
        clock: The host's.

    Threading: the reactor's thread.
    """

    def __init__(
        self,
        reactor: Reactor,
        pipe: TimerPipe,
        *,
        on_overdue: Callable[[tuple[Overdue, ...]], None],
        notice: Callable[[str], None],
        heeds: bool = True,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        """Read, so that nobody waits; heed nobody yet."""
        self._reactor = reactor
        self._pipe = pipe
        self._on_overdue = on_overdue
        self._notice = notice
        self._heeds = heeds
        self._clock = clock
        self._lines = Lines()
        self._deadlines = Deadlines()
        self._workers: dict[int, int] = {}
        self._owners: dict[int, int] = {}
        self._told: set[str] = set()
        self._timer: Timer | None = None
        self._due_s = 0.0
        reactor.add_reader(pipe.fd, self._on_readable)

    def begin(self, launches: Iterable[WorkerLaunch], pids: Mapping[int, int]) -> None:
        """Begin to heed workers that were just started."""
        self.end()
        self._read_all()  # what the last round's have left
        if self._heeds:
            self._workers = {pid: rank for rank, pid in pids.items()}

    def ended(self, local_rank: int) -> None:
        """Forget a worker that has ended, and what it has started: their pids may become others'."""
        self._workers = {pid: rank for pid, rank in self._workers.items() if rank != local_rank}
        for pid in [pid for pid, rank in self._owners.items() if rank == local_rank]:
            self._deadlines.forget(pid)
            del self._owners[pid]

    def end(self) -> None:
        """Heed nobody any longer."""
        self._workers, self._owners = {}, {}
        self._deadlines.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def close(self) -> None:
        """Remove the pipe; idempotent."""
        self.end()
        if self._pipe.fd >= 0:
            self._reactor.remove_reader(self._pipe.fd)
            self._pipe.close()

    # --- requests

    def _read_all(self) -> None:
        for _ in range(_MOST_READS):  # whoever writes all the time must not hold up the loop
            if not self._read():
                return

    def _on_readable(self) -> None:
        self._read()

    def _read(self) -> bool:
        chunk = self._pipe.read()
        for line in self._lines.feed(chunk):
            self._take(line)
        if self._lines.too_long:
            self._tell("line", f"a line in the pipe of timers has more than {LONGEST_LINE} bytes; it is left out")
        self._arm()
        return bool(chunk)

    def _take(self, line: bytes) -> None:
        if not self._workers:
            return
        try:
            request = parse(line)
        except ValueError as err:
            shown = line[:_SHOWN].decode("ascii", "backslashreplace")
            self._tell("request", f"{shown!r} in the pipe of timers is no request ({err}); it is left out")
            return
        if request.expiration_time >= 0 and not self._own(request.worker_pid):
            return
        wall_s, now_s = self._clock.wall_ns() / 1e9, self._clock.monotonic_s()
        if not self._deadlines.take(request, now_s=now_s, wall_s=wall_s):
            self._tell("most", f"more than {MOST} timers are set at the same time; further ones are left out")

    def _own(self, pid: int) -> bool:
        rank = self._rank_of(pid)
        if rank is not None:
            self._owners[pid] = rank
            if len(self._owners) > 2 * MOST:  # of children of a worker that come and go
                kept = self._deadlines.pids | {pid}
                self._owners = {pid: rank for pid, rank in self._owners.items() if pid in kept}
            return True
        if read_stat(pid) is not None:  # else it has ended since
            self._tell("stranger", f"a timer of process {pid}, which is no worker of this agent, is left out")
        return False

    def _rank_of(self, pid: int) -> int | None:
        """Return the local rank of the worker that the process is, or that has started it; None: it is a stranger."""
        for _ in range(_MOST_ANCESTORS):
            if pid in self._workers:
                return self._workers[pid]
            stat = read_stat(pid)
            if stat is None or not stat.alive or stat.parent <= 1:
                return None
            pid = stat.parent
        return None

    def _tell(self, kind: str, text: str) -> None:
        if kind not in self._told:
            self._told.add(kind)
            self._notice(text)

    # --- time

    def _arm(self) -> None:
        """See to it that somebody looks when the next timer runs down; most are given back long before."""
        due_s = self._deadlines.next_s
        if due_s is None or (self._timer is not None and self._due_s <= due_s):
            return
        if self._timer is not None:
            self._timer.cancel()
        self._due_s = due_s
        self._timer = self._reactor.call_later(max(0.0, due_s - self._clock.monotonic_s()), self._look)

    def _look(self) -> None:
        self._timer = None
        late_s = self._clock.monotonic_s() - self._due_s
        if late_s >= STOOD_STILL_S:
            self._deadlines.postpone(late_s + GO_ON_S)
        self._read_all()  # one that was given back in time is not late, however late we are
        expired = self._deadlines.expired(self._clock.monotonic_s())
        found = tuple(each for each in map(self._overdue, expired) if each is not None)
        self._arm()
        if found:
            self._on_overdue(found)

    def _overdue(self, expired: Expired) -> Overdue | None:
        pid = expired.request.worker_pid
        rank = self._owners.get(pid)
        if rank is None or self._rank_of(pid) != rank:  # it has ended
            return None
        return Overdue(local_rank=rank, request=expired.request, late_s=expired.late_s)
