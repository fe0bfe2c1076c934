"""The rounds of a member as events on its agent's loop."""

from elastic_core import messages as m
from elastic_core.errors import ElasticError, RendezvousConnectionError
from elastic_core.rendezvous.events import AgentSide, Rendezvous
from elastic_core.rendezvous.member.protocol import JoinAsked, JoinFailed
from elastic_core.rendezvous.shell.call_watch import consequence, late_call
from elastic_core.rendezvous.shell.driver import HOST_LEAVE_S, LEAVE_S, Driver, Emitted, PendingCall
from elastic_core.rendezvous.shell.node import MemberNode
from elastic_core.rendezvous.shell.outcome import Changes, error_of
from elastic_core.rendezvous.store import CoordinationStore
from elastic_core.reports import AgentChannel
from elastic_core.system.clock import SYSTEM_CLOCK, Clock
from elastic_core.system.reactor import Timer
from elastic_core.types import RendezvousInfo, RendezvousSettings, RoundChange, RoundEnded

SHORTEST_LOOK_S = 0.1
"""The shortest time between two checks of the current store call, in seconds."""


class MemberRounds(Rendezvous):
    """A member, from its first join until it leaves; its driver's thread is the only thread."""

    control = gathers = takes_requests = stands_aside = True

    def __init__(
        self,
        store: CoordinationStore,
        settings: RendezvousSettings,
        agent: AgentSide,
        *,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        super().__init__(agent)
        self._store = store
        self._changes = Changes(settings.run_id, lambda operation, error: agent.raised(operation, error).text)
        self._watching = self._leaving = self._broken = self._measured = False
        self._clock = clock
        self._lost: PendingCall | None = None
        self._next_look: Timer | None = None
        self.driver = Driver(
            store,
            MemberNode(store, settings, clock=clock),
            emit=lambda event: agent.post(lambda: self._take(event)),
            ended=lambda failure: agent.post(lambda: self._ended(failure)),
            turned_s=agent.turned_s,
            clock=clock,
        )

    def post(self, request: m.RendezvousRequest) -> None:
        """Start a request of the agent."""
        match request:
            case m.JoinRendezvous():
                self._join()
            case m.StandAside():
                self._request(self._renew(), request)
            case m.WatchRound():  # without its delay, which only rendezvous that poll need
                self._watching = True
                self._change()
            case m.CancelRendezvous():
                self._cancel()
            case m.LeaveRendezvous():
                self._go(request)
            case _ if self.driver.started:
                self._changes.awaits = self._changes.awaits or isinstance(request, m.OrderStop)
                self.driver.request(request)
                self._change()
            case _:
                pass  # it is in no round yet

    def _cancel(self) -> None:
        super()._cancel()
        self._watching = False

    def measure_store(self) -> None:
        """Report each store call from now on."""
        self._measured = True

    # --- a round

    def _join(self) -> None:
        join = self._renew()

        def ask(port: int | ElasticError) -> None:
            if isinstance(port, ElasticError):
                self._joined(join, port)
            # Reserving a port can take seconds: meanwhile the agent may have cancelled this join and begun another.
            elif join == self._joins:
                self._request(join, JoinAsked(master_port=port))

        self._agent.reserve_port(ask)

    def _renew(self) -> int:
        self._cancel()
        self._changes.begin()
        return self._begin()

    def _request(self, join: int, request: JoinAsked | m.StandAside) -> None:
        self.driver.request(request)
        if self._changes.ended:
            self._joined(join, self._changes.error())
        elif not self.driver.started:
            self.driver.start(measured=self._measured)
            self._look_later()

    def _take(self, event: Emitted) -> None:
        """Process an announcement of the driver."""
        match event:
            case RendezvousInfo():
                self._changes.clear()  # they were about the previous round
                if self._joining:
                    join = self._joins
                    self._agent.form(event, lambda outcome: self._joined(join, outcome))
            case JoinFailed():
                if self._joining:
                    self._joined(self._joins, error_of(event), event.decided)
            case m.RoundChanged(change=change):
                self._changes.add(change)
                self._change()
            case _:
                self._agent.take(event)
                if isinstance(event, m.Fenced):
                    self._look_later()

    def _change(self) -> None:
        """Report the next change if the agent waits for one."""
        if not self._watching or self._left:
            return
        change: RoundChange | None
        try:
            change = self._changes.next()
        except ElasticError as err:
            # The driver's thread ended with an error, which is permanent: the round is reported as lost once.
            if self._broken:
                return
            self._broken = True
            change = RoundEnded(reason=str(err))  # the lease is no longer renewed
        if change is not None:
            self._watching = False
            self._agent.take(m.RoundChanged(change=change))

    @property
    def channel(self) -> AgentChannel | None:
        """The secret and port by which the agents of the run reach each other."""
        return self.driver.channel

    def close_run(self) -> None:
        """End the run successfully for all nodes, unless its end was decided already; this node stays."""
        if self.driver.in_round:
            self.driver.close_run()

    # --- a store that does not return

    def _look_later(self) -> None:
        # Also shows the driver that the loop runs; while the lease is renewed, moved fences show that, and come first.
        # It is in time for the cut, and then frequent.
        if self._next_look is not None:
            self._next_look.cancel()
        left_s, ttl_s = self.driver.stops_s[0] - self._clock.monotonic_s(), self.driver.ttl_s
        self._next_look = self._agent.call_later(max(SHORTEST_LOOK_S, ttl_s / 6, min(left_s, 0.4 * ttl_s)), self._look)

    def _look(self) -> None:
        """Check the current store call at intervals until the member has left."""
        if self._left or self._changes.ended:
            return
        now_s = self._clock.monotonic_s()
        late = late_call(self.driver, now_s)
        if late is not None:
            self._end_for(late, now_s)
        self._look_later()

    def _end_for(self, late: PendingCall, now_s: float) -> None:
        """End the round or the join if the late call requires it; if the call returns, the thread continues."""
        joining, awaits = self._joining, self._changes.awaits and not self._joining
        end = consequence(late, self.driver, self._agent.backend, joining=joining, awaits=awaits, now_s=now_s)
        if isinstance(end, RendezvousConnectionError):
            self._joined(self._joins, end)
        elif end is not None and late != self._lost:  # each round is lost once
            self._lost = late
            self._changes.add(end)
            self._change()

    # --- the end

    def _go(self, request: m.LeaveRendezvous) -> None:
        """Give the seat back and end the thread; if the store does not respond, the lease ends on its own."""
        self._cancel()
        self._leaving = True
        if not self.driver.started:
            self._store.close()
        # The agent was stopped before its first join, or the driver failed: no thread would process the request.
        if not self.driver.started or self._changes.ended:
            self._leave()
            return
        self.driver.request(request)
        limit_s = HOST_LEAVE_S if self._store.hosting or self.driver.has_post else LEAVE_S
        self._agent.call_later(limit_s, self.driver.urge)
        self._agent.call_later(limit_s + LEAVE_S, self._leave)  # even if the driver has not ended

    def _ended(self, failure: Exception | None) -> None:
        """Process the end of the driver."""
        self._changes.end(failure)
        if self._leaving:
            self._leave()
        elif self._joining:
            self._joined(self._joins, self._changes.error())
        else:
            self._change()
