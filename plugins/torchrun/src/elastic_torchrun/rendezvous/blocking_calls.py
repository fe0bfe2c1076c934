"""Blocking calls that can't be interrupted, made on a thread that may be left behind."""

import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Final, Generic, TypeVar

from elastic_core.api import WaitBudget
from elastic_core.api.stores import BackendUnavailableError, OutcomeUnknownError, WaitExpiredError

T = TypeVar("T")

END_S: Final = 1.0
"""How long a running call is waited for at the end."""


class _Call(Generic[T]):
    def __init__(self, work: Callable[[], T]) -> None:
        self.work = work
        self.done = False
        self.result: T | None = None
        self.error: Exception | None = None


class Asker:
    """Makes calls one by one on a thread, and waits for each only as long as the caller may.

    A call that was given up goes on; the next one begins after its end.

    Threading: one thread at a time, not always the same.
    """

    def __init__(self, name: str) -> None:
        """Start nothing yet; `name` is the thread's."""
        self._name = name
        self._queue: SimpleQueue[_Call[object] | None] = SimpleQueue()
        self._changed = threading.Condition()
        self._started = False
        self._thread: threading.Thread | None = None
        self._stuck: _Call[object] | None = None
        self._heeded: WaitBudget | None = None

    def ask(self, work: Callable[[], T], *, wait: WaitBudget, writes: bool = False) -> T:
        """Return the result of `work`, or raise its error.

        Args:
            work: The call.
            wait: Ends the wait.
            writes: Whether the call changes something, so that giving it up leaves the outcome open.

        Raises:
            BackendUnavailableError: an earlier call has not ended in time.
            OutcomeUnknownError: this call, which writes, has not ended in time.
            WaitExpiredError, WaitCancelledError: from `wait`.
        """
        wait.check()
        self._heed(wait)
        if self._stuck is not None:
            if not self._ends(self._stuck, wait):
                raise BackendUnavailableError("an earlier call has not been answered yet")
            self._stuck = None
        call = _Call(work)
        self._begin(call)
        self._stuck = call  # type: ignore[assignment]  # its result is not read
        if not self._ends(call, wait):
            if writes:
                raise OutcomeUnknownError("no answer in time; it may have been written")
            raise WaitExpiredError
        self._stuck = None
        if call.error is not None:
            raise call.error
        return call.result  # type: ignore[return-value]  # set, since nothing was raised; may be None by right

    def close(self) -> None:
        """Let the thread end after its current call, and wait briefly for that; idempotent.

        A thread that returns from C++ after the interpreter has begun to end aborts the process.
        """
        self._started = False
        self._queue.put(None)
        if self._thread is not None:
            self._thread.join(END_S)

    def _heed(self, wait: WaitBudget) -> None:
        if self._heeded is not wait:  # one budget serves many calls
            self._heeded = wait
            wait.on_cancel(self._wake)

    def _wake(self) -> None:
        with self._changed:
            self._changed.notify_all()

    def _ends(self, call: "_Call[T] | _Call[object]", wait: WaitBudget) -> bool:
        """Wait for the end of a call. Return whether it ended before the deadline."""
        with self._changed:
            while not call.done:
                if wait.cancelled:
                    wait.check()
                left_s = wait.remaining_s()
                if left_s <= 0:
                    return False
                self._changed.wait(None if left_s == float("inf") else left_s)
        return True

    def _begin(self, call: "_Call[T]") -> None:
        if not self._started:
            self._started = True
            self._queue = SimpleQueue()
            self._thread = threading.Thread(target=self._work, args=(self._queue,), name=self._name, daemon=True)
            self._thread.start()
        self._queue.put(call)  # type: ignore[arg-type]  # its result is the caller's business

    def _work(self, queue: "SimpleQueue[_Call[object] | None]") -> None:
        while (call := queue.get()) is not None:
            try:
                call.result = call.work()
            except Exception as error:  # noqa: BLE001  # any error is the caller's
                call.error = error
            with self._changed:
                call.done = True
                self._changed.notify_all()
