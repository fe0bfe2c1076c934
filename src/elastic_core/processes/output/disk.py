"""File operations outside the loop: a file system that does not respond delays only the jobs on its files.

Jobs of one lane run in order. All lanes share one thread, which starts with the first job. While a lane blocks it,
another thread runs the other lanes' jobs. A pool of `concurrent.futures` is not used, because the interpreter would
wait at its end for a blocked thread.
"""

import _thread
import errno
import os
import threading
from _queue import SimpleQueue
from collections import deque
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from functools import partial
from itertools import islice
from typing import TypeVar

from elastic_core.logger import Logger
from elastic_core.processes.output.log_file import open_log
from elastic_core.system.reactor import Reactor, Timer

HIGH_WATER_BYTES = 1 << 19
"""If more bytes wait in a lane, the pipe that feeds it is not read."""
LOW_WATER_BYTES = 1 << 17
"""If no more bytes than this wait, the pipe is read again."""
STALL_S = 2.0
"""Seconds without a finished job after which a lane is held up: it is reported, and only the run's end waits for it."""
END_S = 10.0
"""Seconds that the end of a run waits for lanes that are held up."""

MOST_AHEAD = 128
"""How many log files are opened in advance, before their workers start."""
# While there is work, the interval of checks for blocked lanes and for lanes without a thread.
_LOOK_S = 0.1

_T = TypeVar("_T")


class Lane:
    """Jobs on the file `path`, one after the other. Threading: the reactor's thread; the jobs run on another."""

    def __init__(self, disk: "Disk", path: str) -> None:
        self.path = path
        self.stalled = False
        """Whether the file system has blocked a job for so long that callers no longer wait for the lane."""
        self.jobs: deque[tuple[Callable[[], object], int]] = deque()
        self.queued_bytes = 0
        """How many bytes wait to be written, including those of the running job."""
        self.scheduled = False
        self.still_looks = 0
        """How many checks in a row found no finished job. A clock would count while this process is stopped."""
        self.relieved: list[Callable[[], None]] = []
        self.emptied: list[Callable[[], None]] = []
        self._disk = disk

    @property
    def congested(self) -> bool:
        """Whether the feeding code should pause until `when_relieved` calls back."""
        return self.queued_bytes > HIGH_WATER_BYTES

    def put(self, job: Callable[[], object], size_bytes: int = 0) -> None:
        """Run a job after the earlier ones. It must not raise."""
        self._disk.put(self, job, size_bytes)

    def when_relieved(self, callback: Callable[[], None]) -> None:
        """Call `callback` once, when the lane is no longer congested."""
        self._disk.call_back(self, self.relieved, callback, lambda: not self.congested)

    def when_empty(self, callback: Callable[[], None]) -> None:
        """Call `callback` once, when no job waits or runs."""
        self._disk.call_back(self, self.emptied, callback, lambda: not self.scheduled)


class Disk:
    """The threads and their lanes. After `stall_s` seconds without a finished job, a lane counts as held up.

    Threading: the reactor's thread, except where stated.
    """

    def __init__(self, reactor: Reactor, *, log: Logger, stall_s: float = STALL_S) -> None:
        self._reactor = reactor
        self._log = log
        self._stall_s = stall_s
        self._lock = threading.Lock()
        self._ready: SimpleQueue[Lane | None] = SimpleQueue()
        self._busy: dict[Lane, None] = {}  # in order
        self._threads = 0
        # How many threads wait for work.
        self._idle = 0
        self._timer: Timer | None = None
        self._stalled_s: float | None = None
        self._closed = False
        self._opened: dict[str, int] = {}

    def lane(self, path: str) -> Lane:
        """Return a new lane."""
        return Lane(self, path)

    def run(
        self,
        path: str,
        work: Callable[[], _T],
        done: Callable[[_T | None, Exception | None], None],
        *,
        lane: Lane | None = None,
        within_s: float | None = None,
    ) -> None:
        """Run `work`, in its own lane if none is given.

        `done` is called once, with the result or the exception: TimeoutError if the work was late.
        """
        timer: Timer | None = None
        settled = False

        def settle(result: _T | None, error: Exception | None) -> None:
            nonlocal settled
            if settled:
                return
            settled = True
            if timer is not None:
                timer.cancel()
            done(result, error)

        def job() -> None:
            result, error = None, None
            try:
                result = work()
            except Exception as raised:  # noqa: BLE001  # passed to the caller
                error = raised
            self._reactor.post(partial(settle, result, error))

        if within_s is not None:
            late = TimeoutError(errno.ETIMEDOUT, f"its file system has not responded for {within_s:g} s", path)
            timer = self._reactor.call_later(within_s, partial(settle, None, late))
        (lane or self.lane(path)).put(job)

    def wait(self, path: str, work: Callable[[], _T], *, within_s: float) -> _T | None:
        """Run `work` while the reactor turns. Called: at the end, when nothing else is to be done.

        Raises:
            TimeoutError: The work was late.
            Exception: An exception of `work`.
        """
        ended: list[tuple[_T | None, Exception | None]] = []
        self.run(path, work, lambda result, error: ended.append((result, error)), within_s=within_s)
        while not ended:
            self._reactor.turn()
        result, error = ended[0]
        if error is not None:
            raise error
        return result

    def open_ahead(self, paths: Iterable[str]) -> None:
        """Open log files in advance for `take`; failures are left to `take`. Called: in a job."""
        for path in islice(paths, MOST_AHEAD):
            with suppress(OSError):
                self._opened[path] = open_log(path)

    def take(self, path: str) -> int:
        """Return the descriptor of a log file, opened in advance or now.

        Raises:
            OSError: It cannot be opened.
        """
        fd = self._opened.pop(path, None)
        return open_log(path) if fd is None else fd

    def forget_opened(self) -> None:
        """Close the files that were opened in advance and not taken."""
        while self._opened:
            os.close(self._opened.popitem()[1])

    # --- lanes

    def put(self, lane: Lane, job: Callable[[], object], size_bytes: int) -> None:
        """Run a job in a lane."""
        with self._lock:
            lane.jobs.append((job, size_bytes))
            lane.queued_bytes += size_bytes
            if lane.scheduled:
                return
            lane.scheduled, lane.stalled, lane.still_looks = True, False, 0
            self._busy[lane] = None
        self._ready.put(lane)
        if not self._threads:
            self._start_thread()
        if self._timer is None:
            self._timer = self._reactor.call_later(_LOOK_S, self._look)

    def call_back(
        self, lane: Lane, waiting: list[Callable[[], None]], callback: Callable[[], None], due: Callable[[], bool]
    ) -> None:
        """Call `callback` at once if `due`, else when the lane allows."""
        with self._lock:
            if not due():
                waiting.append(callback)
                return
        callback()

    def when_written(self, lanes: Collection[Lane], callback: Callable[[], None], *, within_s: float) -> None:
        """Call `callback` once, when none of these lanes has waiting jobs, or after `within_s` if one is held up."""
        waiting = {lane for lane in lanes if lane.scheduled and not lane.stalled}
        if not waiting:
            callback()
            return
        called = False

        def call() -> None:
            nonlocal called
            if not called:
                called = True
                timer.cancel()
                callback()

        def emptied(lane: Lane) -> None:
            waiting.discard(lane)
            if not waiting:
                call()

        timer = self._reactor.call_later(within_s, call)
        for lane in tuple(waiting):
            lane.when_empty(partial(emptied, lane))

    # --- threads

    def _start_thread(self) -> None:
        with self._lock, suppress(RuntimeError):  # no thread available: tried again at the next check
            # Not `threading.Thread`: its `start` waits until the thread runs, milliseconds on a busy node.
            _thread.start_new_thread(self._work, ())
            self._threads += 1

    def _work(self) -> None:
        while True:
            with self._lock:
                if self._idle and self._ready.empty():
                    self._threads -= 1  # it was started because all others were blocked, and one waits again
                    return
                self._idle += 1
            lane = self._ready.get()
            with self._lock:
                self._idle -= 1
            if lane is None:
                return
            self._empty(lane)

    def _empty(self, lane: Lane) -> None:
        while True:
            with self._lock:
                if not lane.jobs:
                    lane.scheduled = False
                    self._busy.pop(lane, None)
                    emptied, lane.emptied = lane.emptied, []
                    break
                job, size_bytes = lane.jobs.popleft()
            job()
            with self._lock:
                lane.queued_bytes -= size_bytes
                lane.still_looks = 0
                relieved: list[Callable[[], None]] = []
                if lane.relieved and lane.queued_bytes <= LOW_WATER_BYTES:
                    relieved, lane.relieved = lane.relieved, []
            for callback in relieved:
                self._reactor.post(callback)
        for callback in emptied:
            self._reactor.post(callback)

    # --- blocked lanes

    def _look(self) -> None:
        self._timer = None
        with self._lock:
            busy = tuple(self._busy)
            for lane in busy:
                lane.still_looks += 1
        if not self._ready.empty():  # every thread is blocked or busy
            self._start_thread()
        now_s = self._reactor.now_s()
        held_up = [lane for lane in busy if lane.still_looks * _LOOK_S >= self._stall_s]
        if held_up and self._stalled_s is None:
            self._stalled_s = now_s - self._stall_s
            self._log.notice(
                f"the file system of {_names(held_up)} has not responded for {self._stall_s:g} s; its data waits, "
                "and so does a worker whose pipe is full"
            )
        for lane in busy:
            lane.stalled = lane in held_up
        if busy and not self._closed:
            self._timer = self._reactor.call_later(_LOOK_S, self._look)
        if self._stalled_s is not None and not held_up:
            self._log.notice(f"that file system responds again, after {now_s - self._stalled_s:.1f} s")
            self._stalled_s = None

    def close(self, *, within_s: float = END_S) -> None:
        """Wait at most `within_s` for the jobs, and report the bytes that are lost; idempotent.

        The reactor turns meanwhile. Called: after its loop has ended, on its thread.
        """
        if self._closed:
            return
        until_s = self._reactor.now_s() + within_s
        for lane in tuple(self._busy):
            lane.when_empty(lambda: None)  # wakes the loop
        while self._busy and (left_s := until_s - self._reactor.now_s()) > 0:
            self._reactor.turn(left_s)
        self._reactor.turn(0.0)
        self._closed = True
        self.forget_opened()
        if self._timer is not None:
            self._timer.cancel()
        with self._lock:
            lacking = [(lane.path, lane.queued_bytes) for lane in self._busy if lane.queued_bytes]
            for lane in self._busy:
                lane.jobs.clear()  # running jobs end when they can
        for path, count in lacking:
            self._log.notice(f"{path!r} lacks its last {count} bytes: its file system does not respond")
        for _ in range(self._threads):
            self._ready.put(None)


def _names(lanes: list[Lane]) -> str:
    others = len(lanes) - 1
    more = "" if not others else f" and {others} more" if others > 1 else " and one more"
    return f"{lanes[0].path!r}{more}"
