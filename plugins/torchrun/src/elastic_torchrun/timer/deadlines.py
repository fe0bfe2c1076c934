"""Which timers are set, and which have run down: no I/O, no clock.

Requests tell the time of the host's clock, which may be set while they run. From their arrival on they run on the
monotonic one.
"""

import math
from typing import Final

from elastic_core.api import Record
from elastic_torchrun.timer.file_request import FileTimerRequest

MOST: Final = 10_000
"""What nobody gives back must not fill the memory."""


class Expired(Record, frozen=True, kw_only=True):
    """A timer that has run down, `late_s` seconds ago."""

    request: FileTimerRequest
    late_s: float


class Deadlines:
    """Timers by process and scope."""

    def __init__(self) -> None:
        """Set none yet."""
        self._due: dict[tuple[int, str], tuple[float, FileTimerRequest]] = {}

    def take(self, request: FileTimerRequest, *, now_s: float, wall_s: float) -> bool:
        """Set a timer, or take one back; False: there are too many.

        Args:
            request: What is asked for.
            now_s: On the monotonic clock.
            wall_s: The same on the host's, in seconds since the Unix epoch.
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
        """When the next timer runs down, on the monotonic clock; None: none does."""
        due_s = min((due_s for due_s, _ in self._due.values()), default=math.inf)
        return None if due_s == math.inf else due_s

    def expired(self, now_s: float) -> tuple[Expired, ...]:
        """Return the timers that have run down, the earliest first; they are set no more."""
        late = sorted(((due_s, key) for key, (due_s, _) in self._due.items() if due_s <= now_s))
        return tuple(Expired(request=self._due.pop(key)[1], late_s=now_s - due_s) for due_s, key in late)

    def postpone(self, by_s: float) -> None:
        """Have all timers run down later: nobody could heed them meanwhile."""
        self._due = {key: (due_s + by_s, request) for key, (due_s, request) in self._due.items()}

    @property
    def pids(self) -> frozenset[int]:
        """The processes that have set any."""
        return frozenset(pid for pid, _ in self._due)

    def forget(self, pid: int) -> None:
        """Forget the timers of a process."""
        self._due = {key: value for key, value in self._due.items() if key[0] != pid}

    def clear(self) -> None:
        """Forget all."""
        self._due = {}
