"""The delivery of metrics and events to their handlers, on a thread of its own."""

import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Final

MOST_WAITING: Final = 10_000
"""The limit of pending calls: a handler that hangs must not fill the memory."""
STRIKES: Final = 3
"""The number of consecutive errors after which a handler is disabled for the rest of the run."""
CLOSE_LIMIT_S: Final = 2.0


class Guard:
    """Calls one handler. Errors are logged and counted; too many disable the handler. Threading: one thread."""

    def __init__(self, label: str, notice: Callable[[str], None]) -> None:
        """Begin without a fault; `notice` takes one line for people."""
        self.label = label
        self._notice = notice
        self.faults = 0
        self._in_a_row = 0

    @property
    def off(self) -> bool:
        """Whether the handler is disabled."""
        return self._in_a_row >= STRIKES

    def call(self, handle: Callable[[], None]) -> None:
        """Call it, unless it is disabled."""
        if self.off:
            return
        try:
            handle()
        except BaseException as err:  # noqa: BLE001  # foreign code on this thread: all its errors are logged
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
    """Makes calls that handlers may block, one by one on a thread of its own: a slow handler delays no hook.

    Threading: `put` may be called from any thread and never blocks; the rest by the thread that built it.
    """

    def __init__(self, close: Callable[[], None], *, notice: Callable[[str], None]) -> None:
        """Start nothing yet.

        Args:
            close: The last call, which releases the handlers' resources.
            notice: Shows one line to people, from any thread.
        """
        self._close = close
        self._notice = notice
        self._queue: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._dropped = 0
        self._closed = False

    def start(self) -> None:
        """Begin to make the calls; idempotent."""
        if self._thread is not None or self._closed:
            return
        self._thread = threading.Thread(target=self._serve, name="elastic-observers", daemon=True)
        self._thread.start()

    def put(self, call: Callable[[], None]) -> None:
        """Add a call to the queue."""
        if self._closed:
            return
        if self._queue.qsize() >= MOST_WAITING:
            self._dropped += 1
        else:
            self._queue.put(call)

    def close(self) -> bool:
        """Wait briefly until all calls are made, and end; idempotent. False means that a handler has not returned."""
        if self._closed:
            return True
        self._closed = True
        thread = self._thread
        if thread is None:
            self._close()
            return True
        self._queue.put(None)
        thread.join(CLOSE_LIMIT_S)
        if self._dropped:
            self._notice(f"{self._dropped} metrics and events were dropped: their handlers were too slow")
        return not thread.is_alive()

    def _serve(self) -> None:
        while (call := self._queue.get()) is not None:
            call()
        self._close()  # the wait for them is limited here, too
