"""Makes rounds from the places that a rendezvous returns, with the port of rank 0's worker."""

import socket
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, TypeGuard

from elastic_core.agent.feed import Feed
from elastic_core.agent.port import HeldPort, is_this_host
from elastic_core.errors import ElasticError, is_momentary
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

CallLater = Callable[[float, Callable[[], None]], object]


class RoundPort:
    """The port that this node reserves for the worker of rank 0, one for each round. Threading: any."""

    def __init__(self, wanted: int | None, log: Logger) -> None:
        self._wanted = wanted
        self._log = log
        self._lock = threading.Lock()
        self._held: HeldPort | None = None

    def renew(self, wait: WaitBudget) -> int:
        """Release the last round's port, whose workers have ended; reserve and return another one.

        If the system refuses for a moment (a descriptor, for example), it tries again for `RESERVE_LIMIT_S`.

        Raises:
            ConfigError: The port that the user chose is not available.
            RendezvousError: No port is available.
            WaitCancelledError: The agent has cancelled the round.

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
        """Do the same without blocking; `done` receives the port, or the error."""
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
        """Release the port; idempotent."""
        with self._lock:
            self._give_back()

    def _give_back(self) -> None:
        if self._held is not None:
            self._held.close()
            self._held = None


class _Refusals:
    # Pauses between tries, while the system refuses.
    def __init__(self, log: Logger) -> None:
        self._log = log
        self._pause_s, self._left_s = RESERVE_PAUSE_S, RESERVE_LIMIT_S

    def pause_s(self, err: ElasticError) -> float | None:
        # `None` means no further try.
        if not is_momentary(err) or self._left_s <= 0:
            return None
        if self._left_s == RESERVE_LIMIT_S:
            self._log.notice(f"{err.what}: trying again for {RESERVE_LIMIT_S:g} s; this costs no restart")
        pause_s = self._pause_s
        self._left_s -= pause_s
        self._pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
        return pause_s


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
                self._port.renew_later(self._reactor.call_later, done)
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
        if self._masters is not None:
            self._masters.await_shut(wait)
        return self._port.renew(wait)

    def resolve(self, info: RendezvousInfo | tuple[object, int, int], wait: WaitBudget) -> RoundFormed:
        """Return the round of a handler's answer; its nodes agree on the master address."""
        if self._masters is not None:
            self._masters.await_shut(wait)
        if self._chosen_for_this_node(info) and is_this_host(info.master_addr or ""):
            self._port.renew(wait)
        formed = self._round(info, lambda: (self._own_address(), self._port.renew(wait)), wait)
        if self._masters is not None and formed.round.node_rank == 0:
            self._masters.await_open(formed.round.master_port, wait)
        return formed

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
        own = LOOPBACK if settings.max_nodes == 1 else socket.getfqdn()
        return settings.master_addr or settings.local_addr or own
