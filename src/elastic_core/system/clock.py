"""Time: the only module that reads a clock or sleeps.

All other code receives a `Clock` (or a number), so that tests can run state machines and policies on their own clock.
"""

import threading
import time
from collections.abc import Callable
from typing import Final, Protocol, TypeVar

from elastic_core.errors import WaitCancelledError, WaitExpiredError

_A_CENTURY_S: Final = 3.2e9

_T = TypeVar("_T")


def duration_text(seconds: float) -> str:
    """Return a duration such as `0.5 s`, `3 min 5 s`, `2 h 7 min` or `3 d 4 h`: rounded from a minute to a century."""
    if seconds >= _A_CENTURY_S:
        return f"{seconds:.3g} s"
    whole = max(0, round(seconds))
    for size, name, below, part in ((86_400, "d", 3600, "h"), (3600, "h", 60, "min"), (60, "min", 1, "s")):
        if whole >= size:
            rest = whole % size // below
            return f"{whole // size} {name} {rest} {part}" if rest else f"{whole // size} {name}"
    return f"{max(0.0, seconds):.3g} s"


class Clock(Protocol):
    """The clock that other code uses; tests pass their own."""

    def monotonic_s(self) -> float:
        """Return seconds on a clock that never goes back. Values compare on this host only."""

    def wall_ns(self) -> int:
        """Return nanoseconds since the Unix epoch, for this host's records. Never compare values of two hosts."""


class SystemClock:
    """The clocks of this host."""

    def monotonic_s(self) -> float:
        """Return seconds of CLOCK_MONOTONIC."""
        return time.monotonic()

    def wall_ns(self) -> int:
        """Return nanoseconds of CLOCK_REALTIME."""
        return time.time_ns()


SYSTEM_CLOCK = SystemClock()


class WaitBudget:
    """Deadline and cancellation of one blocking call.

    The agent binds one to a rendezvous handler before each call. Plugin code should only sleep by `sleep`, which ends
    as soon as the agent cancels. A deadline of `None` means no limit.

    Threading: `cancel` may be called from any thread; the waiting methods block only their caller.
    """

    def __init__(self, deadline_s: float | None = None, *, clock: Clock = SYSTEM_CLOCK) -> None:
        """Make a budget that ends at `deadline_s` of the clock's monotonic seconds. `None` means no limit."""
        self._deadline_s = deadline_s
        self._clock = clock
        self._cancelled = threading.Event()
        self._listeners: list[Callable[[], None]] = []

    @classmethod
    def lasting(cls, seconds: float | None, *, clock: Clock = SYSTEM_CLOCK) -> "WaitBudget":
        """Return a budget that ends `seconds` from now. `None` means no limit."""
        return cls(None if seconds is None else clock.monotonic_s() + seconds, clock=clock)

    @property
    def cancelled(self) -> bool:
        """Whether the agent has cancelled the call."""
        return self._cancelled.is_set()

    def cancel(self) -> None:
        """End every wait on this budget now; idempotent."""
        self._cancelled.set()
        for listener in tuple(self._listeners):
            listener()

    def on_cancel(self, listener: Callable[[], None]) -> None:
        """Call `listener` when the budget is cancelled, to wake code that blocks on a socket, for example.

        Threading: called on the thread that cancels; it must be quick and must not raise. If the budget is already
        cancelled, `listener` is called at once.
        """
        self._listeners.append(listener)
        if self.cancelled:
            listener()

    def remaining_s(self, at_most_s: float | None = None) -> float:
        """Return the seconds left, from 0 to `at_most_s`, or `inf` without a deadline and `at_most_s`."""
        left_s = float("inf") if self._deadline_s is None else max(0.0, self._deadline_s - self._clock.monotonic_s())
        return left_s if at_most_s is None else min(left_s, at_most_s)

    def check(self) -> None:
        """Return if there is time left.

        Raises:
            WaitCancelledError: The agent has cancelled the call.
            WaitExpiredError: The deadline has passed.
        """
        if self.cancelled:
            raise WaitCancelledError
        if self.remaining_s() <= 0:
            raise WaitExpiredError

    def sleep(self, seconds: float) -> None:
        """Block for `seconds`, or until the deadline or a cancellation, whichever comes first, then `check`."""
        left_s = self.remaining_s(seconds)
        self._cancelled.wait(None if left_s == float("inf") else left_s)
        if self.cancelled:
            raise WaitCancelledError
        if left_s < seconds:
            self.check()

    def call(self, function: Callable[[], _T], *, timeout_s: float) -> _T:
        """Return the result of a function that cannot be interrupted, such as a name lookup.

        The function runs in a thread of its own, which is abandoned if the result is late.

        Raises:
            Exception: An exception of the function.
            WaitCancelledError: The agent has cancelled the call.
            WaitExpiredError: No result within `timeout_s` or the budget.
        """
        woken = threading.Event()
        results: list[_T] = []
        errors: list[Exception] = []

        def run() -> None:
            try:
                results.append(function())
            except Exception as error:  # noqa: BLE001  # raised again in the caller's thread
                errors.append(error)
            finally:
                woken.set()

        self.check()
        threading.Thread(target=run, name="elastic-call", daemon=True).start()
        self.on_cancel(woken.set)
        woken.wait(self.remaining_s(timeout_s))
        if errors:
            raise errors[0]
        if not results:
            self.check()
            raise WaitExpiredError
        return results[0]
