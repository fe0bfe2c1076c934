"""A clock that a test moves."""

import threading

_EPOCH_NS = 1_700_000_000_000_000_000


class ManualClock:
    """A `Clock` that moves only when a test moves it.

    Threading: any thread may read and move it. What waits on a clock must be woken by the test, too.
    """

    def __init__(self, now_s: float = 0.0) -> None:
        self._lock = threading.Lock()
        self._now_s = now_s

    def monotonic_s(self) -> float:
        """Return the clock's time."""
        return self._now_s

    def wall_ns(self) -> int:
        """Return nanoseconds since the epoch, moved by the same hand."""
        return _EPOCH_NS + int(self._now_s * 1e9)

    def advance(self, seconds: float) -> None:
        """Move the clock on."""
        with self._lock:
            self._now_s += seconds
