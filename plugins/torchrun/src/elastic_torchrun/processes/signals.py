"""Signals in a process that waits for workers: they are raised only where it waits."""

import logging
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from elastic_core.api import SYSTEM_CLOCK

LOG = logging.getLogger(__name__)

SIGNALS_VARIABLE = "TORCHELASTIC_SIGNALS_TO_HANDLE"
_DEFAULT = "SIGTERM,SIGINT,SIGHUP,SIGQUIT"


class SignalException(Exception):
    """This process got a signal that stops it.

    Args:
        msg: Text for people.
        sigval: The signal; also an attribute.
    """

    def __init__(self, msg: str, sigval: signal.Signals) -> None:
        """Keep the signal."""
        super().__init__(msg)
        self.sigval = sigval

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle with both."""
        return type(self), (str(self), self.sigval)


class SignalWatch:
    """Raises a signal as a `SignalException` in the current wait, or in the next one.

    A signal is never raised at another place. If a second one arrives before the next wait, it has its effect from
    before the watch. After the end of the watch, and in a process that is forked meanwhile, each signal has that
    effect. A signal that was ignored (nohup) stays ignored. Threading: the main thread. On other threads nothing is
    watched, as Python handles signals on the main thread.
    """

    def __init__(self) -> None:
        """Watch nothing yet."""
        self._before: dict[int, object] = {}
        self._pid = os.getpid()
        self._over = False
        self._pending: int | None = None
        self._waiting = False

    def begin(self) -> None:
        """Watch the signals in the variable TORCHELASTIC_SIGNALS_TO_HANDLE; by default the four that end jobs."""
        if threading.current_thread() is not threading.main_thread():
            LOG.info("signals are not watched: not the main thread")
            return
        self._pid = os.getpid()
        for name in os.environ.get(SIGNALS_VARIABLE, _DEFAULT).split(","):
            signum = getattr(signal, name.strip(), None)
            if not isinstance(signum, signal.Signals) or signum in (signal.SIGKILL, signal.SIGSTOP):
                LOG.warning("%s: %r is no signal that can be handled", SIGNALS_VARIABLE, name)
            elif signal.getsignal(signum) not in (signal.SIG_IGN, None):
                self._before[signum] = signal.signal(signum, self._on_signal)

    def _on_signal(self, signum: int, frame: FrameType | None) -> None:
        if self._over or os.getpid() != self._pid:
            # A later watch, or a fork, has kept this handler: use the one before it.
            self._pass_on(signum, frame)
            return
        if self._waiting:
            self._waiting = False  # once: what follows from it must not be interrupted in turn
            raise _told(signum)
        if self._pending is not None:
            self.end()
            self._pass_on(signum, frame)
            return
        self._pending = signum

    def _pass_on(self, signum: int, frame: FrameType | None) -> None:
        before = _live(self._before[signum], signum)
        if not callable(before) or signal.getsignal(signum) == self._on_signal:
            signal.signal(signum, before)  # type: ignore[arg-type]  # what `signal.signal` returned
        if callable(before):
            before(signum, frame)
        else:
            os.kill(os.getpid(), signum)

    @contextmanager
    def wait(self) -> Iterator[None]:
        """Let a signal interrupt the block.

        Raises:
            SignalException: a signal has arrived, now or since the last wait.
        """
        if not self._before or self._over or threading.current_thread() is not threading.main_thread():
            yield
            return
        self._waiting = True
        try:
            pending, self._pending = self._pending, None
            if pending is not None:
                raise _told(pending)
            yield
        finally:
            self._waiting = False

    def end(self) -> None:
        """Restore the signal handlers, except those that other code has replaced; idempotent."""
        self._over = True
        if threading.current_thread() is not threading.main_thread():
            return
        for signum, before in self._before.items():
            if signal.getsignal(signum) == self._on_signal:
                signal.signal(signum, _live(before, signum))  # type: ignore[arg-type]  # what `signal.signal` returned


def _live(handler: object, signum: int) -> object:
    """Return a handler. For that of an ended watch, return the handler that was there before it."""
    while isinstance(watch := getattr(handler, "__self__", None), SignalWatch) and watch._over:
        handler = watch._before[signum]
    return handler


def _told(signum: int) -> SignalException:
    sigval = signal.Signals(signum)
    return SignalException(f"process {os.getpid()} got {sigval.name}", sigval)


def wait_for(event: threading.Event, timeout_s: float | None) -> bool:
    """Wait for an event up to any time (`None` means no limit), in pieces that each platform's lock accepts."""
    if timeout_s is None:
        return event.wait()
    until_s = SYSTEM_CLOCK.monotonic_s() + timeout_s
    while not event.wait(min(max(0.0, until_s - SYSTEM_CLOCK.monotonic_s()), threading.TIMEOUT_MAX)):
        if SYSTEM_CLOCK.monotonic_s() >= until_s:
            return False
    return True
