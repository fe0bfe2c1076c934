"""How the main thread is made to leave a training function: an interrupt, its exceptions, and blocks that delay it."""

import ctypes
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, Final

FIRST_BELOW_RTMAX: Final = 8
"""The signal is this much below SIGRTMAX, or the next lower one without a handler. Few programs use these numbers."""
_MOST_TRIES: Final = 8
LATE_PART: Final = 0.75
"""The part of the time limit after which protected blocks and imports are interrupted, too."""
_AGAIN_S: Final = 0.25
"""The time between two interrupts that take effect: the first one runs `finally` blocks, which a second would cut."""
_IMPORTS: Final = "<frozen importlib._bootstrap"
_MAX_TEXT: Final = 500
_C: Final = ctypes.CDLL(None)
_MAX_CHAIN: Final = 10


class RoundOver(BaseException):
    """The round has ended: raised in the training function, which must not return after it.

    It is no `Exception`, so that `except Exception` does not catch it. `finally` blocks run, and should be short.
    """


class Interrupter:
    """Interrupts a function in the main thread by a signal whose handler raises `RoundOver`.

    The handler raises nothing outside of the function, and nothing in a protected block or an import before the limit
    is nearly over.

    Threading: the main thread creates it and calls the function; another thread interrupts it.

    Raises:
        ValueError: this is not the main thread, or no signal is free.
    """

    def __init__(self) -> None:
        self._main = threading.main_thread().ident
        self._wanted = False
        self._late_s = 0.0
        self._again_s = 0.0
        """Before this time, no interrupt takes effect."""
        self._depth = 0
        """The number of open protected blocks of the main thread."""
        self._others = 0
        """The number of open protected blocks of other threads."""
        self._lock = threading.Lock()
        self.running = False
        """Whether the main thread is in the function."""
        self.raised_s: float | None = None
        """When the interrupt first took effect."""
        self.signum = self._install()

    def _install(self) -> int:
        for below in range(FIRST_BELOW_RTMAX, FIRST_BELOW_RTMAX + _MOST_TRIES):
            signum = signal.SIGRTMAX - below
            if signal.getsignal(signum) == signal.SIG_DFL:
                signal.signal(signum, self._on_signal)
                return signum
        raise ValueError("the script handles all signals that could end a round")

    # --- the main thread

    def renew(self) -> None:
        """Want no end of the next round, yet."""
        self._wanted, self.raised_s, self._again_s = False, None, 0.0
        self._depth = 0  # a block that was interrupted because it was late may not have counted its end

    def call(self, function: Callable[[], Any]) -> tuple[Any, BaseException | None]:
        """Call the function. Return its result and no error, or the exception that left it."""
        self.running = True
        try:
            self.check()  # it may have been wanted before
            return _inside(function), None
        except BaseException as error:  # noqa: BLE001  # the caller decides
            return None, error
        finally:
            self.running = False
            if not self._is_installed():
                _raise_in(self._main, None)

    def check(self) -> None:
        """Leave the function here if that is wanted.

        Raises:
            RoundOver: it is.
        """
        if self.wanted_here():
            self._note()
            raise RoundOver

    def wanted_here(self) -> bool:
        """Return whether the caller, in the main thread and in the function, is to leave it."""
        return self._wanted and self.running and not self._depth and threading.get_ident() == self._main

    @contextmanager
    def protected(self) -> Iterator[None]:
        """Delay interrupts until the end of the block, or until the limit is nearly over."""
        in_main = threading.get_ident() == self._main
        self._count(in_main, 1)
        try:
            yield
        finally:
            self._count(in_main, -1)
        self.check()

    def _count(self, in_main: bool, change: int) -> None:
        if in_main:
            self._depth += change
        else:
            with self._lock:
                self._others += change

    def _on_signal(self, _signum: int, frame: FrameType | None) -> None:
        if self._wanted and self._may_leave(frame):
            self._note()
            raise RoundOver

    def _may_leave(self, frame: FrameType | None) -> bool:
        now_s = time.monotonic()
        late = now_s > self._late_s
        if now_s < self._again_s or (self._depth and not late):
            return False
        while frame is not None:
            code = frame.f_code
            if code is _inside.__code__:
                return True
            if not late and code.co_filename.startswith(_IMPORTS):
                return False  # a module that is imported in part would fail in the next round
            frame = frame.f_back
        return False

    def _note(self) -> None:
        now_s = time.monotonic()
        self._again_s = now_s + _AGAIN_S
        if self.raised_s is None:
            self.raised_s = now_s

    # --- the other thread

    @property
    def is_held(self) -> bool:
        """Whether a protected block delays the end of the round, of any thread."""
        return bool(self._depth or self._others) and time.monotonic() <= self._late_s

    def want(self, within_s: float) -> None:
        """Have the function left within this number of seconds. `interrupt` must follow, and be repeated."""
        self._late_s = time.monotonic() + within_s * LATE_PART
        self._wanted = True

    def interrupt(self) -> None:
        """Interrupt the main thread. A system call that blocks ends with EINTR."""
        if not self.running or self._main is None:
            return
        if self._is_installed():
            signal.pthread_kill(self._main, self.signum)
        elif not self.is_held and time.monotonic() >= self._again_s:
            # The script has a handler of its own. This way ends no system call.
            self._again_s = time.monotonic() + _AGAIN_S
            _raise_in(self._main, RoundOver)

    @property
    def own_signum(self) -> int:
        """The signal, which does nothing outside of the function. 0 if the script has replaced the handler."""
        return self.signum if self._is_installed() else 0

    def _is_installed(self) -> bool:
        return signal.getsignal(self.signum) == self._on_signal


def _inside(function: Callable[[], Any]) -> Any:  # noqa: ANN401  # the function's own
    """Call the function. The signal's handler looks for this frame."""
    return function()


def _raise_in(thread: int | None, kind: type[BaseException] | None) -> None:
    """Raise an exception in a thread that runs Python code, or withdraw it."""
    if thread is not None:
        value = None if kind is None else ctypes.py_object(kind)
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), value)


# --- exceptions


def collateral_text(error: BaseException) -> str:
    """Return one line about an error that only reports that a peer is gone or silent. Empty if it is another error."""
    from elastic_core.api.workers import lost_peer  # imported now: it takes milliseconds

    for each in _chain(error):
        if not isinstance(each, Exception):
            return ""
        text = str(each)
        found = lost_peer({kind.__name__ for kind in type(each).__mro__}, text)
        if found:
            return f"{type(each).__name__}: {text}".partition("\n")[0][:_MAX_TEXT]
        if found is False:  # it is about this worker's own port
            return ""
    return ""


def is_round_over(error: BaseException) -> bool:
    """Return whether an exception is `RoundOver`, or was raised while it was handled."""
    return any(isinstance(each, RoundOver) for each in _chain(error))


def _chain(error: BaseException) -> Iterator[BaseException]:
    each: BaseException | None = error
    for _ in range(_MAX_CHAIN):
        if each is None:
            return
        yield each
        each = each.__cause__ or (None if each.__suppress_context__ else each.__context__)


def clear_frames(error: BaseException) -> None:
    """Release what the frames of an exception hold: data loaders end their processes then.

    It replaces a garbage collection, which takes half a second in a process with torch.
    """
    todo: list[BaseException | None] = [error]
    seen: set[int] = set()
    while todo:
        each = todo.pop()
        if each is None or id(each) in seen:
            continue
        seen.add(id(each))
        trace, each.__traceback__ = each.__traceback__, None
        traceback.clear_frames(trace)
        todo += [each.__cause__, each.__context__, *getattr(each, "exceptions", ())]


def flush_streams() -> None:
    """Write what Python and C have buffered for stdout and stderr."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (AttributeError, OSError, ValueError):  # there is none, or it is closed
            continue
    _C.fflush(None)


def replace_stream(fd: int, number: int) -> None:
    """Put a descriptor in the place of stdout (1) or stderr (2), whose Python objects keep their buffering."""
    os.dup2(fd, number)
    os.close(fd)
