"""The hooks of a run: each by its name and with its record, what it is called for, and its end."""

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
"""The method for what a hook has no method of its own for."""
METHODS: Final[Mapping[type, str]] = {
    method.__annotations__["event"]: name
    for name, method in vars(AgentHook).items()
    if name.startswith("on_") and name != CATCH_ALL
}
"""Which method of `AgentHook` takes what, as it is annotated there."""
FEED: Final = METHODS[RunEvent]
CLOSED: Final = "feed_closed"
"""The last event of the feed."""


class NamedHook(Record, frozen=True, kw_only=True):
    """An observer, the name that users know it by, and the distribution that brought it; what helps if it is broken."""

    name: str
    distribution: str
    hook: AgentHook
    hint: str = ""
    fail_closed: bool = False
    """The user has it so, whatever its class says."""

    @property
    def label(self) -> PluginLabel:
        """The hook in lines for people."""
        return PluginLabel("hook", self.name, self.distribution, type(self.hook).__module__, self.hint)

    def takes_event(self, name: str) -> bool:
        """Return whether the hook takes the feed's events of a name."""
        without: object = self.hook.without_events
        left_out = isinstance(without, frozenset) and name in without
        return Power.FEED in self.hook.powers and (name == CLOSED or not left_out)


MOST_LINES: Final = 1000
"""So many lines of one hook (`RunHandle.notice`) are shown within `LINES_WITHIN_S`; the rest are counted."""
LINES_WITHIN_S: Final = 10.0


class LineLimit:
    """The bound on the lines that one hook shows. Guarded by the runner's lock."""

    def __init__(self) -> None:
        self.left_out = 0
        """How many lines exceeded the bound and have not been reported yet."""
        self._since_s = float("-inf")
        self._count = 0

    def takes(self, now_s: float) -> bool:
        """Count a line, and return whether it is shown."""
        if now_s - self._since_s >= LINES_WITHIN_S:
            self._since_s, self._count = now_s, 0
        self._count += 1
        shown = self._count <= MOST_LINES
        self.left_out += not shown
        return shown

    def take_left_out(self) -> int:
        """Return how many lines exceeded the bound, which are reported now."""
        left_out, self.left_out = self.left_out, 0
        return left_out


class RunningHook:
    """An observer and its record. Guarded by the runner's lock."""

    def __init__(self, named: NamedHook) -> None:
        self.named = named
        self.label = named.label
        self.powers = named.hook.powers
        self.abandoned = False
        self.feeds = Power.FEED in self.powers
        """It gets the feed."""
        self.strikes = 0
        """How often in a row it has raised at an event of the feed."""
        self.lines = LineLimit()
        closed = named.fail_closed or getattr(type(named.hook), "fail_closed", False) is True
        self.fail_closed = closed and Power.REFUSAL in self.powers
        self.stuck = ""
        """The method that has not returned, of a gate that fails closed: it refuses until then."""

    def overrides(self, method: str) -> bool:
        """Return whether the hook does something at a moment."""
        return getattr(type(self.named.hook), method, None) is not getattr(AgentHook, method)

    def takes(self, method: str) -> bool:
        """Return whether the hook overrides a method: no thread is woken for a method that does nothing."""
        return not self.abandoned and (method != FEED or self.feeds) and self.overrides(method)

    def takes_event(self, name: str) -> bool:
        """Return whether the hook takes the feed's events of a name."""
        return self.takes(FEED) and self.named.takes_event(name)

    def catches(self, method: str) -> bool:
        """Return whether the hook takes by its catch-all what it has no method for."""
        return self.overrides(CATCH_ALL) and not self.abandoned and not self.overrides(method)


class Task:
    """One moment on its way through the hooks, with what they have answered so far; or a call that one of them set.

    Args:
        moment: What has come, or an event of the feed; None: a call of a hook's own.
        members: Those to call.
        answer: Takes the task when all have answered; None: nobody waits for it.
        call: The hook's own.
        method: Which method takes the moment; empty: its own.
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
        """Return whether a hook is to be called."""
        return not member.abandoned if self.moment is None else member.takes(self.method)

    def fail(self, member: RunningHook, fault: str) -> None:
        """Have a gate that fails closed refuse."""
        if member.fail_closed and self.answer is not None and self.refusal is None:
            self.refusal, self.refused_by = Refuse(reason=fault), str(member.label)

    def make(self, member: RunningHook) -> object:
        """Call a hook. Threading: the hooks'."""
        return self._call() if self.moment is None else getattr(member.named.hook, self.method)(self.moment)


class HoldTask(Task):
    """The question for how long hooks hold a stop.

    Args:
        members: Those to ask.
        answer: Takes the task when all have answered.
        holds: Gets the seconds, by name.
    """

    def __init__(
        self, members: Sequence[RunningHook], answer: Callable[[Task], None], holds: "dict[str, float]"
    ) -> None:
        super().__init__(None, members, answer, method="hold_s")
        self.holds = holds

    def fail(self, member: RunningHook, fault: str) -> None:
        """Hold nothing for it: no gate has a say in a stop."""

    def make(self, member: RunningHook) -> object:
        """Ask a hook. Threading: the hooks'."""
        return member.named.hook.hold_s


CLOSE_S: Final = 5.0
"""How long a hook may take to close."""


def close_hooks(
    hooks: Sequence[NamedHook],
    *,
    log: Logger | None = None,
    faults: PluginFaults | None = None,
    within_s: float = CLOSE_S,
) -> None:
    """Close each hook that has something to close, and wait for it no longer than the deadline.

    Args:
        hooks: Those of the run.
        log: Takes a line about one that raises, or does not return. None: that is written at once, as there is no loop
            any more that would print it.
        faults: Keeps what they raise; None: nobody reads it.
        within_s: The deadline of each.
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
    except BaseException as err:  # noqa: BLE001  # plugin code on its own thread: all that it raises is told
        lines.append(f"{named.label}: close raised {faults.raised(named.label, 'close', err).text}")
