"""The one stopwatch of an agent: which phases it goes through, and how long each took, read off its states."""

from collections.abc import Iterator

from elastic_core.agent.machine import states as s
from elastic_core.reports import Phase


class Phases:
    """The phases of an agent: `rendezvous`, `start`, `stop`, `initialize` (the first two) and `restart`.

    Threading: one thread.
    """

    def __init__(self) -> None:
        self._state: type[s.AgentState] = s.Created
        self._since_s = 0.0
        self._joined_s: float | None = None
        self._formed_s: float | None = None
        self._restart_s: float | None = None
        self.rendezvous_s = 0.0
        """How long the last rendezvous took."""
        self.formed_s = 0.0
        """When the last round was formed, on the clock of whoever calls `enter`."""
        self.stop_s: float | None = None
        """How long the workers of this round took to stop; None: they have not."""

    def enter(self, state: s.AgentState, at_s: float) -> Iterator[Phase]:
        """Take a state of another type than the last; yield what has ended by it."""
        before, self._state = self._state, type(state)
        took_s = at_s - self._since_s
        self._since_s = at_s
        if before is s.Joining:
            formed = isinstance(state, (s.Preparing, s.Starting, s.Running))
            self._formed_s = at_s if formed else None
            if formed:
                self.rendezvous_s, self.formed_s, self.stop_s = took_s, at_s, None
            yield Phase(name="rendezvous", took_s=took_s, well=formed)
        elif before is s.Stopping:
            self.stop_s = took_s
            yield Phase(name="stop", took_s=took_s, well=True)
        if isinstance(state, s.Joining):
            self._joined_s = at_s
        elif isinstance(state, s.Stopping) and not isinstance(state.then, s.End):
            self._restart_s = at_s
        elif isinstance(state, s.Running):
            yield from self._running(at_s, well=True)
        elif not isinstance(state, (s.Preparing, s.Starting, s.Gating, s.Waiting, s.Awaiting)):
            yield from self._running(at_s, well=False)

    def _running(self, at_s: float, *, well: bool) -> Iterator[Phase]:
        """End what leads to running workers, if any of it was begun."""
        for name, since_s in (("start", self._formed_s), ("initialize", self._joined_s), ("restart", self._restart_s)):
            if since_s is not None:
                yield Phase(name=name, took_s=at_s - since_s, well=well)
        self._formed_s = self._joined_s = self._restart_s = None
