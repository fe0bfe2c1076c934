"""The rendezvous on a key-value server as a handler: events for an agent of ours, blocking calls for anybody else."""

import threading
from collections import deque
from typing import ClassVar

from elastic_core import messages
from elastic_core.clock import SYSTEM_CLOCK, Clock
from elastic_core.errors import WaitCancelledError
from elastic_core.plugin_faults import PluginLabel, text_of
from elastic_core.rendezvous.handler import NoServices, RendezvousHandler
from elastic_core.rendezvous.loop import AgentSide, Attachable
from elastic_core.rendezvous.member import protocol as m
from elastic_core.rendezvous.member.state import NEVER_S
from elastic_core.rendezvous.shell.driver import HOST_LEAVE_S, LEAVE_S, Driver, DriverRequest, Emitted
from elastic_core.rendezvous.shell.node import Node
from elastic_core.rendezvous.shell.outcome import Changes, error_of, place_of
from elastic_core.rendezvous.shell.rendezvous import MemberRounds
from elastic_core.rendezvous.store import CoordinationStore
from elastic_core.reports import NodeReport, NodeSteps
from elastic_core.types import (
    API_VERSION,
    Capability,
    Decided,
    Failure,
    RendezvousInfo,
    RendezvousSettings,
    Restart,
    RoundChange,
    Stop,
)


class CoordinatedRendezvous(RendezvousHandler, Attachable):
    """Meets other nodes through a `CoordinationStore`, and decides with them for the whole run.

    Threading: a thread of its own talks to the store, from the first join to the leaving, so that the node's lease is
    kept whatever the agent does.
    """

    api_version: ClassVar[int] = API_VERSION
    capabilities: ClassVar[frozenset[Capability]] = frozenset(
        {Capability.CONTROL, Capability.MEMBERSHIP, Capability.EVIDENCE}
    )

    def __init__(self, store: CoordinationStore, settings: RendezvousSettings, *, clock: Clock = SYSTEM_CLOCK) -> None:
        """Keep the store; no connection is made before the first join."""
        super().__init__(settings)
        self._store = store
        self._clock = clock
        self._driver: Driver | None = None
        self._lock = threading.Condition()
        self._places: deque[m.Formed | m.JoinFailed] = deque()
        label = PluginLabel("backend", settings.backend, module=type(store).__module__)
        self._changes = Changes(
            settings.run_id,
            lambda operation, error: label.call_line(operation, f"raised {text_of(error, label.module)}"),
        )

    @property
    def store(self) -> CoordinationStore:
        """Return what it meets others in. While this object is in use, nobody else may call it."""
        return self._store

    def attach(self, agent: AgentSide) -> MemberRounds:
        """Return the rounds as events on an agent's loop."""
        self.services = NoServices()  # for a handler that asks whether there is an agent
        rounds = MemberRounds(self._store, self.settings, agent, clock=self._clock)
        self._driver = rounds.driver
        return rounds

    # --- calls that block, for those who have no loop

    def next_rendezvous(self) -> RendezvousInfo:
        """Block until there is a round with this node in it.

        Raises:
            RendezvousTimeoutError: too few nodes came in time.
            RendezvousConnectionError: the store could not be reached, or refused us.
            RendezvousClosedError: the run is over; its exit code is the error's.
            RendezvousGracefulExitError: the run has enough nodes without this one.
            RendezvousError: the run was begun with other settings, or by another attempt.
        """
        wait = self.wait
        wait.check()
        wait.on_cancel(self._wake)
        with self._lock:
            self._places.clear()
            self._changes.begin()
        self._request(m.JoinAsked(master_port=self.services.reserve_port()))
        with self._lock:
            while not self._places:
                if wait.cancelled:
                    raise WaitCancelledError
                self._changes.check()
                wait.check()
                left_s = wait.remaining_s()
                self._lock.wait(None if left_s == NEVER_S else left_s)
            place = self._places.popleft()
        if isinstance(place, m.JoinFailed):
            raise error_of(place)
        return place_of(place)

    def watch(self, timeout_s: float) -> RoundChange | None:
        """Block until the round or the run is over, at most `timeout_s`."""
        wait = self.wait
        wait.on_cancel(self._wake)
        end_s = self._clock.monotonic_s() + timeout_s
        with self._lock:
            while True:
                if wait.cancelled and not self._changes:
                    raise WaitCancelledError
                change = self._changes.next()
                left_s = wait.remaining_s(end_s - self._clock.monotonic_s())
                if change is not None or left_s <= 0:
                    return change
                self._lock.wait(left_s)

    def publish(self, decision: Restart | Stop, failure: Failure) -> None:
        """Take this agent's decision to all others."""
        self._request(messages.PublishDecision(decision=decision, failure=failure))

    def request_restart(self, reason: str) -> None:
        """Have all nodes start their workers again."""
        self._request(messages.RequestRestart(reason=reason))

    def answer(self, decision: Restart | Stop, failure: Failure, evidence: str, *, question: str = "") -> None:
        """Take what was decided for the whole run to all nodes."""
        self._request(messages.AnswerQuestion(decision=decision, failure=failure, evidence=evidence, question=question))

    def order_stop(self, reason: str, report: NodeReport) -> None:
        """Have all nodes stop their workers."""
        self._changes.awaits = True
        self._request(m.StopRound(reason=reason, report=report))

    def report_stopped(self, report: NodeReport) -> None:
        """Put what this node has seen where the leader reads it."""
        self._request(m.ReportStopped(report=report))

    def ask_steps(self) -> None:
        """Ask all nodes how far their workers are."""
        self._request(m.AskSteps())

    def report_steps(self, steps: NodeSteps) -> None:
        """Put how far this node's workers are where the leader reads it."""
        self._request(m.ReportSteps(steps=steps))

    def report_finishing(self) -> None:
        """Park whoever comes from now on."""
        self._request(m.ReportFinishing())

    def report_done(self) -> None:
        """Say that this node's workers have all ended well."""
        self._request(m.ReportDone())

    def announce_departure(self) -> None:
        """Say that this node will leave; the store that it hosts goes with it, and so does the run."""
        if self._driver is not None:
            self._request(m.AnnounceDeparture())

    def is_closed(self) -> bool:
        """Return whether it is known here that the run is over."""
        control = None if self._driver is None else self._driver.control
        return control is not None and control.verdict is not None

    def set_closed(self) -> None:
        """End the run well for all nodes, unless it was decided already how it ends."""
        if self._driver is None or not self._driver.in_round:
            return
        self._driver.post(m.DecisionPosted(post=self._driver.closing()))
        with self._lock:
            self._lock.wait_for(lambda: self._changes.ended or self.is_closed(), timeout=LEAVE_S)

    def shutdown(self) -> bool:
        """Give the seat back and let the thread end; what a dead store keeps us from doing, its lease does."""
        driver = self._driver
        if driver is None:
            self._store.close()
            return True
        driver.request(m.LeaveRendezvous(close=False))
        if driver.join(HOST_LEAVE_S if self._store.hosting or driver.has_post else LEAVE_S):
            return True
        driver.urge()
        return driver.join(LEAVE_S)

    def pids(self) -> frozenset[int]:
        """Return the processes that the store keeps on this host (a server of its own)."""
        return self._store.pids()

    # --- the driver

    def _request(self, request: DriverRequest) -> None:
        driver = self._driver
        if driver is None:
            driver = self._driver = Driver(
                self._store,
                Node(self._store, self.settings, clock=self._clock),
                emit=self._take,
                ended=self._on_end,
                turned_s=lambda: self.services.ticked_s(),
                clock=self._clock,
            )
        driver.request(request)
        if not driver.started:
            driver.start()

    def _wake(self) -> None:
        with self._lock:
            self._lock.notify_all()

    def _take(self, event: Emitted) -> None:
        """Take what the driver has emitted, on its thread."""
        services = self.services
        match event:
            case m.PrintLine(text=text):
                services.say(text)
            case messages.Fenced(until_s=until_s):
                services.fence(until_s)
            case messages.SeatHeld(store=store, seat=seat):
                services.set_last_act(store, seat)
            case m.DrainOrdered(
                text=text
            ):  # a library's caller has no agent that could be told to end: its round is over
                self._add(Decided(decision=Stop(reason=text)))
            case m.LeftOut() | m.Agreed():
                pass  # who calls has no status that it stands in, and no workers to hold
            case messages.DecisionAsked(reports=reports, history=history, question=question):
                services.decide(reports, history, question=question)
            case m.StepsAsked(serial=serial):
                services.tell_steps(serial)
            case m.StepsSeen(seen=seen):
                services.hear_steps(seen)
            case m.Formed() | m.JoinFailed():
                with self._lock:
                    self._changes.clear()  # they were about the round before
                    self._places.append(event)
                    self._lock.notify_all()
            case m.RoundChanged(change=change):
                self._add(change)

    def _add(self, change: RoundChange) -> None:
        with self._lock:
            self._changes.add(change)
            self._lock.notify_all()

    def _on_end(self, failure: Exception | None) -> None:
        with self._lock:
            self._changes.end(failure)
            self._lock.notify_all()
