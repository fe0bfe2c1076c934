"""The agent's side of its rendezvous: where its events go, and the place of rank 0's worker."""

import signal
import socket
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, TypeGuard, assert_never

from elastic_core import messages as m
from elastic_core.agent.guard.guardian import Guardian
from elastic_core.agent.loop import Agent
from elastic_core.agent.port import HeldPort, is_this_host
from elastic_core.clock import SYSTEM_CLOCK, WaitBudget
from elastic_core.encoding import encode_json
from elastic_core.errors import ElasticError, is_momentary
from elastic_core.logger import Logger
from elastic_core.moments import StepsAsked, StepsSeen, StoreReachable
from elastic_core.plugin_faults import Fault, PluginFaults, PluginLabel
from elastic_core.reactor import Reactor
from elastic_core.rendezvous.coordinated import Backend, CoordinatedRendezvous
from elastic_core.rendezvous.events import Rendezvous
from elastic_core.rendezvous.local import LocalRendezvous, LocalRounds
from elastic_core.rendezvous.rounds import resolve_round
from elastic_core.types import RendezvousInfo, RendezvousSettings, Round

if TYPE_CHECKING:
    from elastic_core.hooks.master_server import MasterServers
    from elastic_core.rendezvous.blocking import BlockingSide

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


class RunSide:
    """The agent of a run, as its rendezvous has it.

    Args:
        reactor: The loop.
        agent: Returns the agent, which is built later.
        guardian: Keeps the workers' last resorts.
        handler: The handler, whose settings say how to give its seat back.
        settings: The run's.
        port: The port of rank 0's worker.
        masters: Servers that hooks host at that port; None: no hook does.
        log: Takes lines for people.
        backend: What the handler is called.
        faults: Keeps what it raises.
        publish: Takes what is known of the store, and what nodes ask each other about steps.
        assigned: Takes how long it took to agree on ranks. Threading: any.
    """

    def __init__(
        self,
        reactor: Reactor,
        *,
        agent: Callable[[], Agent],
        guardian: Guardian,
        handler: Backend,
        settings: RendezvousSettings,
        port: RoundPort,
        masters: "MasterServers | None",
        log: Logger,
        backend: PluginLabel,
        faults: PluginFaults,
        publish: Callable[[StoreReachable | StepsAsked | StepsSeen | m.Agreed | m.LeftOut], None] = lambda what: None,
        assigned: Callable[[float], None] = lambda took_s: None,
    ) -> None:
        self.post = reactor.post
        self.call_later = reactor.call_later
        self.notice = log.notice
        self._agent = agent
        self._guardian = guardian
        self._handler = handler
        self._settings = settings
        self._port = port
        self._masters = masters
        self.backend = backend
        self._faults = faults
        self._publish = publish
        self._assigned = assigned
        self._next_index = 0

    def turned_s(self) -> float:
        """Return when the loop last turned, and have it turn again. Threading: any."""
        turned_s = self._agent().turned_s
        self.post(lambda: None)
        return turned_s

    def raised(self, operation: str, error: BaseException, fate: str = "") -> Fault:
        """Keep what the backend raised in a call, and return the line about it, with what follows. Threading: any."""
        fault = self._faults.raised(self.backend, operation, error)
        return fault._replace(text=self.backend.call_line(operation, f"raised {fault.text}{fate}"))

    def take(self, event: m.RendezvousEvent) -> None:
        """Bring an event to whom it is for."""
        match event:
            case m.RoundFormed() | m.RendezvousFailed() | m.RoundChanged() | m.RendezvousLeft():
                self._agent().dispatch(event)
            case m.PrintLine(text=text, store_reachable=reachable):
                self.notice(text)
                if reachable is not None:
                    self._publish(StoreReachable(reachable=reachable, text=text))
            case m.DrainOrdered(text=text, grace_s=grace_s):
                self.notice(text)
                self._agent().dispatch(m.StopRequested(signum=signal.SIGTERM, grace_s=grace_s))
            case m.Fenced(until_s=until_s):
                self._guardian.fence(until_s)
            case m.SeatHeld(store=store, seat=seat):
                self._guardian.last_act(store, seat, encode_json(self._handler.settings))
            case m.DecisionAsked(reports=reports, history=history, question=question):
                self._agent().decide_for_run(reports, history, question)
            case m.StepsAsked() | m.StepsSeen() | m.Agreed() | m.LeftOut():
                self._publish(event)
            case _:
                assert_never(event)

    # --- the place of rank 0's worker: on the loop

    def reserve_port(self, done: Callable[[int | ElasticError], None]) -> None:
        """Hold a fresh port, in place of the last one, and call back with it."""

        def shut(error: ElasticError | None) -> None:
            if error is None:
                self._port.renew_later(self.call_later, done)
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
            self.post(lambda: done(found))

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
        self._assigned(SYSTEM_CLOCK.monotonic_s() - began_s)
        return round_

    def _own_address(self) -> str:
        """Return this node's address for the workers of a round, where its rendezvous gives none."""
        settings = self._settings
        # Among several nodes the others must be able to come here; on one, nobody from outside has any business here.
        own = LOOPBACK if settings.max_nodes == 1 else socket.getfqdn()
        return settings.master_addr or settings.local_addr or own


def open_rendezvous(handler: Backend, agent: "BlockingSide") -> Rendezvous:
    """Return what posts a handler's events to the agent.

    Args:
        handler: The core's own, or its authors'.
        agent: Takes the events.
    """
    if type(handler) is LocalRendezvous:  # a class that is built on it may do more
        return LocalRounds(handler, agent)
    if isinstance(handler, CoordinatedRendezvous):
        return handler.attach(agent)
    from elastic_core.rendezvous.blocking import HandlerThread

    return HandlerThread(handler, agent)
