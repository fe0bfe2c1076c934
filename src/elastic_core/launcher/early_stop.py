"""Handles stop signals between the start of a run and the start of its loop."""

import signal
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from types import FrameType


class EarlyStop(BaseException):
    """A stop signal arrived before the loop runs: undo what was begun. Not an error, so not an `Exception`."""

    def __init__(self, signum: int) -> None:
        super().__init__(signum)
        self.signum = signum


@contextmanager
def early_stops(signums: Iterable[int]) -> Iterator[None]:
    """Raise `EarlyStop` at these signals, unless they were ignored before. The loop replaces the handlers.

    Threading: the main thread only.
    """
    before = {signum: signal.getsignal(signum) for signum in signums}
    taken = {signum: handler for signum, handler in before.items() if handler is not signal.SIG_IGN}
    try:
        for signum in taken:
            signal.signal(signum, _raise)
        yield
    finally:
        for signum, handler in taken.items():
            signal.signal(signum, signal.SIG_DFL if handler is None else handler)


def _raise(signum: int, frame: FrameType | None) -> None:
    raise EarlyStop(signum)


@contextmanager
def held(signums: Iterable[int]) -> Iterator[None]:
    """Delay these signals between creating something and registering its cleanup.

    They are not blocked: a process that is started meanwhile would inherit that, and ignore its own stop signal.

    Threading: the main thread only.
    """
    came: list[int] = []
    before = {signum: signal.getsignal(signum) for signum in signums}
    taken = {signum: handler for signum, handler in before.items() if handler is not signal.SIG_IGN}
    try:
        for signum in taken:
            signal.signal(signum, lambda signum, _: came.append(signum))
        yield
    finally:
        for signum, handler in taken.items():
            signal.signal(signum, signal.SIG_DFL if handler is None else handler)
    if came:
        signal.raise_signal(came[0])
