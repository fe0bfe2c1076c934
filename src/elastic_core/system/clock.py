"""Time: the only module that reads a clock or sleeps.

Everything else receives a `Clock` (or a number), so that state machines and policies can be run on a clock that a test
moves.
"""

import threading
import time
from collections.abc import Callable
from typing import Final, Protocol, TypeVar

from elastic_core.errors import WaitCancelledError, WaitExpiredError

_A_CENTURY_S: Final = 3.2e9

_T = TypeVar("_T")


def duration_text(seconds: float) -> str:
    """Return `0.5 s`, `3 min 5 s`, `2 h 7 min`, `3 d 4 h`: from a minute on rounded, but for what outlasts people."""
    if seconds >= _A_CENTURY_S:
        return f"{seconds:.3g} s"
    whole = max(0, round(seconds))
    for size, name, below, part in ((86_400, "d", 3600, "h"), (3600, "h", 60, "min"), (60, "min", 1, "s")):
        if whole >= size:
            rest = whole % size // below
            return f"{whole // size} {name} {rest} {part}" if rest else f"{whole // size} {name}"
    return f"{max(0.0, seconds):.3g} s"


class Clock(Protocol):
    """What the product asks of a clock."""

    def monotonic_s(self) -> float:
        """Return seconds on a clock that never goes back; comparable on this host only."""
        ...

    def wall_ns(self) -> int:
        """Return nanoseconds since the Unix epoch; for this host's records, never compared between hosts."""
        ...


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
    """How long a blocking call may still take, and whether it is cancelled.

    The agent binds one to a rendezvous handler before each call; `sleep` is the only sleep that plugin code needs, and
    it ends as soon as the agent cancels. A deadline of None means no limit.

    Threading: `cancel` may be called from any thread; the waiting methods block their caller only.
    """

    def __init__(self, deadline_s: float | None = None, *, clock: Clock = SYSTEM_CLOCK) -> None:
        """Bind a budget that ends at `deadline_s` of the clock's monotonic seconds (None: never)."""
        self._deadline_s = deadline_s
        self._clock = clock
        self._cancelled = threading.Event()
        self._listeners: list[Callable[[], None]] = []

    @classmethod
    def lasting(cls, seconds: float | None, *, clock: Clock = SYSTEM_CLOCK) -> "WaitBudget":
        """Return a budget that ends `seconds` from now (None: never)."""
        return cls(None if seconds is None else clock.monotonic_s() + seconds, clock=clock)

    @property
    def cancelled(self) -> bool:
        """Whether the agent asked the call to end."""
        return self._cancelled.is_set()

    def cancel(self) -> None:
        """Ask every wait on this budget to end now; idempotent."""
        self._cancelled.set()
        for listener in tuple(self._listeners):
            listener()

    def on_cancel(self, listener: Callable[[], None]) -> None:
        """Call `listener` when the budget is cancelled: for code that only it can wake (on a socket, say).

        Threading: called on the thread that cancels; must be quick and must not raise. Called at once if already
        cancelled.
        """
        self._listeners.append(listener)
        if self.cancelled:
            listener()

    def remaining_s(self, at_most_s: float | None = None) -> float:
        """Return seconds left, from 0 to `at_most_s`; `inf` where there is neither a deadline nor a cap."""
        left_s = float("inf") if self._deadline_s is None else max(0.0, self._deadline_s - self._clock.monotonic_s())
        return left_s if at_most_s is None else min(left_s, at_most_s)

    def check(self) -> None:
        """Return while there is time left.

        Raises:
            WaitCancelledError: the agent asked the call to end.
            WaitExpiredError: the deadline has passed.
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
        """Return the result of a function that can't be interrupted, such as the look-up of a name.

        The function runs in a thread of its own, which is abandoned if the result is late.

        Raises:
            Exception: what the function raises.
            WaitCancelledError: the agent asked the call to end.
            WaitExpiredError: no result within `timeout_s` or the budget.
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
