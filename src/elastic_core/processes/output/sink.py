"""Our own output streams, shared by the workers' lines and the agent's: writing never blocks the loop.

The shell, the scheduler and workers share the stream's open file description, so it is never switched to non-blocking.
A pipe or a terminal is opened a second time, a socket gets a flag with each call, and a file is simply written.
"""

import errno
import os
import select
import stat
import threading
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from elastic_core.encoding import clean
from elastic_core.logger import shows_colours
from elastic_core.system.reactor import Reactor, Timer

if TYPE_CHECKING:
    from elastic_core.system.colours import Painter

HIGH_WATER_BYTES = 1 << 20
"""If more bytes wait, the workers' pipes of this stream are not read."""
LOW_WATER_BYTES = 1 << 18
"""If no more bytes than this wait, the pipes are read again."""
STALL_S = 5.0
"""If a stream accepts nothing for so many seconds, workers' lines are dropped until it does."""
OWN_LIMIT_BYTES = 1 << 18
"""How many bytes of the agent's own lines are kept for a stalled stream."""

_SMALL_WRITE_BYTES = 512  # at most PIPE_BUF (4096): after POLLOUT a write of this size does not block
_GONE = (errno.EPIPE, errno.ECONNRESET, errno.EIO, errno.EBADF, errno.ENOTCONN)
_PTMX = (5, 2)


def _open_again(fd: int, mode: int, device: int) -> int | None:
    # A non-blocking description of the same pipe or terminal. `None` if there is none.
    if stat.S_ISCHR(mode) and (not os.isatty(fd) or (os.major(device), os.minor(device)) == _PTMX):
        return None  # opening the master of a pseudo-terminal makes a new one
    try:
        return os.open(f"/proc/self/fd/{fd}", os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    except OSError:  # another user's pipe, a terminal of another container, no /proc
        return None


def _sender(fd: int) -> tuple[Callable[[bytes | memoryview], int], int, Callable[[], None] | None]:
    # The function that writes to `fd`, the descriptor to wait on, and the function that closes what was opened.
    status = os.fstat(fd)
    mode = status.st_mode
    if stat.S_ISSOCK(mode):
        import socket  # rarely needed, 4 ms to import

        peer = socket.socket(fileno=os.dup(fd))
        return lambda data: peer.send(data, socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL), fd, peer.close
    can_block = stat.S_ISFIFO(mode) or (stat.S_ISCHR(mode) and os.isatty(fd))
    if not can_block:
        return lambda data: os.write(fd, data), fd, None
    again = _open_again(fd, mode, status.st_rdev)
    if again is not None:
        return lambda data: os.write(again, data), again, lambda: os.close(again)
    return lambda data: _write_small(fd, data), fd, None


def _write_small(fd: int, data: bytes | memoryview) -> int:
    poll = select.poll()
    poll.register(fd, select.POLLOUT)
    if not poll.poll(0):
        raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))
    return os.write(fd, data[:_SMALL_WRITE_BYTES])


class Sink:
    """A queue before one of our streams. Whole lines are submitted, and written whole and in order.

    Threading: the reactor's thread.
    """

    def __init__(self, reactor: Reactor, fd: int, *, stall_s: float = STALL_S) -> None:
        self._reactor = reactor
        self._stall_s = stall_s
        self._queue: deque[tuple[bytes | memoryview, bool]] = deque()
        self.queued_bytes = 0
        """How many bytes wait."""
        self._head_begun = False
        self._blocked = False
        self._flushing = False
        self._dropping = False
        self._dropped_lines = 0
        self._progress_s = 0.0
        self._timer: Timer | None = None
        self._waiting: list[Callable[[], None]] = []
        self._give_back: Callable[[], None] | None = None
        self._send: Callable[[bytes | memoryview], int] | None = None
        try:
            self._send, self._fd, self._give_back = _sender(fd)
        except OSError:  # closed before the start (`>&-`)
            self._fd = -1

    @property
    def congested(self) -> bool:
        """Whether the feeding code should pause until `when_relieved` calls back."""
        return self.queued_bytes > HIGH_WATER_BYTES and not self._dropping

    @property
    def broken(self) -> bool:
        """Whether the stream has lost its reader."""
        return self._send is None

    def when_relieved(self, callback: Callable[[], None]) -> None:
        """Call `callback` once, when the sink is no longer congested."""
        self._waiting.append(callback)

    def submit(self, data: bytes, *, own: bool = False) -> None:
        """Write whole lines, now or when the stream accepts them. With `own`, they are the agent's and kept longest."""
        if self._send is None:
            return
        if self._dropping and (not own or self.queued_bytes > OWN_LIMIT_BYTES):
            self._dropped_lines += _count_lines(data)
            return
        self._queue.append((data, own))
        self.queued_bytes += len(data)
        if not self._blocked:
            self._write_out()

    def _write_out(self) -> None:
        while self._queue and self._send is not None:
            head, own = self._queue[0]
            try:
                count = self._send(head)
            except BlockingIOError:
                self._block()
                break
            except OSError as error:
                if error.errno in _GONE:
                    self._break()
                    return
                count = len(head)  # a full disk behind a redirected stream: these lines are lost, later ones may fit
                self._dropped_lines += _count_lines(bytes(head))
            self._took(count, head, own)
        if not self._queue:
            self._unblock()
        if self.queued_bytes <= LOW_WATER_BYTES:
            self._relieve()

    def _took(self, count: int, head: bytes | memoryview, own: bool) -> None:
        self.queued_bytes -= count
        self._progress_s = self._reactor.now_s()
        if count == len(head):
            self._queue.popleft()
            self._head_begun = False
        elif count:
            self._queue[0] = (memoryview(head)[count:], own)
            self._head_begun = True

    # --- a stalled stream

    def _block(self) -> None:
        if self._blocked or self._flushing:
            return
        self._blocked = True
        self._progress_s = self._reactor.now_s()
        self._reactor.add_writer(self._fd, self._on_writable)
        if self._timer is None:
            self._timer = self._reactor.call_later(self._stall_s, self._check_stall)

    def _unblock(self) -> None:
        if self._blocked:
            self._blocked = False
            self._reactor.remove_writer(self._fd)

    def _on_writable(self) -> None:
        if self._dropping:
            self._dropping = False
            self._submit_account()
        self._write_out()

    def _check_stall(self) -> None:
        self._timer = None
        if not self._blocked or self._dropping:
            return
        idle_s = self._reactor.now_s() - self._progress_s
        if idle_s < self._stall_s:
            self._timer = self._reactor.call_later(self._stall_s - idle_s, self._check_stall)
            return
        self._dropping = True
        self._drop_queue()
        self._relieve()

    def _drop_queue(self) -> None:
        kept: deque[tuple[bytes | memoryview, bool]] = deque()
        for position, (data, own) in enumerate(self._queue):
            if own or (position == 0 and self._head_begun):  # a begun line is finished
                kept.append((data, own))
            else:
                self._dropped_lines += _count_lines(bytes(data))
        self._queue = kept
        self.queued_bytes = sum(len(data) for data, _ in kept)

    def _submit_account(self) -> None:
        if self._dropped_lines:
            lines = self._dropped_lines
            account = f"[elastic] {lines} lines are missing here: their reader was stalled; log files are complete\n"
            self._dropped_lines = 0
            self._queue.append((account.encode(), True))
            self.queued_bytes += len(account)

    def _break(self) -> None:
        self._unblock()
        self._send = None
        self._queue.clear()
        self.queued_bytes = 0
        self._relieve()

    def _relieve(self) -> None:
        waiting, self._waiting = self._waiting, []
        for callback in waiting:
            callback()

    # --- the end

    def flush(self, until_s: float) -> bool:
        """Write the queue, blocking at most until `until_s` of the reactor's clock; return whether all was written.

        Called: after the loop has ended, and before its reactor is closed.
        """
        self._flushing = True
        self._unblock()
        if self._dropped_lines and not self._dropping:
            self._submit_account()  # lines that were lost on a full disk
        poll = select.poll()
        if self._send is not None:
            poll.register(self._fd, select.POLLOUT)
        while self._queue and self._send is not None:
            self._write_out()
            left_s = until_s - self._reactor.now_s()
            if not self._queue or left_s <= 0:
                break
            if poll.poll(left_s * 1000) and self._dropping:
                self._dropping = False
                self._submit_account()
        self._flushing = False
        return not self._queue

    def close(self) -> None:
        """Close the descriptors; queued lines are lost."""
        self._unblock()
        self._send = None
        if self._timer is not None:
            self._timer.cancel()
        if self._give_back is not None:
            self._give_back()
            self._give_back = None


def _count_lines(data: bytes) -> int:
    return data.count(b"\n") + data.count(b"\r") - data.count(b"\r\n")


FLUSH_S = 2.0
"""Seconds that the end of a run waits for a slow reader of our output."""


class Console:
    """Our stdout and stderr: writing never blocks and never breaks a line.

    If both are the same file, pipe or terminal, they share one queue, so that their lines do not mix.

    Threading: built and used on the reactor's thread; `line` may be called from any.
    """

    def __init__(self, reactor: Reactor, *, stdout_fd: int = 1, stderr_fd: int = 2, stall_s: float = STALL_S) -> None:
        self._reactor = reactor
        self._thread = threading.get_ident()
        self.stdout = Sink(reactor, stdout_fd, stall_s=stall_s)
        same = _identity(stdout_fd) == _identity(stderr_fd)
        self.stderr = self.stdout if same else Sink(reactor, stderr_fd, stall_s=stall_s)
        self.colours = shows_colours(os.environ, terminal=os.isatty(stderr_fd))
        """Whether the agent's own lines have colours."""

    def line(self, *lines: str, painter: "Painter | None" = None) -> None:
        """Write the agent's own lines to stderr, without other lines between them.

        All lines are cleaned here, because they may contain foreign texts (node ids, exceptions, reasons of plugins).
        """
        shown = map(clean, lines)
        if self.colours:
            from elastic_core.system.colours import paint_notice  # most runs are not started on a terminal

            shown = map(painter or paint_notice, shown)
        data = "".join(f"{line}\n" for line in shown).encode("utf-8", "backslashreplace")
        if threading.get_ident() == self._thread:
            self.stderr.submit(data, own=True)
        else:
            self._reactor.post(partial(self.stderr.submit, data, own=True))

    def flush(self, timeout_s: float = FLUSH_S) -> bool:
        """Write the queues, blocking at most `timeout_s` in all; return whether all was written.

        Called: after the loop has ended.
        """
        until_s = self._reactor.now_s() + timeout_s
        done = self.stdout.flush(until_s)
        return self.stderr.flush(until_s) and done

    def close(self) -> None:
        """Close the descriptors; idempotent."""
        self.stdout.close()
        self.stderr.close()


def _identity(fd: int) -> tuple[int, int] | None:
    try:
        status = os.fstat(fd)
    except OSError:
        return None
    return status.st_dev, status.st_ino
