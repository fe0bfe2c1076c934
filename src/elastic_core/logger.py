"""The logger that prints a run's lines for users; each part that reports something receives one."""

from __future__ import annotations

import sys
import time

TYPE_CHECKING = False  # as in procfs, for the guard
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    Painter = Callable[[str], str]

TIMES = {"off": "", "time": "%H:%M:%S ", "iso": "%Y-%m-%dT%H:%M:%S%z "}
"""The values of `--log-times`, with their formats."""


class Logger:
    """Prints the launcher's own lines. It does not use `logging`, whose import is slow. Threading: any.

    `write` writes several lines without other lines between them. `prefix` begins each notice. `times` is the local
    time before each notice and block, a key of `TIMES`. `colours`: `write` takes a painter.
    """

    def __init__(
        self, write: Callable[..., None], *, prefix: str = "elastic: ", times: str = "off", colours: bool = False
    ) -> None:
        self._write = write
        self._prefix = prefix
        self.times = TIMES[times]
        """The format of `local_time`."""
        self._colours = colours

    def notice(self, text: str, *more: str, painter: Painter | None = None) -> None:
        """Print one line with the prefix, then the lines of `more` without it."""
        self._print(f"{local_time(self.times)}{self._prefix}{text}", more, painter)

    def block(self, first: str, *more: str, painter: Painter | None = None) -> None:
        """Print lines without the prefix. A time does not make the first line longer if a rule ends it."""
        time_text = local_time(self.times)
        rule = first[-1:] * len(time_text)
        self._print(f"{time_text}{first.removesuffix(rule)}", more, painter)

    def _print(self, first: str, more: tuple[str, ...], painter: Painter | None) -> None:
        self._write(first, *more, **({"painter": painter} if self._colours and painter is not None else {}))


def shows_colours(environ: Mapping[str, str], *, terminal: bool) -> bool:
    """Return whether a stream gets colours, by the variables of users; `terminal` means that it is a terminal."""
    if environ.get("NO_COLOR"):
        return False
    if any(environ.get(name, "0") not in ("", "0") for name in ("FORCE_COLOR", "CLICOLOR_FORCE")):
        return True
    return terminal and environ.get("TERM") != "dumb"


def local_time(form: str) -> str:
    """Return the local time in a format of `TIMES`, and a blank; empty without a format."""
    text = time.strftime(form)
    return f"{text[:-3]}:{text[-3:]}" if "z" in form else text


def print_line(*lines: str) -> None:
    """Write lines to stderr, for code that runs without a loop."""
    from elastic_core.encoding import clean  # `elastic --help` has no time for it

    sys.stderr.write("".join(f"{clean(line)}\n" for line in lines))
