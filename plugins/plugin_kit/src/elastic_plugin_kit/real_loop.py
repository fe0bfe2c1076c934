"""An agent's loop for tests of what starts workers: real descriptors and real time, turned by the test."""

import select
import time
from collections import deque
from collections.abc import Callable


class LoopTimer:
    """A call that is due at a time of the monotonic clock."""

    def __init__(self, at_s: float, call: Callable[[], None]) -> None:
        self.at_s = at_s
        self.call = call
        self.cancelled = False

    def cancel(self) -> None:
        """Forget it."""
        self.cancelled = True


class RealLoop:
    """An `AgentLoop`: what it was asked happens while `turn` or `turn_until` runs."""

    own_process = False

    def __init__(self) -> None:
        self.notices: list[str] = []
        self.timers: list[LoopTimer] = []
        self.readers: dict[int, Callable[[], None]] = {}
        self._posted: deque[Callable[[], None]] = deque()

    def call_later(self, delay_s: float, call: Callable[[], None]) -> LoopTimer:
        """Keep a call for its time."""
        timer = LoopTimer(time.monotonic() + delay_s, call)
        self.timers.append(timer)
        return timer

    def post(self, call: Callable[[], None]) -> None:
        """Keep a call for the next turn; from any thread."""
        self._posted.append(call)

    def add_reader(self, fd: int, call: Callable[[], None]) -> None:
        """Keep a call for a descriptor."""
        self.readers[fd] = call

    def remove_reader(self, fd: int) -> None:
        """Forget it."""
        self.readers.pop(fd, None)

    def notice(self, text: str) -> None:
        """Keep a line."""
        self.notices.append(text)

    def turn(self, longest_s: float = 0.05) -> None:
        """Make the calls that are due; wait at most so long for the first."""
        while self._posted:
            self._posted.popleft()()
        poll = select.poll()
        for fd in self.readers:
            poll.register(fd, select.POLLIN)
        due_s = min((timer.at_s for timer in self.timers if not timer.cancelled), default=time.monotonic() + longest_s)
        wait_s = min(max(due_s - time.monotonic(), 0.0), longest_s)
        for fd, _ in poll.poll(wait_s * 1000):
            if fd in self.readers:
                self.readers[fd]()
        now_s = time.monotonic()
        due = [timer for timer in self.timers if timer.at_s <= now_s]
        self.timers = [timer for timer in self.timers if timer.at_s > now_s]
        for timer in due:
            if not timer.cancelled:
                timer.call()

    def turn_until(self, condition: Callable[[], bool], *, within_s: float) -> bool:
        """Turn until the condition holds; return whether it came to hold in time."""
        end_s = time.monotonic() + within_s
        while not condition():
            if time.monotonic() > end_s:
                return False
            self.turn()
        return True
