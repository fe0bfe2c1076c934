"""The timers that are set, and those that have expired, without I/O and clock.

Requests have times of the host's clock, which may be set meanwhile. After their arrival, the monotonic clock counts.
"""

import math
from typing import Final

from elastic_core.api import Record
from elastic_torchrun.timer.file_request import FileTimerRequest

MOST: Final = 10_000
"""The limit on timers: those that are never released must not fill the memory."""


class Expired(Record, frozen=True, kw_only=True):
    """A timer that expired `late_s` seconds ago."""

    request: FileTimerRequest
    late_s: float


class Deadlines:
    """Timers by process and scope."""

    def __init__(self) -> None:
        """Set none yet."""
        self._due: dict[tuple[int, str], tuple[float, FileTimerRequest]] = {}

    def take(self, request: FileTimerRequest, *, now_s: float, wall_s: float) -> bool:
        """Set or release a timer. Return false if there are too many.

        Args:
            request: The request.
            now_s: On the monotonic clock.
            wall_s: The same on the host's clock, in seconds since the Unix epoch.
        """
        key = (request.worker_pid, request.scope_id)
        if request.expiration_time < 0:
            self._due.pop(key, None)
        elif key not in self._due and len(self._due) >= MOST:
            return False
        else:
            self._due[key] = (now_s + request.expiration_time - wall_s, request)
        return True

    @property
    def next_s(self) -> float | None:
        """When the next timer expires, on the monotonic clock. `None` if there is none."""
        due_s = min((due_s for due_s, _ in self._due.values()), default=math.inf)
        return None if due_s == math.inf else due_s

    def expired(self, now_s: float) -> tuple[Expired, ...]:
        """Return the expired timers, the earliest first, and remove them."""
        late = sorted(((due_s, key) for key, (due_s, _) in self._due.items() if due_s <= now_s))
        return tuple(Expired(request=self._due.pop(key)[1], late_s=now_s - due_s) for due_s, key in late)

    def postpone(self, by_s: float) -> None:
        """Let all timers expire later, because workers could not run meanwhile."""
        self._due = {key: (due_s + by_s, request) for key, (due_s, request) in self._due.items()}

    @property
    def pids(self) -> frozenset[int]:
        """The processes with timers."""
        return frozenset(pid for pid, _ in self._due)

    def forget(self, pid: int) -> None:
        """Forget the timers of a process."""
        self._due = {key: value for key, value in self._due.items() if key[0] != pid}

    def clear(self) -> None:
        """Forget all."""
        self._due = {}
