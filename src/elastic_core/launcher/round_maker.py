"""Rounds of the places that a rendezvous gives, with the port of rank 0's worker."""

import socket
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, TypeGuard

from elastic_core.agent.feed import Feed
from elastic_core.agent.port import HeldPort, is_this_host
from elastic_core.errors import ElasticError, is_momentary
from elastic_core.logger import Logger
from elastic_core.moments import RanksAssigned
from elastic_core.rendezvous.coordinated import Backend
from elastic_core.rendezvous.rounds import resolve_round
from elastic_core.system.clock import SYSTEM_CLOCK, WaitBudget
from elastic_core.system.reactor import Reactor
from elastic_core.types import RendezvousInfo, RendezvousSettings, Round

if TYPE_CHECKING:
    from elastic_core.hooks.master_server import MasterServers

LOOPBACK: Final = "127.0.0.1"
RESERVE_LIMIT_S: Final = 30.0
RESERVE_PAUSE_S: Final = 0.5
LONGEST_PAUSE_S: Final = 4.0

CallLater = Callable[[float, Callable[[], None]], object]


class RoundPort:
    """The port that this node holds for the worker of rank 0: one for each round. Threading: any."""

    def __init__(self, wanted: int | None, log: Logger) -> None:
        """Hold none yet; `wanted` is the user's choice."""
        self._wanted = wanted
        self._log = log
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
        refusals = _Refusals(self._log)
        while True:
            try:
                return self._renew()
            except ElasticError as err:
                pause_s = refusals.pause_s(err)
                if pause_s is None:
                    raise
            wait.sleep(pause_s)

    def renew_later(self, call_later: CallLater, done: Callable[[int | ElasticError], None]) -> None:
        """Do as `renew` without blocking; `done` is called with the port, or with what `renew` would raise."""
        refusals = _Refusals(self._log)

        def renew() -> None:
            try:
                port = self._renew()
            except ElasticError as err:
                pause_s = refusals.pause_s(err)
                if pause_s is None:
                    done(err)
                else:
                    call_later(pause_s, renew)
                return
            done(port)

        renew()

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


class _Refusals:
    """The pauses between tries of what the system refuses for a moment."""

    def __init__(self, log: Logger) -> None:
        self._log = log
        self._pause_s, self._left_s = RESERVE_PAUSE_S, RESERVE_LIMIT_S

    def pause_s(self, err: ElasticError) -> float | None:
        """Return when to try again; None: not at all."""
        if not is_momentary(err) or self._left_s <= 0:
            return None
        if self._left_s == RESERVE_LIMIT_S:
            self._log.notice(f"{err.what}: trying again for {RESERVE_LIMIT_S:g} s; this costs no restart")
        pause_s = self._pause_s
        self._left_s -= pause_s
        self._pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
        return pause_s


class RoundMaker:
    """Makes rounds, and holds the port of each that a worker of this node will listen on.

    Args:
        reactor: The loop.
        settings: The run's.
        handler: The run's, which may host a store for the workers.
        port: The port of rank 0's worker.
        masters: Servers that hooks host at that port; None: no hook does.
        feed: Takes how long it took to agree on ranks.
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
        """Hold a fresh port, in place of the last one, and call back with it."""

        def shut(error: ElasticError | None) -> None:
            if error is None:
                self._port.renew_later(self._reactor.call_later, done)
            else:
                done(error)

        if self._masters is None:
            shut(None)
        else:
            self._masters.shut(shut)  # or a port that the user chose could not be held again

    def form(self, info: RendezvousInfo, done: Callable[[Round | ElasticError], None]) -> None:
        """Make the round of a place, hold its port if nobody else does, have its store opened, and call back."""

        def make(port: int | ElasticError) -> None:
            if isinstance(port, ElasticError):
                done(port)
                return
            try:
                round_ = self._round(info, lambda: (self._own_address(), port), WaitBudget())
            except ElasticError as err:
                done(err)
                return
            if self._masters is None or round_.node_rank != 0:
                done(round_)
            else:
                self._masters.open(round_.master_port, lambda error: done(round_ if error is None else error))

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
        """Return whether the user chose where this node's rank 0 listens, and no store of the handler's does."""
        if not isinstance(info, RendezvousInfo) or not info.master_addr or not info.master_port or info.rank != 0:
            return False
        # The address may differ: node 0 reaches itself by loopback where the chosen name does not lead to it.
        return self._settings.master_port == info.master_port and not self._handler.use_agent_store

    def _look_up(self, host: str, done: Callable[[bool | None], None]) -> None:
        """Call back with whether it is this host; what asks a name server does so on a thread."""
        here = is_this_host(host, look_up=False)
        if here is not None:
            done(here)
            return

        def ask() -> None:
            found = is_this_host(host)
            self._reactor.post(lambda: done(found))

        try:
            threading.Thread(target=ask, name="master address", daemon=True).start()
        except RuntimeError:  # no thread to be had
            done(False)

    # --- and on another thread, which may block

    def await_port(self, wait: WaitBudget) -> int:
        """Hold a fresh port, in place of the last one, and return it."""
        if self._masters is not None:
            self._masters.await_shut(wait)
        return self._port.renew(wait)

    def resolve(self, info: RendezvousInfo | tuple[object, int, int], wait: WaitBudget) -> Round:
        """Return the round of what a handler gave; its nodes agree on the master's address."""
        if self._masters is not None:
            self._masters.await_shut(wait)
        if self._chosen_for_this_node(info) and is_this_host(info.master_addr or ""):
            self._port.renew(wait)
        round_ = self._round(info, lambda: (self._own_address(), self._port.renew(wait)), wait)
        if self._masters is not None and round_.node_rank == 0:
            self._masters.await_open(round_.master_port, wait)
        return round_

    def _round(
        self,
        info: RendezvousInfo | tuple[object, int, int],
        choose_master: Callable[[], tuple[str, int]],
        wait: WaitBudget,
    ) -> Round:
        began_s = SYSTEM_CLOCK.monotonic_s()
        index = self._next_index
        round_ = resolve_round(
            info, index=index, settings=self._settings, token=index + 1, choose_master=choose_master, wait=wait
        )
        self._next_index = round_.index + 1
        assigned = RanksAssigned(took_s=SYSTEM_CLOCK.monotonic_s() - began_s)
        self._reactor.post(lambda: self._feed.publish(assigned))
        return round_

    def _own_address(self) -> str:
        """Return this node's address for the workers of a round, where its rendezvous gives none."""
        settings = self._settings
        # Among several nodes the others must be able to come here; on one, nobody from outside has any business here.
        own = LOOPBACK if settings.max_nodes == 1 else socket.getfqdn()
        return settings.master_addr or settings.local_addr or own
