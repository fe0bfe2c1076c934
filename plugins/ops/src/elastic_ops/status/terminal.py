"""The terminal of a full-screen command: keys, size, and the signals that end, resize or suspend the command."""

import os
import select
import signal
import sys
import termios
import tty
from contextlib import suppress
from types import FrameType
from typing import Any, Final, Protocol, Self

_ENDING: Final = (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
"""Signals that end the process as always, after the terminal was restored."""
_KEYS: Final = {
    b"q": "quit",
    b"Q": "quit",
    b"\x03": "quit",
    b"\x1b[A": "up",
    b"\x1bOA": "up",
    b"k": "up",
    b"\x1b[B": "down",
    b"\x1bOB": "down",
    b"j": "down",
    b"\x1b[5~": "page up",
    b"\x1b[6~": "page down",
    b" ": "page down",
    b"\x1b[H": "start",
    b"\x1b[1~": "start",
    b"\x1bOH": "start",
    b"g": "start",
    b"\x1b[F": "end",
    b"\x1b[4~": "end",
    b"\x1bOF": "end",
    b"G": "end",
}


class Display(Protocol):
    """The part that shows the screen, and can restore the terminal."""

    def start(self) -> None:
        """Show the screen."""
        ...

    def stop(self) -> None:
        """Show the terminal as it was before."""
        ...


class Terminal:
    """Shows a display until `with` ends, by any cause that a process can handle. Threading: the main thread.

    Args:
        display: Shown from the start on.
    """

    def __init__(self, display: Display) -> None:
        self._display = display
        self._stdin = 0
        self._saved: list[Any] | None = None
        self._handlers: dict[int, object] = {}
        self._signals: list[int] = []
        self._reading, self._writing = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._typed = b""

    def __enter__(self) -> Self:
        """Show the display. Signals are handled from here on."""
        for signum in (signal.SIGINT, signal.SIGWINCH, signal.SIGTSTP, *_ENDING):
            if signal.getsignal(signum) is not signal.SIG_IGN:  # as after `nohup`
                self._handlers[signum] = signal.signal(signum, self._note)
        try:
            self._start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        """Restore the terminal and the handlers of signals. A signal that ends the process ends it now."""
        self._stop()
        for signum, handler in self._handlers.items():
            signal.signal(signum, handler)  # type: ignore[arg-type]  # what `signal` has returned
        os.close(self._reading)
        os.close(self._writing)
        for signum in self._signals:
            if signum in _ENDING:
                os.kill(os.getpid(), signum)

    def size(self) -> tuple[int, int]:
        """Return columns and lines; 80 and 24 if the terminal does not know them."""
        with suppress(OSError):
            columns, lines = os.get_terminal_size(sys.stdout.fileno())
            if columns > 0 and lines > 0:
                return columns, lines
        return 80, 24

    def wake(self) -> None:
        """End a `wait`. Threading: any."""
        with suppress(OSError):  # full, and therefore read soon; or closed, since the command has ended
            os.write(self._writing, b"\0")

    def wait(self, timeout_s: float) -> list[str]:
        """Wait for a key, a signal or `wake`, and return the names of keys. An ending signal is a `quit`."""
        descriptors = [self._reading] + ([self._stdin] if self._saved is not None else [])
        ready, _, _ = select.select(descriptors, (), (), max(0.0, timeout_s))
        if self._reading in ready:
            with suppress(BlockingIOError):
                os.read(self._reading, 4096)
        keys = self._keys() if self._stdin in ready and self._saved is not None else []
        signals = self._signals
        if any(signum == signal.SIGINT or signum in _ENDING for signum in signals):
            return ["quit"]
        self._signals = []
        if signal.SIGTSTP in signals:
            self._suspend()
        return keys

    def _note(self, signum: int, frame: FrameType | None) -> None:
        self._signals.append(signum)
        self.wake()

    def _start(self) -> None:
        self._display.start()
        with suppress(OSError, ValueError, termios.error):  # stdin is closed, or no terminal: signals alone end it
            stdin = sys.stdin.fileno()
            self._saved = termios.tcgetattr(stdin)
            self._stdin = stdin
            tty.setcbreak(stdin)

    def _stop(self) -> None:
        with suppress(OSError):  # the terminal is gone
            self._display.stop()
        if self._saved is not None:
            with suppress(OSError, termios.error):
                termios.tcsetattr(self._stdin, termios.TCSANOW, self._saved)
            self._saved = None

    def _suspend(self) -> None:
        """Stop this process as Ctrl-Z does, with the terminal restored. Show the display when it continues."""
        self._stop()
        handler = signal.signal(signal.SIGTSTP, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGTSTP)
        signal.signal(signal.SIGTSTP, handler)
        self._start()

    def _keys(self) -> list[str]:
        try:
            typed = os.read(self._stdin, 1024)
        except OSError:
            typed = b""
        if not typed:  # the terminal is gone: no key comes any more
            self._saved = None
            return []
        self._typed += typed
        keys = []
        while self._typed:
            sequence = next((each for each in _KEYS if self._typed.startswith(each)), None)
            if sequence is None and any(each.startswith(self._typed) for each in _KEYS):
                break  # the rest of the sequence follows
            if sequence is not None:
                keys.append(_KEYS[sequence])
            self._typed = self._typed[len(sequence or b"-") :]
        return keys
