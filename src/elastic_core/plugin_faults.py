"""Exceptions of plugins in one run: their lines for users, and a file of full tracebacks for plugin authors."""

import os
import threading
import time
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
"""The file's name in the run directory. Only its owner may read it."""
MOST_BYTES: Final = 1 << 20
"""If the file would grow larger, it is renamed to `plugin-errors.log.1`, and a new one begins."""
MOST_KEPT: Final = 32
"""How many tracebacks are kept while there is no run directory."""
MOST_SEEN: Final = 1_000
"""How many different faults are counted. Further ones are counted together, for each plugin."""
LOOP_S: Final = 5.0
"""How many seconds one call may block the agent's loop, the same as for calls on the hooks' thread."""
_MOST_TEXT: Final = 500
# Packages that have frames between a caller and a plugin.
_NOT_THEIRS: Final = frozenset({"elastic_core", "pluggy"})
_STANDARD: Final = str(Path(os.__file__).parent) + os.sep


class PluginLabel(NamedTuple):
    """A plugin's name for users: `hook 'seats' (acme 1.0)`.

    `distribution` includes the version. `module` contains its code (empty: not known). `hint` is the users' remedy if
    the plugin is broken.
    """

    kind: str
    name: str
    distribution: str = ""
    module: str = ""
    hint: str = ""

    def __str__(self) -> str:
        owner = f" ({self.distribution})" if self.distribution else ""
        return f"{self.kind} {self.name!r}{owner}"

    def call_line(self, operation: str, fate: str) -> str:
        """Return the line about a failed call: `renew of backend 'seats' (acme 1.0) raised …`."""
        return f"{operation} of {self} {fate}. Try: {self.hint}" if self.hint else f"{operation} of {self} {fate}"

    def line(self, fault: str) -> str:
        """Return the line about a fault, with the hint."""
        return f"{self}: {fault}. Try: {self.hint}" if self.hint else f"{self}: {fault}"


class Fault(NamedTuple):
    """The text of a plugin's exception, `KeyError: 'seat' (acme.py:27 in renew)`, and whether it was seen before."""

    text: str
    again: bool


class PluginFaults:
    """The exceptions of plugins in one run: each is reported once and counted, its traceback written to a file.

    Tracebacks are kept in memory until `begin`, and written at once after `end`. With `ELASTIC_DEBUG=1`, each is also
    printed to stderr.

    Threading: any.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        # For each fault, its text at the end and how often it was seen.
        self._seen: dict[tuple[str, ...], tuple[str, int]] = {}
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
        """Write the tracebacks that were kept, and all later ones.

        `folder` returns the run directory, which may move. `put` calls functions outside the loop, in order,
        from any thread.
        """
        with self._lock:
            self._folder, self._put, self._log = folder, put, log
            kept, self._kept = self._kept, []
        for write in kept:
            put(write)

    def end(self) -> list[str]:
        """Return a line for each fault that was repeated. Later tracebacks are written at once."""
        with self._lock:
            if self._put is not None:
                self._put = lambda write: write()
            return [f"{text}; {times - 1} more until the end" for text, times in self._seen.values() if times > 1]

    def again(self, plugin: PluginLabel, text: str, *fault: str) -> bool:
        """Count a fault of a plugin, and return whether it was seen before.

        `fault` are the values that identify the fault; if there are none, its text does.
        """
        key = (plugin.kind, plugin.name, *(fault or (text,)))
        with self._lock:
            if key not in self._seen and len(self._seen) >= MOST_SEEN:
                key, text = (plugin.kind, plugin.name), "other faults"
            name, times = self._seen.get(key, (f"{plugin}: {text}", 0))
            self._seen[key] = name, times + 1
        return times > 0

    def raised(self, plugin: PluginLabel, operation: str, error: BaseException) -> Fault:
        """Keep an exception of a plugin, and return its text for a line."""
        text = text_of(error, plugin.module)
        again = self.again(plugin, text, type(error).__name__, place_of(error, plugin.module))
        if not again:
            self.raised_any = True
            head = f"{_time(SYSTEM_CLOCK.wall_ns())} {plugin}: {operation}, thread {threading.current_thread().name}"
            if os.environ.get("ELASTIC_DEBUG") == "1":
                self._log.notice(head, *_traceback(error).splitlines())
            self._keep(partial(self._write, head, error))
        return Fault(text=text, again=again)

    @contextmanager
    def threads(self, owner: Callable[[BaseException], PluginLabel | None]) -> Iterator[None]:
        """Report exceptions in threads of plugins like those of their calls; Python's own hook gets all others.

        `owner` returns the plugin that raised an exception, or `None`, on any thread.
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
        # Source files are read here too, outside the loop, because disks may be slow.
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
    """Protects the agent's loop from a plugin's calls: a plugin that raises or blocks it is turned off, with a line.

    `without` is the end of the line: how the agent continues without the plugin. If `faults` is `None`, exceptions are
    kept in a store for this plugin alone.
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
        """Turn the plugin off because of a method's fault."""
        if not self.off:
            self.off = True
            self._loop.notice(f"{self._plugin}: {method} {fault}; {self._without}")


def wrong_answer(answer: object, needed: str) -> str:
    """Return what is wrong with a plugin's answer that is not `needed`, to follow the method's name."""
    return f"answered {type(answer).__name__}; expected {needed}"


def text_of(error: BaseException, module: str = "") -> str:
    """Return an exception as one line for users, with its innermost place in the plugin's own code."""
    place = place_of(error, module)
    return f"{described(error)} ({place})" if place else described(error)


def described(error: BaseException) -> str:
    """Return an exception as one line for users: its class and its text."""
    try:
        text = " ".join(str(error).split())
    except Exception:  # noqa: BLE001  # a plugin's exception: even its text may raise
        text = "(its text can't be had)"
    text = text if len(text) <= _MOST_TEXT else f"{text[:_MOST_TEXT]}…"
    return f"{type(error).__name__}: {text}".removesuffix(": ")


def modules_of(error: BaseException) -> list[str]:
    """Return the modules in an exception's traceback, the innermost first."""
    return [str(trace.tb_frame.f_globals.get("__name__")) for trace in _entries(error)][::-1]


def place_of(error: BaseException, module: str = "") -> str:
    """Return the place in a plugin's own code that raised: `acme.py:27 in renew`. Empty if there is none.

    Frames of the package of `module` (a module, or an entry point's value) are the plugin's own. Without a module
    or such frames, those are that belong neither to this project nor to the standard library.
    """
    if isinstance(error, SyntaxError):  # its text has the place
        return ""
    own, others = "", ""
    package = module.partition(":")[0].partition(".")[0]
    for trace in _entries(error):
        top = str(trace.tb_frame.f_globals.get("__name__")).partition(".")[0]
        if top == package and package not in _NOT_THEIRS:
            own = _place(trace)
        elif top not in _NOT_THEIRS and not _is_standard(trace.tb_frame.f_code.co_filename):
            others = _place(trace)
    return own or others


def _entries(error: BaseException) -> Iterator[TracebackType]:
    trace = error.__traceback__
    while trace is not None:
        yield trace
        trace = trace.tb_next


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
    import traceback  # needed for broken plugins only

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
    return time.strftime("%Y-%m-%dT%H:%M:%S+00:00", time.gmtime(at_ns // 10**9))
