"""Lines about the calls of a blocking handler that do not return: nobody can say whether one waits or hangs."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Final

from elastic_core.clock import SYSTEM_CLOCK, Clock
from elastic_core.plugin_faults import CurrentCall
from elastic_core.rendezvous.loop import AgentSide

JOIN_LINE_S: Final = 30.0
"""When people are told that `next_rendezvous` has not returned; again after ten times as long, and so on."""
WATCH_LINE_S: Final = 10.0
"""How far past its time `watch` is told of."""
STILL_S: Final = 1.0
"""A loop that stands still for less does so on any busy node."""
LEAVE_LINE_S: Final = 2.0
"""How long after the agent has begun to leave; it goes a second later, whatever the handler does."""


class BlockingCalls:
    """What a blocking handler does, call by call, as its agent's loop sees it.

    Of a call that does not return there is a line with its name; it is left as it is, and should it return, it goes on.

    Threading: the agent's loop, except for `call` and `began`.
    """

    def __init__(self, agent: AgentSide, clock: Clock = SYSTEM_CLOCK) -> None:
        self._agent = agent
        self._clock = clock
        self._current = CurrentCall(clock)
        self._told = ""

    def call(self, operation: str, within_s: float = 0.0) -> AbstractContextManager[None]:
        """Surround a call that should return within a time. Threading: the handler's."""
        return self._current.call(operation, self._clock.monotonic_s() + within_s)

    def hasten(self) -> None:
        """Note that the call under way was asked to end."""
        self._current.hasten(self._clock.monotonic_s())

    def at_once(self, operation: str, call: Callable[[], object]) -> None:
        """Make a call that should not block, here on the loop; one that did has a line."""
        began_s = self._clock.monotonic_s()
        try:
            call()
        finally:
            took_s = self._clock.monotonic_s() - began_s
            if took_s >= STILL_S:
                still = f"this agent stood still for it, and was deaf to signals: {operation} must not block"
                self._agent.notice(f"{operation} of {self._agent.backend} took {took_s:.1f} s; {still}")

    def joining(self, wanted: Callable[[], bool], after_s: float = JOIN_LINE_S) -> None:
        """Watch over a join for as long as it is wanted."""
        self._agent.call_later(
            after_s - (after_s / 10 if after_s > JOIN_LINE_S else 0), lambda: self._wait(wanted, after_s)
        )

    def _wait(self, wanted: Callable[[], bool], after_s: float) -> None:
        if not wanted():
            return
        late = self._current.late(self._clock.monotonic_s())
        if late is not None and late.operation == "next_rendezvous":
            self._told = late.operation
            fate = "it is waited for until it does, or this agent is told to stop"
            what = f"has not returned after {after_s:g} s: it waits for other nodes, or it hangs"
            self._agent.notice(f"{late.operation} of {self._agent.backend} {what}; {fate}")
        elif late is not None:
            self._tell("no round can be joined before it does")
        self.joining(wanted, after_s * 10)

    def joined(self) -> None:
        """Say that what was told of has returned."""
        told, self._told = self._told, ""
        if told:
            self._agent.notice(f"{told} of {self._agent.backend} has returned")

    def watching(self, wanted: Callable[[], bool], within_s: float) -> None:
        """Watch over `watch` for as long as it is wanted."""

        def look() -> None:
            if wanted():
                self._tell("this node does not notice who comes, nor what is decided")
                self.watching(wanted, within_s)

        self._agent.call_later(within_s + WATCH_LINE_S, look)

    def leaving(self, wanted: Callable[[], bool]) -> None:
        """Watch over what has to return before this node has left."""

        def look() -> None:
            if wanted():
                self._tell("it is left behind")
                self.leaving(wanted)

        self._agent.call_later(LEAVE_LINE_S, look)

    def _tell(self, fate: str) -> None:
        now_s = self._clock.monotonic_s()
        late = self._current.late(now_s)
        if late is not None and self._told != late.operation:
            self._told = late.operation
            self._agent.notice(f"{late.overdue(self._agent.backend, now_s)}; {fate}")
