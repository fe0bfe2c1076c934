"""A real pseudo-terminal of any size with a program in it, and what a person sees there.

Only the control sequences that a screen of rich needs are known. Any other fails the test, such as one from the name of
a node.
"""

import codecs
import fcntl
import os
import pty
import re
import signal
import struct
import subprocess
import termios
import threading
from collections.abc import Sequence

from rich.cells import cell_len

from patience import patience
from support import wait_for

_TOKEN = re.compile(r"\x1b\[([?\d;]*)([A-Za-z])|\x1b.?|[\x00-\x1f\x7f]|[^\x00-\x1f\x7f]", re.DOTALL)


class Seen:
    """The content of a terminal, from the output of programs."""

    def __init__(self, columns: int, lines: int) -> None:
        self.columns, self.lines = columns, lines
        self.alternate, self.cursor, self.frames = False, True, 0
        self.normal: list[str] = [""]
        self.rows: dict[int, str] = {}
        self.whole = ""
        """The last complete frame of the screen, in its present size. Empty before."""
        self.overflows: list[str] = []
        self._row = 0
        self._rest = ""

    def feed(self, text: str) -> None:
        """Apply output."""
        text = self._rest + text
        cut = re.search(r"\x1b(\[[?\d;]*)?$", text)
        self._rest = cut[0] if cut else ""
        for token in _TOKEN.finditer(text[: len(text) - len(self._rest)]):
            self._apply(token)

    def _apply(self, token: re.Match[str]) -> None:
        match token[0], token[1], token[2]:
            case _, "?1049", "h":
                self.alternate, self._row = True, 0
                self.forget()
            case _, "?1049", "l":
                self.alternate = False
            case _, "?25", "h" | "l" as last:
                self.cursor = last == "h"
            case _, "", "H":
                self.whole, self._row, self.rows = self._screen(), 0, {}
                self.frames += 1
            case _, _, "m":
                pass
            case "\r", _, _:
                pass
            case "\n", _, _:
                if self.alternate:
                    self._row += 1
                    if self._row >= self.lines:
                        self.overflows.append("more lines than the terminal has")
                else:
                    self.normal.append("")
            case sign, None, _ if sign.isprintable():
                if self.alternate:
                    self.rows[self._row] = self.rows.get(self._row, "") + sign
                    if cell_len(self.rows[self._row]) > self.columns:
                        self.overflows.append(self.rows[self._row])
                else:
                    self.normal[-1] += sign
            case other:
                raise AssertionError(f"a control sequence that no screen needs: {other!r}")

    def forget(self) -> None:
        """Begin with an empty screen, whose first complete frame is still to come."""
        self.rows, self.whole = {}, ""

    @property
    def text(self) -> str:
        """The last complete frame of the screen, or the lines of the shell."""
        return self.whole if self.alternate else self.shell

    def _screen(self) -> str:
        return "\n".join(line.rstrip() for _, line in sorted(self.rows.items()))

    @property
    def shell(self) -> str:
        """The lines of the normal screen."""
        return "\n".join(line.rstrip() for line in self.normal)


class TerminalWindow:
    """A program in a terminal."""

    def __init__(self, command: Sequence[object], *, columns: int = 100, lines: int = 30, **env: str) -> None:
        self._master, slave = pty.openpty()
        self.raw = b""
        self._seen = Seen(columns, lines)
        self._failure: BaseException | None = None
        self._lock = threading.Lock()
        self.resize(columns, lines)
        self.modes = termios.tcgetattr(slave)
        inherited = {k: v for k, v in os.environ.items() if k not in ("COLUMNS", "LINES", "NO_COLOR", "COLORTERM")}
        self.process = subprocess.Popen(
            # The terminal controls the program, so that Ctrl-C and a new size are signals to it.
            ["setsid", "--ctty", *map(str, command)],
            stdin=slave,
            stdout=slave,
            stderr=slave,
            env=inherited | {"TERM": "xterm-256color", "PYTHONIOENCODING": "utf-8"} | env,
        )
        self._slave = slave
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        decoder = codecs.getincrementaldecoder("utf-8")()
        while True:
            try:
                piece = os.read(self._master, 65536)
            except OSError:
                return
            with self._lock:
                self.raw += piece
                try:
                    self._seen.feed(decoder.decode(piece))
                except (AssertionError, UnicodeDecodeError) as err:
                    self._failure = self._failure or err

    def resize(self, columns: int, lines: int) -> None:
        """Change the size, as a user's mouse does."""
        with self._lock:
            self._seen.columns, self._seen.lines = columns, lines
            self._seen.forget()
        fcntl.ioctl(self._master, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))

    def seen(self) -> Seen:
        """Return the content, which nothing unknown and no overflow has touched."""
        with self._lock:
            if self._failure is not None:
                raise self._failure
            return self._seen

    def shows(self, *parts: str, within_s: float = 20.0) -> str:
        """Wait until one complete frame shows all parts, and return its whole text."""

        def text() -> str:
            with self._lock:
                shown = self._seen.text
            return shown if all(part in shown for part in parts) else ""

        try:
            return str(wait_for(text, within_s=within_s))
        except AssertionError:
            raise AssertionError(f"not shown: {parts}; but:\n{self.seen().text}") from None

    def another_frame(self) -> str:
        """Wait for a frame that begins after this call, and return it when the next one begins."""
        before = self.seen().frames
        wait_for(lambda: self.seen().frames > before + 1, what="another frame")
        return self.seen().whole

    def types(self, keys: str) -> None:
        """Press keys."""
        os.write(self._master, keys.encode())

    def signals(self, signum: int) -> None:
        """Send a signal to the program."""
        self.process.send_signal(signum)

    def ends(self, within_s: float = 20.0) -> int:
        """Wait for the program's end, and return its exit code."""
        code = self.process.wait(timeout=patience(within_s))
        os.set_blocking(self._master, True)
        os.close(self._slave)
        self._slave = -1
        self._thread.join(patience(5))
        return code

    def is_restored(self) -> bool:
        """Return whether the terminal is as it was before the program."""
        fd = self._slave if self._slave >= 0 else self._master
        return termios.tcgetattr(fd) == self.modes and not self.seen().alternate and self.seen().cursor

    def close(self) -> None:
        """End the program, however it is."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGCONT)
            self.process.kill()
        self.process.wait()
        if self._slave >= 0:
            os.close(self._slave)
        self._thread.join(5)
        os.close(self._master)
