"""The threads that send copies of a commit to another rank, for which the end of a function and of the process waits.

Python ends a daemon thread at its next wait for the interpreter's lock. In C++ code of torch, that aborts the process.
"""

import atexit
import threading
import time
from typing import Final

LONGEST_S: Final = 10.0
"""How long an end waits. A transfer ends by itself when it is complete, or when a connection ends."""

_threads: list[threading.Thread] = []


def begin(thread: threading.Thread) -> None:
    """Start a daemon thread that the ends wait for."""
    _threads[:] = [*(each for each in _threads if each.is_alive()), thread]  # before: an interrupt may end this call
    thread.start()


def wait(within_s: float = LONGEST_S) -> bool:
    """Wait until all such threads have ended, or the time is over. Return whether they have."""
    until_s = time.monotonic() + within_s
    for thread in tuple(_threads):
        if thread.ident is not None:
            thread.join(max(0.0, until_s - time.monotonic()))
    return not any(thread.is_alive() for thread in _threads)


atexit.register(wait)
