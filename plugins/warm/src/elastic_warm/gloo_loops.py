"""The threads in which gloo waits for its sockets, woken by timers of the kernel so that a group ends at once."""

import ctypes
import os
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Final

LOOP: Final = "gloo_tcp_loop"
"""The name of the thread that each group of gloo has. Source: torch 2.13 to 2.15."""
_COMM: Final = LOOP.encode() + b"\n"
_COMM_BYTES: Final = 64
"""More than the longest name of a thread."""
_EVERY_NS: Final = 500_000
_SIGEV_THREAD_ID: Final = 4
_C: Final = ctypes.CDLL(None)


class _SignalEvent(ctypes.Structure):  # struct sigevent of sigevent(3type), with SIGEV_THREAD_ID
    _fields_ = (
        ("value", ctypes.c_void_p),
        ("signo", ctypes.c_int),
        ("notify", ctypes.c_int),
        ("thread_id", ctypes.c_int),
        ("_rest", ctypes.c_byte * 44),
    )


class _Times(ctypes.Structure):  # struct itimerspec
    _fields_ = (
        ("interval_s", ctypes.c_long),
        ("interval_ns", ctypes.c_long),
        ("first_s", ctypes.c_long),
        ("first_ns", ctypes.c_long),
    )


@contextmanager
def woken(signum: int) -> Iterator[None]:
    """Interrupt the waits of gloo's threads in the block by a signal, again and again.

    A thread of gloo notices only after a wait, which takes up to 10 ms, that its group is being destroyed, and the
    caller waits for the thread. Since the caller may hold the interpreter's lock meanwhile, no thread of Python could
    end the wait. Without timers for single threads in the C library, the block runs as it is.

    Args:
        signum: A signal with a handler of Python that does nothing. 0: none.
    """
    with ExitStack() as stack:
        for thread_id in _loops() if signum else ():
            _start_timer(stack, signum, thread_id)
        yield


def _loops() -> list[int]:
    """Return the native ids of the threads of this process that are loops of gloo."""
    found = []
    for name in os.listdir("/proc/self/task"):  # noqa: PTH208  # many calls, in a hurry
        try:
            with open(f"/proc/self/task/{name}/comm", "rb", buffering=0) as file:  # noqa: PTH123  # as above
                if file.read(_COMM_BYTES) == _COMM:
                    found.append(int(name))
        except OSError:  # it has just ended
            continue
    return found


def _start_timer(stack: ExitStack, signum: int, thread_id: int) -> None:
    event = _SignalEvent(signo=signum, notify=_SIGEV_THREAD_ID, thread_id=thread_id)
    timer = ctypes.c_void_p()
    times = _Times(interval_ns=_EVERY_NS, first_ns=_EVERY_NS)
    create = getattr(_C, "timer_create", None)
    if create is None or create(time.CLOCK_MONOTONIC, ctypes.byref(event), ctypes.byref(timer)):
        return
    stack.callback(_C.timer_delete, timer)
    _C.timer_settime(timer, 0, ctypes.byref(times), None)
