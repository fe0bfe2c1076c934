"""Handles stop signals between the start of a run and the start of its loop."""

import signal
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from types import FrameType


class EarlyStop(BaseException):
    """A stop signal arrived before the loop runs: undo what was begun. Not an error, so not an `Exception`."""

    def __init__(self, signum: int) -> None:
        super().__init__(signum)
        self.signum = signum


def early_stops(signums: Iterable[int]) -> AbstractContextManager[None]:
    """Raise `EarlyStop` at these signals, unless they were ignored before. The loop replaces the handlers.

    Threading: the main thread only.
    """
    return _handled(signums, _raise)


def _raise(signum: int, frame: FrameType | None) -> None:
    raise EarlyStop(signum)


@contextmanager
def held(signums: Iterable[int]) -> Iterator[None]:
    """Delay these signals between creating something and registering its cleanup.

    They are not blocked: a process that is started meanwhile would inherit that, and ignore its own stop signal.

    Threading: the main thread only.
    """
    came: list[int] = []
    with _handled(signums, lambda signum, _: came.append(signum)):
        yield
    if came:
        signal.raise_signal(came[0])


@contextmanager
def _handled(signums: Iterable[int], handler: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    before = {signum: signal.getsignal(signum) for signum in signums}
    taken = {signum: earlier for signum, earlier in before.items() if earlier is not signal.SIG_IGN}
    try:
        for signum in taken:
            signal.signal(signum, handler)
        yield
    finally:
        for signum, earlier in taken.items():
            signal.signal(signum, signal.SIG_DFL if earlier is None else earlier)
