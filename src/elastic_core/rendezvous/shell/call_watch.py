"""The watch over the calls of a member's store, from the agent's loop: the thread that makes them may hang in one."""

from typing import Final, Protocol

from elastic_core.clock import Clock
from elastic_core.errors import RendezvousConnectionError
from elastic_core.plugin_faults import CallUnderWay
from elastic_core.rendezvous.loop import AgentSide
from elastic_core.rendezvous.shell.driver import Driver
from elastic_core.types import RoundEnded, Undecided

SHORTEST_PERIOD_S: Final = 0.1
LINE_AFTER_S: Final = 10.0
"""How far past its wait a call is told of, at the latest; half a lease past it where that is sooner."""
MOMENT_S: Final = 1.0
"""How far past its wait nothing is made of it: a node may be busy."""


class Watched(Protocol):
    """The rounds that depend on the calls."""

    @property
    def over(self) -> bool:
        """Whether nothing more is asked of the store."""
        ...

    @property
    def joining(self) -> bool:
        """Whether the agent waits for a round."""
        ...

    @property
    def awaits(self) -> bool:
        """Whether the round was stopped, and what the run decides is waited for."""
        ...

    def lose(self, change: RoundEnded | Undecided) -> None:
        """End the round."""
        ...

    def give_up(self, error: RendezvousConnectionError) -> None:
        """End the join."""
        ...


class CallWatch:
    """Looks at the call that is under way, from time to time, as long as the member lives.

    A call that is late is told of once, and its return. With workers the round ends when the lease can't be kept any
    more; a join is given up after the connect timeout. The thread can't be helped: should the call return, it goes on.

    Threading: the agent's loop.
    """

    def __init__(self, driver: Driver, agent: AgentSide, rounds: Watched, *, clock: Clock) -> None:
        """Begin to watch."""
        self._driver = driver
        self._agent = agent
        self._rounds = rounds
        self._clock = clock
        self._period_s = max(SHORTEST_PERIOD_S, driver.ttl_s / 6)
        self._told: CallUnderWay | None = None
        self._lost: CallUnderWay | None = None
        agent.call_later(self._period_s, self._look)

    def overdue(self) -> str:
        """Return in words which call hangs; empty: none."""
        now_s = self._clock.monotonic_s()
        late = self._driver.calls.late(now_s)
        return "" if late is None else late.overdue(self._agent.backend, now_s)

    def _look(self) -> None:
        if self._rounds.over:
            return
        now_s = self._clock.monotonic_s()
        late = self._driver.calls.late(now_s)
        if self._told is not None and (late is None or late.began_s != self._told.began_s):
            took_s = now_s - self._told.began_s
            self._agent.notice(f"{self._told.operation} of {self._agent.backend} has returned, after {took_s:.1f} s")
            self._told = None
        if late is not None and now_s - late.due_s >= min(MOMENT_S, self._driver.ttl_s / 6):
            self._take(late, now_s)
        self._agent.call_later(self._period_s, self._look)

    def _take(self, late: CallUnderWay, now_s: float) -> None:
        """Do what follows from a call that is late."""
        text = late.overdue(self._agent.backend, now_s)
        cut_s, fence_s = self._driver.stops_s
        gives_up_s = self._gives_up_s(late)
        if now_s >= cut_s and self._lost is None and not self._rounds.joining:
            self._lost = self._told = late
            why = f"{text}, and this node's lease can't be kept without it"
            within_s = max(0.0, fence_s - now_s)
            self._rounds.lose(RoundEnded(reason=why, lost=(self._driver.node,), stop_within_s=within_s))
        elif self._rounds.awaits and now_s >= gives_up_s:
            self._rounds.lose(Undecided(reason=text, final=True))
        elif self._rounds.joining and now_s >= gives_up_s:
            what = f"{text}: given up after {self._driver.connect_timeout_s:g} s (--connect-timeout)"
            self._rounds.give_up(RendezvousConnectionError(what, hint=self._agent.backend.hint))
        elif self._told is None and now_s - late.due_s >= min(LINE_AFTER_S, self._driver.ttl_s / 2):
            self._told = late
            fate = f"it is given up in {gives_up_s - now_s:.0f} s (--connect-timeout)"
            lease = "workers run for as long as this node's lease allows"
            self._agent.notice(f"{text}; {fate if self._rounds.joining else lease}")

    def _gives_up_s(self, late: CallUnderWay) -> float:
        """Return when a join no longer waits for a call."""
        first_s = self._driver.first_contact_s
        began_s = late.began_s if first_s is None else first_s
        return max(late.due_s + MOMENT_S, began_s + self._driver.connect_timeout_s)
