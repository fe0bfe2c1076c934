"""Timers under torch's names: requests, clients, and servers, which end late workers."""

import logging
import sys
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from elastic_core.api import SYSTEM_CLOCK
from elastic_torchrun.timer.file_request import TimerRequest

LONGEST_WAIT_S: Final = 1.0
"""The longest time in seconds after which a server checks whether it is to stop."""
SHORTEST_WAIT_S: Final = 0.01
"""The pause after which a worker that could not be ended is tried again."""
AFTER_ERROR_S: Final = 1.0

_log = logging.getLogger(__name__)


def now_s() -> float:
    """Return the time of the clock of requests: this host's, in seconds since the Unix epoch."""
    return SYSTEM_CLOCK.wall_ns() / 1e9


class TimerClient(ABC):
    """Sets timers for its worker."""

    @abstractmethod
    def acquire(self, scope_id: str, expiration_time: float) -> None:
        """Set a timer for a scope, in seconds since the Unix epoch."""

    @abstractmethod
    def release(self, scope_id: str) -> None:
        """Release the scope's timer."""


class RequestQueue(ABC):
    """The source of a server's requests."""

    @abstractmethod
    def size(self) -> int:
        """Return how many requests wait. At the time of `get` there may be more, never fewer."""

    @abstractmethod
    def get(self, size: int, timeout: float) -> list[TimerRequest]:
        """Return at most `size` requests, after a wait of at most `timeout` seconds."""


class TimerServer(ABC):
    """Ends workers with expired timers, on a thread of its own.

    Args:
        request_queue: The source of requests.
        max_interval: How long to wait for a request, in seconds.
        daemon: Whether the process may end while the thread runs.

    Threading: the abstract methods are called on that thread.
    """

    def __init__(self, request_queue: RequestQueue, max_interval: float, daemon: bool = True) -> None:
        self._request_queue = request_queue
        self._max_interval = max_interval
        self._daemon = daemon
        self._thread: threading.Thread | None = None
        self._stopped = threading.Event()

    @abstractmethod
    def register_timers(self, timer_requests: list[TimerRequest]) -> None:
        """Set timers, and release those with a negative time."""

    @abstractmethod
    def clear_timers(self, worker_ids: set[Any]) -> None:
        """Forget all timers of these workers."""

    @abstractmethod
    def get_expired_timers(self, deadline: float) -> dict[Any, list[TimerRequest]]:
        """Return the timers that expire by `deadline`, by worker."""

    @abstractmethod
    def _reap_worker(self, worker_id: Any) -> bool:  # noqa: ANN401  # whatever the requests say
        """End a worker. False means that it could not be ended and is tried again. An exception counts as done."""

    def next_expiration_time(self) -> float | None:
        """Return when the next timer expires, if that is known, so that no worker is ended late."""
        return None

    def start(self) -> None:
        """Begin."""
        self._stopped.clear()
        self._thread = threading.Thread(target=self._serve, name="elastic-timers", daemon=self._daemon)
        self._thread.start()

    def stop(self) -> None:
        """End, and wait for the thread, for `max_interval` at most."""
        self._stopped.set()
        thread, self._thread = self._thread, None
        if thread is not None:
            thread.join(self._max_interval)

    def _serve(self) -> None:
        told = False
        while not self._stopped.is_set():
            try:
                self._look()
            except Exception:  # noqa: BLE001  # anybody's code, and anybody's queue: the next look may go well
                if not told:
                    _log.exception("%s could not look at its timers; it goes on trying", type(self).__name__)
                told = True
                self._stopped.wait(AFTER_ERROR_S)

    def _look(self) -> None:
        size = max(1, self._request_queue.size())
        self.register_timers(self._request_queue.get(size, self._wait_s()))
        ended = {worker for worker, expired in self.get_expired_timers(now_s()).items() if self._end(worker, expired)}
        if ended:
            self.clear_timers(ended)

    def _wait_s(self) -> float:
        """Return how long to wait for a request: no longer than until a timer expires."""
        wait_s = min(self._max_interval, LONGEST_WAIT_S)
        expiration_s = self.next_expiration_time()
        return wait_s if expiration_s is None else min(wait_s, max(SHORTEST_WAIT_S, expiration_s - now_s()))

    def _end(self, worker_id: Any, expired: list[TimerRequest]) -> bool:  # noqa: ANN401  # as above
        scopes = ", ".join(repr(request.scope_id) for request in expired)
        try:
            done = self._reap_worker(worker_id)
        except Exception:  # noqa: BLE001  # anybody's code
            _log.exception("worker %s is over its time for %s; ending it failed", worker_id, scopes)
            return True
        if done:
            _log.warning("worker %s was over its time for %s: ended", worker_id, scopes)
        return done


_client: TimerClient | None = None


def configure(timer_client: TimerClient) -> None:
    """Set the client with which `expires` sets timers in this process."""
    global _client  # torch's interface: one client for a process
    _client = timer_client


@contextmanager
def expires(after: float, scope: str | None = None, client: TimerClient | None = None) -> Iterator[None]:
    """Limit the time of a block to `after` seconds; a server ends a worker that is still in it.

    Args:
        after: Seconds.
        scope: The timer's name; blocks that are open at the same time need different names. Default: the caller's
            `file#line`.
        client: Default: the client from `configure`.

    Raises:
        RuntimeError: there is no client.
    """
    client = _client if client is None else client
    if client is None:
        raise RuntimeError("no timer client. Try: elastic_core.timer.configure(client) first")
    if scope is None:
        caller = sys._getframe(2)  # past contextlib's; `inspect` would read the caller's source
        scope = f"{caller.f_code.co_filename}#{caller.f_lineno}"
    client.acquire(scope, now_s() + after)
    try:
        yield
    finally:
        client.release(scope)
