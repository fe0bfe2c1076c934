"""Interruption of a blocked call when the agent cancels its wait."""

import os
import select
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from math import ceil, isinf
from weakref import WeakSet, ref

from elastic_core.api import WaitBudget


class Interrupt:
    """Wakes the one thread that is blocked in a call.

    A budget keeps its listeners, so each budget gets a single listener for all calls.

    Threading: one thread blocks; any may cancel.
    """

    def __init__(self) -> None:
        """Make the descriptor that ends a `poll`."""
        self._fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._known: WeakSet[WaitBudget] = WeakSet()
        self._lock = threading.RLock()
        self._wait: WaitBudget | None = None
        self._wake: Callable[[], object] | None = None

    def by(self, wait: WaitBudget, wake: Callable[[], object]) -> "_Block":
        """Call `wake` if `wait` is cancelled during the block, perhaps more than once, and never after the block."""
        return _Block(self, wait, wake)

    def _begin(self, wait: WaitBudget, wake: Callable[[], object]) -> None:
        if wait not in self._known:
            self._known.add(wait)
            known = ref(wait)  # a budget that its own listener held would be left to the collector, each of them
            wait.on_cancel(lambda: self._cancelled(known))
        with self._lock:
            self._wait, self._wake = wait, wake
        if wait.cancelled:
            wake()

    def _end(self) -> None:
        with self._lock:  # a wake that came later would end the next call
            self._wait = self._wake = None

    def _cancelled(self, known: ref[WaitBudget]) -> None:
        with self._lock:
            if self._wake is not None and self._wait is known():
                self._wake()

    def poll(self, sock: socket.socket, timeout_s: float, wait: WaitBudget) -> bool:
        """Block until data can be read, `timeout_s` has passed or `wait` is cancelled. Return whether data can be read.

        Raises:
            WaitCancelledError: from `wait`.
        """
        poll = select.poll()
        poll.register(sock, select.POLLIN)
        poll.register(self._fd, select.POLLIN)
        with self.by(wait, lambda: os.eventfd_write(self._fd, 1)):
            ready = {fd for fd, _ in poll.poll(None if isinf(timeout_s) else ceil(timeout_s * 1000))}
        if wait.cancelled:
            with suppress(BlockingIOError):  # it came after the block
                os.eventfd_read(self._fd)  # it must not end the next call
            wait.check()
        return sock.fileno() in ready

    def close(self) -> None:
        """Release the descriptor."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


class _Block:
    """The block of `Interrupt.by`: a class, because a generator costs an idle agent more than the rest of it."""

    __slots__ = ("_interrupt", "_wait", "_wake")

    def __init__(self, interrupt: Interrupt, wait: WaitBudget, wake: Callable[[], object]) -> None:
        self._interrupt, self._wait, self._wake = interrupt, wait, wake

    def __enter__(self) -> None:
        try:
            self._interrupt._begin(self._wait, self._wake)
        except BaseException:
            self._interrupt._end()
            raise

    def __exit__(self, *_: object) -> None:
        self._interrupt._end()
