"""The hooks of a run: their names, their state, their calls, and their end."""

import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from elastic_core.hooks.handler import AgentHook
from elastic_core.logger import Logger, print_line
from elastic_core.moments import LaunchChange, Moment, Power, Refuse
from elastic_core.plugin_faults import PluginFaults, PluginLabel
from elastic_core.reports import RunEvent
from elastic_core.types import Record

CATCH_ALL: Final = "on_moment"
"""The method for moments for which a hook has no method."""
METHODS: Final[Mapping[type, str]] = {
    method.__annotations__["event"]: name
    for name, method in vars(AgentHook).items()
    if name.startswith("on_") and name != CATCH_ALL
}
"""The method of `AgentHook` that receives each type, from its annotations."""
FEED: Final = METHODS[RunEvent]
CLOSED: Final = "feed_closed"
"""The last event of the feed."""


class NamedHook(Record, frozen=True, kw_only=True):
    """A hook with the name that users know, its distribution, and a hint for users if it is broken."""

    name: str
    distribution: str
    hook: AgentHook
    hint: str = ""
    fail_closed: bool = False
    """Whether the user has set `fail_closed`, whatever the class states."""

    @property
    def label(self) -> PluginLabel:
        """The hook's name in lines for users."""
        return PluginLabel("hook", self.name, self.distribution, type(self.hook).__module__, self.hint)

    def takes_event(self, name: str) -> bool:
        """Return whether the hook receives events of this name."""
        without: object = self.hook.without_events
        left_out = isinstance(without, frozenset) and name in without
        return Power.FEED in self.hook.powers and (name == CLOSED or not left_out)


MOST_LINES: Final = 1000
"""How many lines of one hook (`RunHandle.notice`) are printed within `LINES_WITHIN_S`; further ones are counted."""
LINES_WITHIN_S: Final = 10.0


class LineLimit:
    """The limit on the lines that one hook prints. Guarded by the runner's lock."""

    def __init__(self) -> None:
        self.left_out = 0
        """How many lines exceeded the limit and have not been reported yet."""
        self._since_s = float("-inf")
        self._count = 0

    def takes(self, now_s: float) -> bool:
        """Count a line, and return whether it is printed."""
        if now_s - self._since_s >= LINES_WITHIN_S:
            self._since_s, self._count = now_s, 0
        self._count += 1
        shown = self._count <= MOST_LINES
        self.left_out += not shown
        return shown

    def take_left_out(self) -> int:
        """Return how many lines exceeded the limit, and reset the number."""
        left_out, self.left_out = self.left_out, 0
        return left_out


class RunningHook:
    """A hook and its state. Guarded by the runner's lock."""

    def __init__(self, named: NamedHook) -> None:
        self.named = named
        kind, called = type(named.hook), (*METHODS.values(), CATCH_ALL)
        self._overridden = {name for name in called if getattr(kind, name, None) is not getattr(AgentHook, name)}
        self.label = named.label
        self.powers = named.hook.powers
        self.abandoned = False
        self.feeds = Power.FEED in self.powers
        """Whether it receives the feed."""
        self.strikes = 0
        """How often in a row it has raised on an event of the feed."""
        self.lines = LineLimit()
        closed = named.fail_closed or getattr(type(named.hook), "fail_closed", False) is True
        self.fail_closed = closed and Power.REFUSAL in self.powers
        self.stuck = ""
        """The method of a `fail_closed` gate that has not returned: the gate refuses until it does."""

    def overrides(self, method: str) -> bool:
        """Return whether the hook overrides a method that the runner calls."""
        return method in self._overridden

    def takes(self, method: str) -> bool:
        """Return whether to call the hook's method: no thread is woken for a method that does nothing."""
        return not self.abandoned and (method != FEED or self.feeds) and self.overrides(method)

    def takes_event(self, name: str) -> bool:
        """Return whether the hook receives events of this name."""
        return self.takes(FEED) and self.named.takes_event(name)

    def catches(self, method: str) -> bool:
        """Return whether the hook receives a moment by its catch-all, because it has no method for it."""
        return self.overrides(CATCH_ALL) and not self.abandoned and not self.overrides(method)


class Task:
    """A moment, an event or a hook's own call: the hooks still to be called, and their answers so far.

    `moment` may be an event of the feed; `None` means a hook's own `call`. `answer` is called with the task after
    the last hook; `None` means that no caller waits. An empty `method` means the moment's own.
    """

    def __init__(
        self,
        moment: Moment | RunEvent | None,
        members: Sequence[RunningHook],
        answer: "Callable[[Task], None] | None" = None,
        call: Callable[[], None] = lambda: None,
        method: str = "",
    ) -> None:
        self.moment = moment
        self.method = method or ("a call that it had set" if moment is None else METHODS[type(moment)])
        self.waiting = deque(members)
        self.answer = answer
        self._call = call
        self.changes: dict[int, LaunchChange] = {}
        self.refusal: Refuse | None = None
        self.refused_by = ""

    def takes(self, member: RunningHook) -> bool:
        """Return whether to call a hook."""
        return not member.abandoned if self.moment is None else member.takes(self.method)

    def fail(self, member: RunningHook, fault: str) -> None:
        """Refuse on behalf of a gate with `fail_closed`."""
        if member.fail_closed and self.answer is not None and self.refusal is None:
            self.refusal, self.refused_by = Refuse(reason=fault), str(member.label)

    def make(self, member: RunningHook) -> object:
        """Call a hook. Threading: the hooks'."""
        return self._call() if self.moment is None else getattr(member.named.hook, self.method)(self.moment)


class HoldTask(Task):
    """The request for the seconds that hooks delay a stop; `holds` is filled with them, by the hook's name."""

    def __init__(
        self, members: Sequence[RunningHook], answer: Callable[[Task], None], holds: "dict[str, float]"
    ) -> None:
        super().__init__(None, members, answer, method="hold_s")
        self.holds = holds

    def fail(self, member: RunningHook, fault: str) -> None:
        """Ignore the failure: a gate cannot refuse a stop."""

    def make(self, member: RunningHook) -> object:
        """Read a hook's `hold_s`. Threading: the hooks'."""
        return member.named.hook.hold_s


CLOSE_S: Final = 5.0
"""Seconds that a hook may take to close."""


def close_hooks(
    hooks: Sequence[NamedHook],
    *,
    log: Logger | None = None,
    faults: PluginFaults | None = None,
    within_s: float = CLOSE_S,
) -> None:
    """Close each hook that overrides `close`, and wait for each no longer than the deadline.

    `log` prints a line about a hook that raises or does not return. `None` means that lines are written at once,
    because no loop runs that would print them. Without `faults`, exceptions are not kept.
    """
    kept = PluginFaults() if faults is None else faults
    shown = Logger(print_line) if log is None else log
    for named in hooks:
        if type(named.hook).close is not AgentHook.close:
            lines: list[str] = []
            thread = threading.Thread(target=_close, args=(named, kept, lines), name="elastic-hooks", daemon=True)
            thread.start()
            thread.join(within_s)
            if thread.is_alive():
                lines.append(f"{named.label}: close has not returned after {within_s:g} s; the run ends without it")
            for line in lines:
                shown.notice(line)


def _close(named: NamedHook, faults: PluginFaults, lines: list[str]) -> None:
    try:
        named.hook.close()
    except BaseException as err:  # noqa: BLE001  # plugin code on its own thread: every exception is reported
        lines.append(f"{named.label}: close raised {faults.raised(named.label, 'close', err).text}")
