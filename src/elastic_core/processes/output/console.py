"""Our own stdout and stderr, shared by the workers' lines and the agent's."""

import os
import threading
from functools import partial

from elastic_core.encoding import clean
from elastic_core.processes.output.sink import STALL_S, Sink
from elastic_core.reactor import Reactor

FLUSH_S = 2.0
"""How long the end of a run waits for a slow reader of our output."""


class Console:
    """Both streams of ours, never blocking and never tearing a line.

    Where stdout and stderr are one and the same file, pipe or terminal, they share one queue, so that lines of the two
    don't mix either.

    Threading: built and used on the reactor's thread; `line` may be called from any.
    """

    def __init__(self, reactor: Reactor, *, stdout_fd: int = 1, stderr_fd: int = 2, stall_s: float = STALL_S) -> None:
        """Take the streams as they are."""
        self._reactor = reactor
        self._thread = threading.get_ident()
        self.stdout = Sink(reactor, stdout_fd, stall_s=stall_s)
        same = _identity(stdout_fd) == _identity(stderr_fd)
        self.stderr = self.stdout if same else Sink(reactor, stderr_fd, stall_s=stall_s)

    def line(self, *lines: str) -> None:
        """Write the agent's own words to stderr, whole lines that nothing comes between.

        Whatever others have a part in (node ids, exceptions, reasons of plugins) is cleaned here, once for all.
        """
        data = "".join(f"{clean(line)}\n" for line in lines).encode("utf-8", "backslashreplace")
        if threading.get_ident() == self._thread:
            self.stderr.submit(data, own=True)
        else:
            self._reactor.post(partial(self.stderr.submit, data, own=True))

    def flush(self, timeout_s: float = FLUSH_S) -> bool:
        """Write what is queued, blocking at most `timeout_s` in all; return whether everything went out.

        Called: when the loop no longer runs.
        """
        until_s = self._reactor.now_s() + timeout_s
        done = self.stdout.flush(until_s)
        return self.stderr.flush(until_s) and done

    def close(self) -> None:
        """Give the descriptors back; idempotent."""
        self.stdout.close()
        self.stderr.close()


def _identity(fd: int) -> tuple[int, int] | None:
    try:
        status = os.fstat(fd)
    except OSError:
        return None
    return status.st_dev, status.st_ino
