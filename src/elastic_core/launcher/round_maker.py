"""Makes rounds from the places that a rendezvous returns, with the port of rank 0's worker."""

import threading
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Final, TypeGuard, TypeVar

from elastic_core.agent.feed import Feed
from elastic_core.agent.port import HeldPort, is_this_host
from elastic_core.errors import BackendUnavailableError, ElasticError, is_momentary
from elastic_core.logger import Logger
from elastic_core.messages import RoundFormed
from elastic_core.moments import RanksAssigned
from elastic_core.rendezvous.coordinated import Backend
from elastic_core.rendezvous.events import JoinOutcome
from elastic_core.rendezvous.rounds import resolve_round
from elastic_core.system.clock import SYSTEM_CLOCK, WaitBudget
from elastic_core.system.reactor import Reactor
from elastic_core.types import RendezvousInfo, RendezvousSettings

if TYPE_CHECKING:
    from elastic_core.hooks.master_server import MasterServers

LOOPBACK: Final = "127.0.0.1"
RESERVE_LIMIT_S: Final = 30.0
RESERVE_PAUSE_S: Final = 0.5
LONGEST_PAUSE_S: Final = 4.0
LOOP_LIMIT_S: Final = 600.0
"""Seconds that a handler's thread waits for the loop: twice as long as a server of a hook may take to listen."""

_T = TypeVar("_T")

CallLater = Callable[[float, Callable[[], None]], object]


class RoundPort:
    """The port that this node reserves for the worker of rank 0, one for each round. Threading: the loop's."""

    def __init__(self, wanted: int | None, log: Logger) -> None:
        self._wanted = wanted
        self._log = log
        self._held: HeldPort | None = None
        self._requests = 0

    def renew(self, call_later: CallLater, done: Callable[[int | ElasticError], None]) -> None:
        """Release the last round's port, whose workers have ended; call `done` with another one, or with the error.

        If the system refuses for a moment (a descriptor, for example), it tries again for `RESERVE_LIMIT_S`, unless
        another request has begun: then `done` is not called.
        """
        self._requests += 1
        request = self._requests

        def reserve(pause_s: float, left_s: float) -> None:
            if request != self._requests:
                return
            self.close()
            try:
                self._held = HeldPort.reserve() if self._wanted is None else HeldPort.hold(self._wanted)
            except ElasticError as err:
                if not is_momentary(err) or left_s <= 0:
                    done(err)
                    return
                if left_s == RESERVE_LIMIT_S:
                    self._log.notice(f"{err.what}: trying again for {left_s:g} s; this costs no restart")
                call_later(pause_s, lambda: reserve(min(2 * pause_s, LONGEST_PAUSE_S), left_s - pause_s))
                return
            done(self._held.port)

        reserve(RESERVE_PAUSE_S, RESERVE_LIMIT_S)

    def close(self) -> None:
        """Release the port; idempotent."""
        if self._held is not None:
            self._held.close()
            self._held = None


class RoundMaker:
    """Makes rounds, and reserves the port of each on which a worker of this node will listen.

    `handler` may host a store for the workers; `masters` are servers that hooks host at `port`. `feed` publishes how
    long the agreement on ranks took.
    """

    def __init__(
        self,
        reactor: Reactor,
        settings: RendezvousSettings,
        *,
        handler: Backend,
        port: RoundPort,
        masters: "MasterServers | None",
        feed: Feed,
    ) -> None:
        self._reactor = reactor
        self._settings = settings
        self._handler = handler
        self._port = port
        self._masters = masters
        self._feed = feed
        self._next_index = 0

    # --- on the loop

    def reserve_port(self, done: Callable[[int | ElasticError], None]) -> None:
        """Reserve another port instead of the last one, and call back with it."""

        def shut(error: ElasticError | None) -> None:
            if error is None:
                self._port.renew(self._reactor.call_later, done)
            else:
                done(error)

        if self._masters is None:
            shut(None)
        else:
            self._masters.shut(shut)  # if not, a port that the user chose would still be in use

    def form(self, info: RendezvousInfo, done: Callable[[JoinOutcome], None]) -> None:
        """Make the round of a place, reserve its port if needed, open its store, and call back."""

        def make(port: int | ElasticError) -> None:
            if isinstance(port, ElasticError):
                done(port)
                return
            try:
                formed = self._round(info, lambda: (self._own_address(), port), WaitBudget())
            except ElasticError as err:
                done(err)
                return
            if self._masters is None or formed.round.node_rank != 0:
                done(formed)
            else:
                self._masters.open(formed.round.master_port, lambda error: done(formed if error is None else error))

        def listens_here(here: bool | None) -> None:
            if here:
                self.reserve_port(make)
            else:
                make(0)

        if not (info.master_addr and info.master_port):
            self.reserve_port(make)
        elif not self._chosen_for_this_node(info):
            make(0)
        else:
            self._look_up(info.master_addr, listens_here)

    def _chosen_for_this_node(self, info: RendezvousInfo | tuple[object, int, int]) -> TypeGuard[RendezvousInfo]:
        # True if the user chose rank 0's address on this node, and no store of the handler listens there.
        if not isinstance(info, RendezvousInfo) or not info.master_addr or not info.master_port or info.rank != 0:
            return False
        # The address may differ: node 0 uses loopback if the chosen name does not lead to itself.
        return self._settings.master_port == info.master_port and not self._handler.use_agent_store

    def _look_up(self, host: str, done: Callable[[bool | None], None]) -> None:
        # Whether the host is this one. A name server is queried on a thread.
        here = is_this_host(host, look_up=False)
        if here is not None:
            done(here)
            return

        def ask() -> None:
            found = is_this_host(host)
            self._reactor.post(lambda: done(found))

        try:
            threading.Thread(target=ask, name="master address", daemon=True).start()
        except RuntimeError:  # no thread available
            done(False)

    # --- on another thread, which may block

    def await_port(self, wait: WaitBudget) -> int:
        """Reserve another port instead of the last one, and return it."""
        return self._awaited(self.reserve_port, wait)

    def resolve(self, info: RendezvousInfo | tuple[object, int, int], wait: WaitBudget) -> RoundFormed:
        """Return the round of a handler's answer; its nodes agree on the master address."""
        masters = self._masters
        if masters is not None:
            self._awaited(masters.shut, wait)
        if self._chosen_for_this_node(info) and is_this_host(info.master_addr or ""):
            self.await_port(wait)
        formed = self._round(info, lambda: (self._own_address(), self.await_port(wait)), wait)
        if masters is not None and formed.round.node_rank == 0:
            self._awaited(partial(masters.open, formed.round.master_port), wait)
        return formed

    def _awaited(self, ask: Callable[[Callable[[_T | ElasticError], None]], None], wait: WaitBudget) -> _T:
        # Has the loop call `ask`, and returns its answer, or raises it. WaitBudget's errors are raised too.
        over = threading.Event()
        answers: list[_T | ElasticError] = []

        def done(answer: _T | ElasticError) -> None:
            answers.append(answer)
            over.set()

        self._reactor.post(lambda: ask(done))
        wait.on_cancel(over.set)
        over.wait(wait.remaining_s(at_most_s=LOOP_LIMIT_S))
        if not answers:
            wait.check()
            raise BackendUnavailableError(f"the agent's loop has not answered within {LOOP_LIMIT_S:g} s")
        if isinstance(answers[0], ElasticError):
            raise answers[0]
        return answers[0]

    def _round(
        self,
        info: RendezvousInfo | tuple[object, int, int],
        choose_master: Callable[[], tuple[str, int]],
        wait: WaitBudget,
    ) -> RoundFormed:
        began_s = SYSTEM_CLOCK.monotonic_s()
        index = self._next_index
        round_ = resolve_round(
            info, index=index, settings=self._settings, token=index + 1, choose_master=choose_master, wait=wait
        )
        self._next_index = round_.index + 1
        assigned = RanksAssigned(took_s=SYSTEM_CLOCK.monotonic_s() - began_s)
        self._reactor.post(lambda: self._feed.publish(assigned))
        return RoundFormed(round=round_, members=tuple(getattr(info, "members", ())))

    def _own_address(self) -> str:
        # This node's address for workers, if its rendezvous provides none.
        settings = self._settings
        # Other nodes must be able to connect; a single node needs no connections from outside.
        own = settings.master_addr or settings.local_addr
        if own or settings.max_nodes == 1:
            return own or LOOPBACK
        from socket import getfqdn  # a millisecond of a start, for several nodes only

        return getfqdn()
