"""The delivery of metrics and events to their handlers, on a thread of its own."""

import threading
from collections.abc import Callable, Sequence
from queue import SimpleQueue
from typing import Final, Protocol

from elastic_core.api import Record
from elastic_core.api.feed import RunEvent

MOST_WAITING: Final = 10_000
"""What a handler that hangs leaves undone must not fill the memory."""
STRIKES: Final = 3
"""A handler that raises so often in a row is off for the rest of the run."""
CLOSE_LIMIT_S: Final = 2.0


class Outlet(Protocol):
    """Makes of the run's feed what handlers get, and hands it to them."""

    def observe(self, seen: RunEvent) -> None:
        """Take it."""
        ...

    def close(self) -> None:
        """Give back what handlers hold. Called: last, on the same thread."""
        ...


class Published(Record, frozen=True, kw_only=True):
    """A value that something in this process has published by itself, and for whom."""

    publish: Callable[[], None]


class Guard:
    """Calls one handler. What it raises is told and counted; in the end it is left alone. Threading: one thread."""

    def __init__(self, label: str, notice: Callable[[str], None]) -> None:
        """Begin without a fault; `notice` takes one line for people."""
        self.label = label
        self._notice = notice
        self.faults = 0
        self._in_a_row = 0

    @property
    def off(self) -> bool:
        """Whether it is left alone."""
        return self._in_a_row >= STRIKES

    def call(self, handle: Callable[[], None]) -> None:
        """Call it, unless it is off."""
        if self.off:
            return
        try:
            handle()
        except BaseException as err:  # noqa: BLE001  # anybody's code, on a thread of ours: all that it raises is told
            self.faults += 1
            self._in_a_row += 1
            self._complain(err)
        else:
            self._in_a_row = 0

    def _complain(self, err: BaseException) -> None:
        fault = f"{type(err).__name__}: {' '.join(str(err).split())}".removesuffix(": ")
        if self.off:
            self._notice(f"{self.label} raised {fault}, {self.faults} times by now; it is off for the rest of the run")
        elif self.faults == 1:
            self._notice(f"{self.label} raised {fault}")


class Delivery:
    """The queue and its thread.

    Threading: `put` and `publish` may be called from any thread and never block; the rest by the thread that built it.
    """

    def __init__(self, outlets: Sequence[Outlet], *, notice: Callable[[str], None]) -> None:
        """Start nothing yet; `notice` takes one line for people, from any thread."""
        self._outlets = outlets
        self._notice = notice
        self._queue: SimpleQueue[RunEvent | Published | None] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._dropped = 0
        self._closed = False

    def start(self) -> None:
        """Begin to hand on; idempotent."""
        if self._thread is not None or self._closed:
            return
        self._thread = threading.Thread(target=self._serve, name="elastic-observers", daemon=True)
        self._thread.start()

    def put(self, what: RunEvent | Published) -> None:
        """Hand on what was seen, some time soon."""
        if self._closed:
            return
        if self._queue.qsize() >= MOST_WAITING:
            self._dropped += 1
        else:
            self._queue.put(what)

    def close(self) -> bool:
        """Wait a moment until all is handed on and closed, and end; idempotent. False: a handler has not returned."""
        if self._closed:
            return True
        self._closed = True
        thread = self._thread
        if thread is None:
            self._close_outlets()
            return True
        self._queue.put(None)
        thread.join(CLOSE_LIMIT_S)
        if self._dropped:
            self._notice(f"{self._dropped} metrics and events were dropped: their handlers were too slow")
        return not thread.is_alive()

    def _close_outlets(self) -> None:
        for outlet in self._outlets:
            outlet.close()

    def _serve(self) -> None:
        while (what := self._queue.get()) is not None:
            if isinstance(what, Published):
                what.publish()
                continue
            for outlet in self._outlets:
                outlet.observe(what)
        self._close_outlets()  # here, too, nobody waits for them without an end
