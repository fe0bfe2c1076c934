"""The exceptions of plugins in one run: what lines say of them, and whole tracebacks for authors."""

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Final, NamedTuple

from elastic_core.logger import Logger, print_line
from elastic_core.system.clock import SYSTEM_CLOCK, Clock

if TYPE_CHECKING:
    from elastic_core.starters import AgentLoop

FILE: Final = "plugin-errors.log"
"""In the run directory; for its owner only."""
MOST_BYTES: Final = 1 << 20
"""A file that has grown so large is set aside, as `plugin-errors.log.1`, and begun anew."""
MOST_KEPT: Final = 32
"""How many tracebacks are kept until there is a run directory."""
MOST_SEEN: Final = 1_000
"""How many faults are told apart; what a plugin raises beyond them counts as one of its own."""
LOOP_S: Final = 5.0
"""How long one call may hold the agent's loop up; as hooks have on their own thread."""
_MOST_TEXT: Final = 500
_NOT_THEIRS: Final = frozenset({"elastic_core", "pluggy"})
"""Packages whose frames lie between a caller and a plugin."""
_STANDARD: Final = str(Path(os.__file__).parent) + os.sep


class PluginLabel(NamedTuple):
    """A plugin as people know it: `hook 'seats' (acme 1.0)`.

    `distribution` has the version in it. `module` is where its code lies (empty: not known), `hint` what users can do
    when it is broken.
    """

    kind: str
    name: str
    distribution: str = ""
    module: str = ""
    hint: str = ""

    def __str__(self) -> str:
        """Return it for a line."""
        owner = f" ({self.distribution})" if self.distribution else ""
        return f"{self.kind} {self.name!r}{owner}"

    def call_line(self, operation: str, fate: str) -> str:
        """Return the whole line about a call: `renew of backend 'seats' (acme 1.0) raised …`."""
        return f"{operation} of {self} {fate}. Try: {self.hint}" if self.hint else f"{operation} of {self} {fate}"

    def line(self, fault: str) -> str:
        """Return the whole line about a fault, with what users can do."""
        return f"{self}: {fault}. Try: {self.hint}" if self.hint else f"{self}: {fault}"


class Fault(NamedTuple):
    """What a plugin raised, for a line: `KeyError: 'seat' (acme.py:27 in renew)`; and whether it did so before."""

    text: str
    again: bool


class PluginFaults:
    """The exceptions that plugins raise in one run: each is reported once and counted, its traceback written to a file.

    Until `begin`, tracebacks are kept; after `end` they are written at once. With `ELASTIC_DEBUG=1` each goes to stderr
    as well.

    Threading: any.
    """

    def __init__(self, *, clock: Clock = SYSTEM_CLOCK) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._seen: dict[tuple[str, ...], tuple[str, int]] = {}
        """What each fault is called at the end, and how often it was seen."""
        self.raised_any = False
        """Whether a traceback was written that an author may want to read."""
        self._kept: list[Callable[[], None]] = []
        self._put: Callable[[Callable[[], None]], None] | None = None
        self._folder: Callable[[], Path] = Path
        self._log = Logger(print_line)
        self._named = False

    def begin(
        self,
        folder: Callable[[], Path],
        *,
        put: Callable[[Callable[[], None]], None],
        log: Logger,
    ) -> None:
        """Write what was kept, and from now on whatever comes.

        Args:
            folder: Returns the run directory, which may move.
            put: Has something done beside the loop, in the order given. Threading: any.
            log: Takes lines for people.
        """
        with self._lock:
            self._folder, self._put, self._log = folder, put, log
            kept, self._kept = self._kept, []
        for write in kept:
            put(write)

    def end(self) -> list[str]:
        """Take the end of the run: return a line for each fault that came again, and write at once from now on."""
        with self._lock:
            if self._put is not None:
                self._put = lambda write: write()
            return [f"{text}; {times - 1} more until the end" for text, times in self._seen.values() if times > 1]

    def again(self, plugin: PluginLabel, text: str, *fault: str) -> bool:
        """Count a fault of a plugin's, and return whether it was seen before.

        Args:
            plugin: The plugin.
            text: What the fault is called.
            fault: What tells it from others; none: its text does.
        """
        key = (plugin.kind, plugin.name, *(fault or (text,)))
        with self._lock:
            if key not in self._seen and len(self._seen) >= MOST_SEEN:
                key, text = (plugin.kind, plugin.name), "other faults"
            name, times = self._seen.get(key, (f"{plugin}: {text}", 0))
            self._seen[key] = name, times + 1
        return times > 0

    def raised(self, plugin: PluginLabel, operation: str, error: BaseException) -> Fault:
        """Keep what a plugin raised, and return it for a line."""
        text = text_of(error, plugin.module)
        again = self.again(plugin, text, type(error).__name__, place_of(error, plugin.module))
        if not again:
            self.raised_any = True
            head = f"{_time(self._clock.wall_ns())} {plugin}: {operation}, thread {threading.current_thread().name}"
            if os.environ.get("ELASTIC_DEBUG") == "1":
                self._log.notice(head, *_traceback(error).splitlines())
            self._keep(partial(self._write, head, error))
        return Fault(text=text, again=again)

    @contextmanager
    def threads(self, owner: Callable[[BaseException], PluginLabel | None]) -> Iterator[None]:
        """Take what threads of plugins raise, as what their calls do; all others are left to Python's own hook.

        Args:
            owner: Returns whose an exception is; None: nobody's. Threading: any.
        """
        before = threading.excepthook

        def take(raised: threading.ExceptHookArgs) -> None:
            error = raised.exc_value
            plugin = owner(error) if isinstance(error, Exception) else None
            if error is None or plugin is None:
                before(raised)
                return
            name = "its thread" if raised.thread is None else f"its thread {raised.thread.name!r}"
            fault = self.raised(plugin, name, error)
            if not fault.again:
                self._log.notice(plugin.line(f"{name} raised {fault.text}"))

        threading.excepthook = take
        try:
            yield
        finally:
            if threading.excepthook is take:
                threading.excepthook = before

    def _keep(self, write: Callable[[], None]) -> None:
        with self._lock:
            put = self._put
            if put is None and len(self._kept) < MOST_KEPT:
                self._kept.append(write)
        if put is not None:
            put(write)

    def _write(self, head: str, error: BaseException) -> None:
        """Append a traceback to the file; its sources are read here, too, where a disk may take its time."""
        path = self._folder() / FILE
        try:
            _append(path, f"{head}\n{_traceback(error)}\n".encode("utf-8", "backslashreplace"))
        except OSError as err:
            text = f"a plugin's traceback could not be written to {str(path)!r}: {err.strerror}"
        else:
            text = f"tracebacks of plugins are in {str(path)!r}"
        with self._lock:
            named, self._named = self._named, True
        if not named:
            self._log.notice(text)


class LoopFence:
    """What keeps the agent's loop from what a plugin does on it: one that raises or holds it up is off, with a line.

    Args:
        plugin: Whose calls.
        loop: The agent's, which shows the line.
        without: What happens without it: the end of the line.
        faults: Keeps what it raises; None: for this one alone.
        clock: Measures the calls.
    """

    def __init__(
        self,
        plugin: PluginLabel,
        loop: "AgentLoop",
        without: str,
        *,
        faults: PluginFaults | None = None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self.off = False
        self._plugin = plugin
        self._loop = loop
        self._without = without
        self._faults = PluginFaults() if faults is None else faults
        self._clock = clock

    @contextmanager
    def call(self, method: str) -> Iterator[None]:
        """Surround a call."""
        began_s = self._clock.monotonic_s()
        try:
            yield
        except Exception as err:  # noqa: BLE001  # plugin code on the agent's thread: reported, and turned off
            self.turn_off(method, f"raised {self._faults.raised(self._plugin, method, err).text}")
        taken_s = self._clock.monotonic_s() - began_s
        if taken_s >= LOOP_S:
            self.turn_off(method, f"held the agent up for {taken_s:.1f} s")

    def turn_off(self, method: str, fault: str) -> None:
        """Do without the plugin from now on, for what a method did."""
        if not self.off:
            self.off = True
            self._loop.notice(f"{self._plugin}: {method} {fault}; {self._without}")


def wrong_answer(answer: object, needed: str) -> str:
    """Return what is wrong with an answer that is not `needed`, to follow the name of a plugin's method."""
    return f"answered {type(answer).__name__}; expected {needed}"


def text_of(error: BaseException, module: str = "") -> str:
    """Return an exception as a user reads it, on one line, with its innermost place in the plugin's own code."""
    place = place_of(error, module)
    return f"{described(error)} ({place})" if place else described(error)


def described(error: BaseException) -> str:
    """Return an exception as a user reads it: its class, and its text on one line."""
    try:
        text = " ".join(str(error).split())
    except Exception:  # noqa: BLE001  # a plugin's exception: even its text may raise
        text = "(its text can't be had)"
    text = text if len(text) <= _MOST_TEXT else f"{text[:_MOST_TEXT]}…"
    return f"{type(error).__name__}: {text}".removesuffix(": ")


def modules_of(error: BaseException) -> list[str]:
    """Return the modules that an exception came through, the innermost first."""
    found = []
    trace: TracebackType | None = error.__traceback__
    while trace is not None:
        found.append(str(trace.tb_frame.f_globals.get("__name__")))
        trace = trace.tb_next
    return found[::-1]


def place_of(error: BaseException, module: str = "") -> str:
    """Return where in a plugin's own code an exception came from: `acme.py:27 in renew`; empty: nowhere in it.

    Args:
        error: What was raised.
        module: A module of the plugin, or what its entry point names: its package's frames are its own. Without one, or
            where none of them is there, those are that are neither ours nor the standard library's.
    """
    if isinstance(error, SyntaxError):  # whose text has the place
        return ""
    own, others = "", ""
    package = module.partition(":")[0].partition(".")[0]
    trace: TracebackType | None = error.__traceback__
    while trace is not None:
        top = str(trace.tb_frame.f_globals.get("__name__")).partition(".")[0]
        if top == package and package not in _NOT_THEIRS:
            own = _place(trace)
        elif top not in _NOT_THEIRS and not _is_standard(trace.tb_frame.f_code.co_filename):
            others = _place(trace)
        trace = trace.tb_next
    return own or others


def _place(trace: TracebackType) -> str:
    code = trace.tb_frame.f_code
    path = Path(code.co_filename)
    name = f"{path.parent.name}/{path.name}" if path.name == "__init__.py" else path.name
    where = "" if code.co_name == "<module>" else f" in {code.co_name}"
    return f"{name}:{trace.tb_lineno}{where}"


def _is_standard(filename: str) -> bool:
    if filename.startswith("<frozen "):
        return True
    return filename.startswith(_STANDARD) and "-packages" + os.sep not in filename


def _traceback(error: BaseException) -> str:
    import traceback  # only for a plugin that is broken

    text = "".join(traceback.format_exception(error))
    most = MOST_BYTES // 16
    return text if len(text) <= most else f"{text[: most // 2]}\n[…]\n{text[-most // 2 :]}"


def _append(path: Path, content: bytes) -> None:
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    fd = os.open(path, flags, 0o600)
    try:
        full = os.fstat(fd).st_size + len(content) > MOST_BYTES
        if full:
            path.replace(path.with_name(f"{FILE}.1"))
        else:
            os.write(fd, content)
    finally:
        os.close(fd)
    if full:
        _append(path, content)


def _time(at_ns: int) -> str:
    import datetime  # as `traceback`

    return datetime.datetime.fromtimestamp(at_ns // 10**9, tz=datetime.UTC).isoformat()
