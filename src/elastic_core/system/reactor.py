"""One thread's event loop: file descriptors, timers, a mailbox for other threads, and signals.

It sleeps in the kernel until an event; an idle reactor never wakes. Callbacks run on the reactor's thread and must not
block.
"""

import heapq
import itertools
import os
import selectors
import signal
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress

from elastic_core.system.clock import SYSTEM_CLOCK, Clock

# If a sleep lasts so much longer than it should, this process was stopped (SIGSTOP) meanwhile.
_STOPPED_S = 1.0
# The longest sleep at once: the kernel's limit is 24 days, and users may set longer timeouts.
_LONGEST_SLEEP_S = 86_400.0


class Timer:
    """A pending callback; `callback` is `None` once it was cancelled."""

    __slots__ = ("callback",)

    def __init__(self, callback: Callable[[], None]) -> None:
        self.callback: Callable[[], None] | None = callback

    def cancel(self) -> None:
        """Cancel the callback; no effect after it has run. Threading: any, but it may be running then."""
        self.callback = None


class Reactor:
    """The event loop. Build it on the thread that runs it; `close` releases all descriptors and signal handlers."""

    def __init__(self, *, clock: Clock = SYSTEM_CLOCK) -> None:
        self._clock = clock
        self._left_out_s = 0.0
        self.turned_s = clock.monotonic_s()
        """When the last turn ended, in monotonic seconds. Threading: written on the loop, read on any."""
        self._selector = selectors.DefaultSelector()
        self._interest: dict[int, dict[int, Callable[[], None]]] = {}
        self._timers: list[tuple[float, int, Timer]] = []
        self._serial = itertools.count()
        self._awaited: set[Callable[[], None]] = set()
        self._mailbox: deque[Callable[[], None]] = deque()
        self._wake_read, self._wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self.add_reader(self._wake_read, self._drain_wake)
        self._on_signal: Callable[[int], None] | None = None
        self._arrived: deque[int] = deque()
        self._old_handlers: dict[int, signal._HANDLER] = {}
        self._old_wakeup: int | None = None

    def now_s(self) -> float:
        """Return the clock's monotonic seconds without those left out; timers use this time."""
        return self._clock.monotonic_s() - self._left_out_s

    def leave_out(self, seconds: float) -> None:
        """Make timers ignore the last `seconds`."""
        self._left_out_s += seconds

    # --- descriptors

    def add_reader(self, fd: int, callback: Callable[[], None]) -> None:
        """Call `callback` whenever `fd` is readable (a pidfd: when its process has ended); replaces an earlier one."""
        self._set_interest(fd, selectors.EVENT_READ, callback)

    def add_writer(self, fd: int, callback: Callable[[], None]) -> None:
        """Call `callback` whenever `fd` is writable; replaces an earlier one."""
        self._set_interest(fd, selectors.EVENT_WRITE, callback)

    def remove_reader(self, fd: int) -> None:
        """Remove a reader; unknown descriptors are ignored. Call it before closing the descriptor."""
        self._set_interest(fd, selectors.EVENT_READ, None)

    def remove_writer(self, fd: int) -> None:
        """Remove a writer; unknown descriptors are ignored. Call it before closing the descriptor."""
        self._set_interest(fd, selectors.EVENT_WRITE, None)

    def _set_interest(self, fd: int, mask: int, callback: Callable[[], None] | None) -> None:
        before = self._interest.get(fd, {})
        after = {m: c for m, c in before.items() if m != mask}
        if callback is not None:
            after[mask] = callback
        events = sum(after)
        if not events:
            if before:
                self._selector.unregister(fd)
                del self._interest[fd]
            return
        if before:
            self._selector.modify(fd, events)
        else:
            self._selector.register(fd, events)
        self._interest[fd] = after

    # --- timers, mailbox, signals

    def call_later(self, delay_s: float, callback: Callable[[], None]) -> Timer:
        """Call `callback` once after `delay_s` seconds (0: at the next turn)."""
        timer = Timer(callback)
        heapq.heappush(self._timers, (self.now_s() + max(0.0, delay_s), next(self._serial), timer))
        return timer

    def call_once(self, delay_s: float, callback: Callable[[], None]) -> None:
        """Do as `call_later`, unless an earlier call of `callback` is still awaited."""

        def call() -> None:
            self._awaited.discard(callback)
            callback()

        if callback not in self._awaited:
            self._awaited.add(callback)
            self.call_later(delay_s, call)

    def post(self, callback: Callable[[], None]) -> None:
        """Call `callback` at the next turn. Threading: any thread, never blocks."""
        self._mailbox.append(callback)
        self._wake()

    def _wake(self) -> None:
        with suppress(BlockingIOError, OSError):  # a full pipe wakes the loop too; after `close` there is no loop
            os.write(self._wake_write, b"\0")

    def _drain_wake(self) -> None:
        with suppress(BlockingIOError):
            os.read(self._wake_read, 4096)
        # Deliver signals that arrived during the read: their bytes may have been read too.
        self._deliver_signals()

    def handle_signals(self, signums: Iterable[int], on_signal: Callable[[int], None]) -> None:
        """Deliver these signals as calls of `on_signal` on the loop, before the other events of a turn.

        The interpreter runs the handler, which stores the number, on this thread before the next instruction. The byte
        of the C handler only wakes the loop, so no signal is lost if the pipe is full. As in the kernel, a signal that
        arrives again before it was stored counts once. Threading: the main thread only.
        """
        self._on_signal = on_signal
        self._old_wakeup = signal.set_wakeup_fd(self._wake_write, warn_on_full_buffer=False)
        for signum in signums:
            before = signal.signal(signum, lambda signum, frame: self._arrived.append(signum))
            self._old_handlers[signum] = before or signal.SIG_DFL

    def _deliver_signals(self) -> None:
        while self._arrived and self._on_signal is not None:
            self._on_signal(self._arrived.popleft())

    # --- running

    def turn(self, timeout_s: float | None = None) -> None:
        """Wait for the next event, at most `timeout_s` (`None` means no limit), and run what is due."""
        sleep_s, began_s = self._timeout(timeout_s), self.now_s()
        ready = self._selector.select(sleep_s)
        if sleep_s is not None and (slept_s := self.now_s() - began_s) > sleep_s + _STOPPED_S:
            self.leave_out(slept_s)  # this process was stopped, usually with its workers
        # Signals first: if agent and workers are signalled at once, the agent then knows why its workers end.
        self._deliver_signals()
        for key, mask in ready:
            callbacks = self._interest.get(key.fd, {})
            for bit in (selectors.EVENT_READ, selectors.EVENT_WRITE):
                callback = callbacks.get(bit)
                if mask & bit and callback is not None and self._interest.get(key.fd, {}).get(bit) is callback:
                    callback()
        for _ in range(len(self._mailbox)):
            self._mailbox.popleft()()
        now_s = self.now_s()
        while self._timers and self._timers[0][0] <= now_s:
            timer = heapq.heappop(self._timers)[2]
            if (callback := timer.callback) is not None:  # another thread may cancel it now
                callback()
        self.turned_s = self._clock.monotonic_s()

    def _timeout(self, timeout_s: float | None) -> float | None:
        if self._mailbox or self._arrived:
            return 0.0
        while self._timers and self._timers[0][2].callback is None:
            heapq.heappop(self._timers)
        if not self._timers:
            return timeout_s
        due_s = min(max(0.0, self._timers[0][0] - self.now_s()), _LONGEST_SLEEP_S)
        return due_s if timeout_s is None else min(due_s, timeout_s)

    def close(self) -> None:
        """Restore the signal handlers and close the descriptors; idempotent."""
        if self._old_wakeup is not None:
            signal.set_wakeup_fd(self._old_wakeup)
            self._old_wakeup = None
        for signum, handler in self._old_handlers.items():
            signal.signal(signum, handler)
        self._old_handlers.clear()
        if self._wake_read >= 0:
            self._selector.close()
            os.close(self._wake_read)
            os.close(self._wake_write)
            self._wake_read = self._wake_write = -1
