"""The timers of an agent's workers, as they arrive through the pipe, and those that have expired.

Only timers of this node's workers and of their children count. Another pid in the pipe is logged once and ignored: no
process is signalled because of it.
"""

import os
import select
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Final

from elastic_core.api import SYSTEM_CLOCK, Clock, Record
from elastic_torchrun.proc import read_stat
from elastic_torchrun.timer.deadlines import MOST, Deadlines, Expired
from elastic_torchrun.timer.file_request import LONGEST_LINE, FileTimerRequest, Lines, parse
from elastic_torchrun.timer.pipe import TimerPipe

STOOD_STILL_S: Final = 1.0
"""A check that is later than this means that the agent was stopped, perhaps with its workers."""
GO_ON_S: Final = 5.0
"""The time that workers then get, since their remaining time at the stop is not known."""
MOST_EARLY: Final = 1_000
"""The number of lines that are kept from workers whose start is not known yet."""
_MOST_READS: Final = 32
_MOST_ANCESTORS: Final = 64
_SHOWN: Final = 100


class Overdue(Record, frozen=True, kw_only=True):
    """An expired timer of a live worker or of its child; `late_s` is the number of seconds since then."""

    local_rank: int
    request: FileTimerRequest
    late_s: float


class WorkerTimers:
    """The server's end of the pipe, on a thread of its own.

    Args:
        pipe: The pipe, which this object closes.
        on_overdue: Called with expired timers, the earliest first. Threading: that thread.
        notice: Called with one line for people. Threading: any.
        limits: Whether timers may expire. If false, they are read and dropped.
        clock: The host's.

    Threading: any; `turn` is the thread's.
    """

    def __init__(
        self,
        pipe: TimerPipe,
        *,
        on_overdue: Callable[[tuple[Overdue, ...]], None],
        notice: Callable[[str], None],
        limits: bool = True,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._pipe = pipe
        self._on_overdue = on_overdue
        self._notice = notice
        self._limits = limits
        self._clock = clock
        self._wake = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()
        # The rest is guarded by the lock.
        self._lines = Lines()
        self._deadlines = Deadlines()
        self._workers: dict[int, int] = {}
        self._owners: dict[int, int] = {}
        self._noticed: set[str] = set()
        self._early: list[bytes] | None = None
        """Lines of workers that are being started; None: none is."""
        self._closed = False

    # --- life

    def start(self) -> None:
        """Begin to read, so that no writer has to wait."""
        self._thread = threading.Thread(target=self._serve, name="elastic-timers", daemon=True)
        self._thread.start()

    def expect(self) -> None:
        """Drop timers of the last round's workers. Later ones may be the next round's."""
        with self._lock:
            self._forget()
            self._read()
            self._early = []

    def begin(self, pids: Mapping[int, int]) -> None:
        """Accept the timers of workers that were just started; `pids` by local rank."""
        with self._lock:
            early, self._early = self._early or [], None
            self._forget()
            if self._limits:
                self._workers = {pid: rank for rank, pid in pids.items()}
            for line in early:
                self._take(line)
        self._call()

    def ended(self, local_rank: int) -> None:
        """Forget an ended worker and its children, since their pids may be reused."""
        with self._lock:
            self._workers = {pid: rank for pid, rank in self._workers.items() if rank != local_rank}
            for pid in [pid for pid, rank in self._owners.items() if rank == local_rank]:
                self._deadlines.forget(pid)
                del self._owners[pid]

    def end(self) -> None:
        """Accept no more timers."""
        with self._lock:
            self._forget()

    def close(self) -> None:
        """Remove the pipe; idempotent."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            self._forget()
        self._call()
        if self._thread is not None:
            self._thread.join()
        self._pipe.close()
        for fd in self._wake:
            os.close(fd)

    def _forget(self) -> None:
        self._workers, self._owners = {}, {}
        self._deadlines.clear()

    def _call(self) -> None:
        with suppress(BlockingIOError):  # it has been called already
            os.write(self._wake[1], b"\0")

    # --- the thread

    def _serve(self) -> None:
        poll = select.poll()
        for fd in (self._pipe.fd, self._wake[0]):
            poll.register(fd, select.POLLIN)
        while not self._closed:
            poll.poll(self._pause_ms())
            with suppress(BlockingIOError):
                os.read(self._wake[0], 64)
            self.turn()

    def _pause_ms(self) -> float | None:
        with self._lock:
            due_s = self._deadlines.next_s
        return None if due_s is None else max(0.0, due_s - self._clock.monotonic_s()) * 1000

    def turn(self) -> None:
        """Read the pipe, and find expired timers. Called: when either may have happened."""
        with self._lock:
            found = () if self._closed else self._look()
        if found:
            self._on_overdue(found)

    def _look(self) -> tuple[Overdue, ...]:
        self._read()  # a timer that was given back in time is not late, however late we are
        due_s, now_s = self._deadlines.next_s, self._clock.monotonic_s()
        if due_s is None or due_s > now_s:
            return ()
        if now_s - due_s >= STOOD_STILL_S:
            self._deadlines.postpone(now_s - due_s + GO_ON_S)
        return tuple(each for each in map(self._overdue, self._deadlines.expired(now_s)) if each is not None)

    def _overdue(self, expired: Expired) -> Overdue | None:
        pid = expired.request.worker_pid
        rank = self._owners.get(pid)
        if rank is None or self._rank_of(pid) != rank:  # it has ended
            return None
        return Overdue(local_rank=rank, request=expired.request, late_s=expired.late_s)

    # --- requests: under the lock

    def _read(self) -> None:
        for _ in range(_MOST_READS):  # a constant writer must not block the check of the clock
            chunk = self._pipe.read()
            for line in self._lines.feed(chunk):
                self._take(line)
            if not chunk:
                break
        if self._lines.too_long:
            text = f"a line in the pipe of timers has more than {LONGEST_LINE} bytes; it is left out"
            self._notice_once("line", text)

    def _take(self, line: bytes) -> None:
        if not self._workers:
            if self._early is not None and self._limits and len(self._early) < MOST_EARLY:
                self._early.append(line)
            return
        try:
            request = parse(line)
        except ValueError as err:
            shown = line[:_SHOWN].decode("ascii", "backslashreplace")
            self._notice_once("request", f"{shown!r} in the pipe of timers is no request ({err}); it is left out")
            return
        if request.expiration_time >= 0 and not self._own(request.worker_pid):
            return
        wall_s, now_s = self._clock.wall_ns() / 1e9, self._clock.monotonic_s()
        if not self._deadlines.take(request, now_s=now_s, wall_s=wall_s):
            self._notice_once("most", f"more than {MOST} timers are set at the same time; further ones are left out")

    def _own(self, pid: int) -> bool:
        rank = self._rank_of(pid)
        if rank is not None:
            self._owners[pid] = rank
            if len(self._owners) > 2 * MOST:  # of children of a worker that come and go
                kept = self._deadlines.pids | {pid}
                self._owners = {pid: rank for pid, rank in self._owners.items() if pid in kept}
            return True
        if read_stat(pid) is not None:  # else it has ended since
            self._notice_once("stranger", f"a timer of process {pid}, which is no worker of this agent, is left out")
        return False

    def _rank_of(self, pid: int) -> int | None:
        """Return the local rank of the worker that is this process or its ancestor, or `None`."""
        for _ in range(_MOST_ANCESTORS):
            if pid in self._workers:
                return self._workers[pid]
            stat = read_stat(pid)
            if stat is None or not stat.alive or stat.parent <= 1:
                return None
            pid = stat.parent
        return None

    def _notice_once(self, kind: str, text: str) -> None:
        if kind not in self._noticed:
            self._noticed.add(kind)
            self._notice(text)
