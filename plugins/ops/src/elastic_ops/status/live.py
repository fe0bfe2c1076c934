"""`elastic status --watch` on a terminal: a screen that shows the run until it is over, drawn with rich."""

import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final, Protocol

from rich.console import Console, ConsoleDimensions
from rich.live import Live

from elastic_core.api import SYSTEM_CLOCK, Clock, ConfigError, Record
from elastic_ops.run_directories import find_runs, run_at
from elastic_ops.status.drawing import Frame, Screen
from elastic_ops.status.live_ledger import LiveLedgers
from elastic_ops.status.recent import Event, Observer
from elastic_ops.status.screen import Content, content_of_run, content_of_runs
from elastic_ops.status.terminal import Terminal
from elastic_ops.status.view import RunView, view_of_directory

CLOCK_S: Final = 1.0
"""The interval in which the clock and the ages are drawn, if nothing else changes."""
FIND_EVERY_S: Final = 30.0
"""The interval in which agents on this machine are searched for a run that is read from a store."""


class Source(Protocol):
    """A source of runs."""

    def look(self) -> tuple[RunView, ...]:
        """Return the current state of the runs."""
        ...


def watch_on_screen(
    source: Source, every_s: float, *, in_full: bool, over: Callable[[Sequence[RunView]], bool]
) -> tuple[RunView, ...] | None:
    """Show the runs until they are over, and return their last views. `None` if the user has ended the command.

    Raises:
        ElasticError: the runs can't be read.
    """
    reader = _Reader(source, every_s, over)
    state = reader.first()
    if over(state.runs):
        return state.runs
    console = Console()
    view = _View(console, in_full=in_full)
    display = Live(console=console, screen=True, auto_refresh=False)
    with Terminal(display) as terminal:
        reader.start(terminal.wake)
        try:
            while True:
                state = reader.latest()
                if state.over:
                    return state.runs
                view.show(display, state, terminal.size())
                for key in terminal.wait(view.until_clock_s()):
                    if key == "quit":
                        return None
                    view.press(key)
        finally:
            reader.stop()


class _View:
    """Draws the runs. Threading: the main thread."""

    def __init__(self, console: Console, *, in_full: bool, clock: Clock = SYSTEM_CLOCK) -> None:
        self._console, self._in_full, self._clock = console, in_full, clock
        encoding = console.encoding.lower().replace("-", "")
        colour = console.color_system is not None and not console.no_color
        self._screen = Screen(colour=colour, unicode=encoding.startswith("utf"))

    def show(self, display: Live, state: "_State", size: tuple[int, int]) -> None:
        """Draw the runs in this size."""
        width, height = size
        self._console.size = ConsoleDimensions(width, height)
        now_ns = self._clock.wall_ns()
        lines = self._screen.lines(self._content(state, now_ns), width=width, height=height, now_ns=now_ns)
        display.update(Frame(lines), refresh=True)

    def press(self, key: str) -> None:
        """Scroll by a key."""
        match key:
            case "up" | "down":
                self._screen.scroll(-1 if key == "up" else 1)
            case "page up" | "page down":
                self._screen.scroll(pages=-1 if key == "page up" else 1)
            case "start" | "end":
                self._screen.scroll(start=key == "start", end=key == "end")

    def until_clock_s(self) -> float:
        """Return the seconds until the clock shows another second."""
        return CLOCK_S - self._clock.wall_ns() % 10**9 / 1e9 + 0.001

    def _content(self, state: "_State", now_ns: int) -> Content:
        if self._in_full or len(state.runs) == 1:
            return content_of_run(state.runs, state.here, state.events, now_ns=now_ns)
        return content_of_runs(state.runs, now_ns=now_ns)


class _State(Record, frozen=True, kw_only=True):
    """The result of one read. `here`: the run's agents on this machine. `over`: nothing follows."""

    runs: tuple[RunView, ...]
    here: tuple[RunView, ...] = ()
    events: tuple[Event, ...] = ()
    over: bool = False


class _Here:
    """The agents on this machine of a run that is read from a store. Threading: one thread."""

    def __init__(self) -> None:
        self._paths: list[Path] = []
        self._found_s = float("-inf")

    def views(self, run_id: str, now_s: float) -> tuple[RunView, ...]:
        """Return their views."""
        if now_s - self._found_s >= FIND_EVERY_S:
            self._found_s = now_s
            try:
                found = find_runs()
            except ConfigError:  # no directory for runs: no agent was ever here
                found = []
            mine = [run for run in found if run.running and run.status is not None and run.status.run_id == run_id]
            self._paths = [Path(run.path) for run in mine]
        views = []
        for path in self._paths:
            with suppress(OSError, ConfigError):  # it has just ended
                if path.is_dir():
                    views.append(view_of_directory(run_at(path)))
        return tuple(views)


class _Reader:
    """Reads the source in its own thread, so that a slow store stops neither the clock nor the keys.

    Threading: `first` before `start`; then the main thread.
    """

    def __init__(
        self, source: Source, every_s: float, over: Callable[[Sequence[RunView]], bool], *, clock: Clock = SYSTEM_CLOCK
    ) -> None:
        self._source, self._every_s, self._over, self._clock = source, every_s, over, clock
        self._observer, self._here, self._ledgers = Observer(), _Here(), LiveLedgers(clock=clock)
        self._stopping = threading.Event()
        self._read = threading.Event()
        self._state = _State(runs=())
        self._error: BaseException | None = None
        self._wake: Callable[[], None] = lambda: None
        self._thread = threading.Thread(target=self._work, name="status-reader", daemon=True)

    def first(self) -> _State:
        """Begin to read, and return the first result."""
        self._thread.start()
        while not self._read.wait(0.5):  # in parts, so that Ctrl-C ends it
            pass
        return self.latest()

    def start(self, wake: Callable[[], None]) -> None:
        """Have `wake` called after each read."""
        self._wake = wake

    def latest(self) -> _State:
        """Return the last result."""
        if self._error is not None:
            raise self._error
        return self._state

    def stop(self) -> None:
        """End the thread. A read that a server delays is left alone."""
        self._stopping.set()
        self._wake = lambda: None
        self._thread.join(0.2)

    def _work(self) -> None:
        while not self._stopping.is_set():
            try:
                self._state = self._look()
            except Exception as err:  # noqa: BLE001  # raised again in the main thread
                self._error = err
            self._read.set()
            self._wake()
            if self._error is not None or self._state.over:
                return
            self._stopping.wait(self._every_s)

    def _look(self) -> _State:
        runs = self._source.look()
        if self._over(runs):
            return _State(runs=runs, over=True)
        if len({run.run_id for run in runs}) > 1:  # a list of runs
            return _State(runs=runs)
        if runs[0].source == "store":
            here = self._ledgers.of(self._here.views(runs[0].run_id, self._clock.monotonic_s()))
            seen = (*runs, *here)
        else:
            runs = here = seen = self._ledgers.of(runs)
        return _State(runs=runs, here=here, events=self._observer.events(seen, now_ns=self._clock.wall_ns()))
