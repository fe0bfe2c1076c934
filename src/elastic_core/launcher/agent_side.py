"""The agent's interface for its rendezvous: it passes events to the parts of the run."""

import signal
from typing import TYPE_CHECKING, assert_never

from elastic_core import messages as m
from elastic_core.agent.feed import Feed
from elastic_core.agent.guard.guardian import Guardian
from elastic_core.agent.loop import Agent
from elastic_core.encoding import encode_json
from elastic_core.launcher.round_maker import RoundMaker
from elastic_core.logger import Logger
from elastic_core.moments import StoreReachable
from elastic_core.plugin_faults import Fault, PluginFaults, PluginLabel
from elastic_core.rendezvous.coordinated import Backend, CoordinatedRendezvous
from elastic_core.rendezvous.events import Rendezvous
from elastic_core.rendezvous.local import LocalRendezvous, LocalRounds
from elastic_core.system.reactor import Reactor

if TYPE_CHECKING:
    from elastic_core.rendezvous.blocking import BlockingSide


class RunSide:
    """The interface of a run's agent for its rendezvous."""

    def __init__(
        self,
        reactor: Reactor,
        *,
        agent: Agent,
        guardian: Guardian,
        handler: Backend,
        rounds: RoundMaker,
        backend: PluginLabel,
        faults: PluginFaults,
        feed: Feed,
        log: Logger,
    ) -> None:
        self.post, self.call_later = reactor.post, reactor.call_later
        self.reserve_port, self.form = rounds.reserve_port, rounds.form
        self.await_port, self.resolve = rounds.await_port, rounds.resolve
        self.backend = backend
        self._reactor = reactor
        self._agent = agent
        self._guardian = guardian
        self._handler = handler
        self._faults = faults
        self._log = log
        self._feed = feed

    def turned_s(self) -> float:
        """Return when the loop last turned. Threading: any."""
        return self._reactor.turned_s

    def raised(self, operation: str, error: BaseException, fate: str = "") -> Fault:
        """Keep an exception of a backend's call, and return the line about it, ending with `fate`. Threading: any."""
        fault = self._faults.raised(self.backend, operation, error)
        return fault._replace(text=self.backend.call_line(operation, f"raised {fault.text}{fate}"))

    def take(self, event: m.RendezvousEvent) -> None:
        """Pass an event to the part of the run that handles it."""
        match event:
            case m.RoundFormed() | m.RendezvousFailed() | m.RoundChanged() | m.RendezvousLeft():
                self._agent.dispatch(event)
            case m.PrintLine(text=text, store_reachable=reachable):
                self._log.notice(text)
                if reachable is not None:
                    self._feed.publish(StoreReachable(reachable=reachable, text=text))
            case m.DrainOrdered(text=text, grace_s=grace_s):
                self._log.notice(text)
                self._agent.dispatch(m.StopRequested(signum=signal.SIGTERM, grace_s=grace_s))
            case m.Fenced(until_s=until_s):
                self._guardian.fence(until_s)
            case m.SeatHeld(store=store, seat=seat):
                self._guardian.last_act(store, seat, encode_json(self._handler.settings))
            case m.DecisionAsked(reports=reports, history=history, question=question):
                self._agent.decide_for_run(reports, history, question)
            case m.NodesAsked() | m.AnswersGathered() | m.Concluded() | m.Agreed() | m.LeftOut() | m.StoreCall():
                self._feed.publish(event)
            case _:
                assert_never(event)


def open_rendezvous(handler: Backend, agent: "BlockingSide") -> Rendezvous:
    """Return the rendezvous that passes a handler's events to the agent."""
    if type(handler) is LocalRendezvous:  # a subclass may do more
        return LocalRounds(handler, agent)
    if isinstance(handler, CoordinatedRendezvous):
        return handler.attach(agent)
    from elastic_core.rendezvous.blocking import HandlerThread

    return HandlerThread(handler, agent)
