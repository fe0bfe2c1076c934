"""Timers over a `multiprocessing.Queue`: the server is in the process that starts the workers."""

import logging
import os
import signal
from queue import Empty
from typing import TYPE_CHECKING, Any

from elastic_core.api import SYSTEM_CLOCK
from elastic_torchrun.timer.api import RequestQueue, TimerClient, TimerServer
from elastic_torchrun.timer.deadlines import MOST
from elastic_torchrun.timer.file_request import TimerRequest
from elastic_torchrun.timer.processes import Processes

if TYPE_CHECKING:
    from multiprocessing.queues import Queue

_log = logging.getLogger(__name__)


class LocalTimerClient(TimerClient):
    """Sets timers for this process.

    Args:
        mp_queue: The server's queue.
    """

    def __init__(self, mp_queue: "Queue[Any]") -> None:
        self._mp_queue = mp_queue

    def acquire(self, scope_id: str, expiration_time: float) -> None:
        """Set a timer."""
        self._mp_queue.put(TimerRequest(os.getpid(), scope_id, expiration_time))

    def release(self, scope_id: str) -> None:
        """Release it."""
        self._mp_queue.put(TimerRequest(os.getpid(), scope_id, -1))


class MultiprocessingRequestQueue(RequestQueue):
    """A `multiprocessing.Queue` as a source of requests."""

    def __init__(self, mp_queue: "Queue[Any]") -> None:
        self._mp_queue = mp_queue

    def size(self) -> int:
        """Return how many requests wait."""
        return self._mp_queue.qsize()

    def get(self, size: int, timeout: float) -> list[TimerRequest]:
        """Return at most `size` requests, after a wait of at most `timeout` seconds."""
        until_s = SYSTEM_CLOCK.monotonic_s() + timeout
        requests: list[TimerRequest] = []
        while len(requests) < size:
            left_s = max(0.0, until_s - SYSTEM_CLOCK.monotonic_s())
            try:
                requests.append(self._mp_queue.get(timeout=left_s))
            except Empty:
                break
        return requests


class LocalTimerServer(TimerServer):
    """Kills workers with expired timers, by SIGKILL.

    Args:
        mp_queue: The clients' queue.
        max_interval: How long `stop` may wait. Expired timers are handled at once.
        daemon: Whether the process may end while its thread runs.
    """

    def __init__(self, mp_queue: "Queue[Any]", max_interval: float = 60, daemon: bool = True) -> None:
        super().__init__(MultiprocessingRequestQueue(mp_queue), max_interval, daemon)
        self._timers: dict[tuple[int, str], TimerRequest] = {}
        self._processes = Processes()
        self._told_most = False

    def register_timers(self, timer_requests: list[TimerRequest]) -> None:
        """Set timers, and release those with a negative time."""
        for request in timer_requests:
            key = (request.worker_id, request.scope_id)
            if request.expiration_time < 0:
                self._timers.pop(key, None)
            else:
                if self._processes.hold(request.worker_id):
                    self._forget(request.worker_id)  # of one that has ended, and had this pid
                if key in self._timers or len(self._timers) < MOST:
                    self._timers[key] = request
                elif not self._told_most:
                    self._told_most = True
                    _log.warning("more than %s timers are set at the same time; further ones are left out", MOST)
        self._let_go()

    def clear_timers(self, worker_ids: set[int]) -> None:
        """Forget all timers of these workers."""
        self._timers = {key: request for key, request in self._timers.items() if key[0] not in worker_ids}
        self._let_go()

    def get_expired_timers(self, deadline: float) -> dict[int, list[TimerRequest]]:
        """Return the timers that expire by `deadline`, by pid."""
        expired: dict[int, list[TimerRequest]] = {}
        for (pid, _), request in self._timers.items():
            if request.expiration_time <= deadline:
                expired.setdefault(pid, []).append(request)
        return expired

    def next_expiration_time(self) -> float | None:
        """Return when the next timer expires."""
        return min((request.expiration_time for request in self._timers.values()), default=None)

    def stop(self) -> None:
        """End."""
        super().stop()
        self._timers = {}
        self._processes.close()

    def _reap_worker(self, worker_id: int) -> bool:
        self._processes.send(worker_id, signal.SIGKILL)
        return True

    def _forget(self, pid: int) -> None:
        self._timers = {key: request for key, request in self._timers.items() if key[0] != pid}

    def _let_go(self) -> None:
        self._processes.keep({pid for pid, _ in self._timers})
