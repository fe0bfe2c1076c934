"""What the agent does for its rendezvous handler, whatever thread asks; and the port of rank 0's worker."""

import threading
from collections.abc import Callable, Sequence
from typing import Final, Protocol

from elastic_core.agent.guard.guardian import Guardian
from elastic_core.agent.port import HeldPort
from elastic_core.clock import WaitBudget
from elastic_core.encoding import encode_json
from elastic_core.errors import ElasticError, is_momentary
from elastic_core.reactor import Reactor
from elastic_core.rendezvous.handler import NoServices
from elastic_core.types import Failure, NodeReport, RendezvousSettings, RunSteps

RESERVE_LIMIT_S: Final = 30.0
RESERVE_PAUSE_S: Final = 0.5
LONGEST_PAUSE_S: Final = 4.0


class RoundPort:
    """The port that this node holds for the worker of rank 0: one for each round. Threading: any."""

    def __init__(self, wanted: int | None) -> None:
        """Hold none yet; `wanted` is the user's choice."""
        self._wanted = wanted
        self.notice: Callable[[str], None] = lambda text: None
        """Takes one line for people. Threading: whose that renews the port."""
        self._lock = threading.Lock()
        self._held: HeldPort | None = None

    def renew(self, wait: WaitBudget) -> int:
        """Give the last round's port back, whose workers are gone, hold a fresh one and return it.

        What the system refuses for a moment (a descriptor, most often) is tried again for `RESERVE_LIMIT_S`.

        Raises:
            ConfigError: the one that the user chose can't be had.
            RendezvousError: none can be had.
            WaitCancelledError: the agent wants no round any more.

        Threading: blocks while the system refuses.
        """
        pause_s, left_s = RESERVE_PAUSE_S, RESERVE_LIMIT_S
        while True:
            try:
                return self._renew()
            except ElasticError as err:
                if not is_momentary(err) or left_s <= 0:
                    raise
                if pause_s == RESERVE_PAUSE_S:
                    self.notice(f"{err.what}: trying again for {RESERVE_LIMIT_S:g} s; this costs no restart")
            wait.sleep(pause_s)
            left_s -= pause_s
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S)

    def _renew(self) -> int:
        with self._lock:
            self._give_back()
            self._held = HeldPort.reserve() if self._wanted is None else HeldPort.hold(self._wanted)
            return self._held.port

    def close(self) -> None:
        """Give it back; idempotent."""
        with self._lock:
            self._give_back()

    def _give_back(self) -> None:
        if self._held is not None:
            self._held.close()
            self._held = None


class _Agent(Protocol):
    @property
    def turned_s(self) -> float: ...

    def decide_for_run(self, reports: Sequence[NodeReport], history: Sequence[Failure], question: str) -> None: ...


class _Watch(Protocol):
    def tell_steps(self, serial: int) -> None: ...

    def hear_steps(self, seen: RunSteps) -> None: ...


class Services:
    """Hands what a handler asks for to those who can do it, on their thread."""

    def __init__(
        self,
        reactor: Reactor,
        *,
        agent: _Agent,
        guardian: Guardian,
        settings: RendezvousSettings,
        reserve_port: Callable[[], int],
        notice: Callable[[str], None],
        watch: _Watch | None = None,
        said: Callable[[str], None] = lambda text: None,
    ) -> None:
        """Serve a handler that was built with `settings`; `said` hears of its lines, too."""
        self._reactor = reactor
        self._agent = agent
        self._guardian = guardian
        self._settings = settings
        self._reserve_port = reserve_port
        self._notice = notice
        self._watch: _Watch = watch or NoServices()
        self._said = said

    def reserve_port(self) -> int:
        """Hold a fresh port for the worker of rank 0, in place of the last one, and return it."""
        return self._reserve_port()

    def say(self, text: str) -> None:
        """Show people one line."""

        def show() -> None:
            self._notice(text)
            self._said(text)

        self._reactor.post(show)

    def ticked_s(self) -> float:
        """Return when the agent's loop last turned, and have it turn again."""
        turned_s = self._agent.turned_s
        self._reactor.post(_nothing)
        return turned_s

    def fence(self, until_s: float) -> None:
        """Have the guard kill the workers at this time, unless there is a later word."""
        self._reactor.post(lambda: self._guardian.fence(until_s))

    def set_last_act(self, store: str, seat: bytes) -> None:
        """Leave with the guard how to give the seat back when the agent has died."""
        self._reactor.post(lambda: self._guardian.last_act(store, seat, encode_json(self._settings)))

    def decide(self, reports: Sequence[NodeReport], history: Sequence[Failure], *, question: str = "") -> None:
        """Have the failure policy decide for the whole run; what it says comes through the handler's `answer`."""
        self._reactor.post(lambda: self._agent.decide_for_run(reports, history, question))

    def tell_steps(self, serial: int) -> None:
        """Have this node say how far its workers are."""
        self._reactor.post(lambda: self._watch.tell_steps(serial))

    def hear_steps(self, seen: RunSteps) -> None:
        """Have the watch over the workers know how far those of other nodes are."""
        self._reactor.post(lambda: self._watch.hear_steps(seen))


def _nothing() -> None:
    """Make the loop turn."""
