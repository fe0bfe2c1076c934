"""The rendezvous on a key-value server: what the agent calls, on top of the membership machine and its driver."""

import os
import threading
from collections import deque
from typing import ClassVar

from msgspec.structs import replace

from elastic_core.clock import SYSTEM_CLOCK, Clock, WaitBudget
from elastic_core.errors import (
    ElasticError,
    RendezvousClosedError,
    RendezvousConnectionError,
    RendezvousError,
    RendezvousGracefulExitError,
    RendezvousStateError,
    RendezvousTimeoutError,
    WaitCancelledError,
)
from elastic_core.rendezvous.coordinated_options import (
    DEFAULT_CONNECT_TIMEOUT_S,
    DEFAULT_JOIN_TIMEOUT_S,
    DEFAULT_LEASE_TTL_S,
)
from elastic_core.rendezvous.handler import RendezvousHandler
from elastic_core.rendezvous.identity import default_node_id
from elastic_core.rendezvous.member import protocol as m
from elastic_core.rendezvous.member.documents import EVIDENCE_BYTES, RUN_EVIDENCE_BYTES, Ending, Verdict
from elastic_core.rendezvous.member.driver import Driver
from elastic_core.rendezvous.member.roster import Candidate
from elastic_core.rendezvous.member.state import NEVER_S, Me, State
from elastic_core.rendezvous.net.address import LOOPBACK, full_name, host_identity, is_loopback, route_source
from elastic_core.rendezvous.store import CoordinationStore
from elastic_core.types import (
    API_VERSION,
    Capability,
    Failure,
    FailureClass,
    NodeReport,
    NodeSteps,
    RendezvousInfo,
    RendezvousSettings,
    Restart,
    RosterMember,
    RoundChange,
    Stop,
    StopOrdered,
    Undecided,
)

FIRST_CALL_S = 30.0
LAST_CALL_S = 2.0
_OUTSIDE = "192.0.2.1"
"""An address of nobody, for the kernel to say which way out it would take."""
MESSAGE_CHARS = 4_096
"""How much of a failure's message a node tells the others, besides its evidence."""
_LEAVE_S = 0.7
_HOST_LEAVE_S = 2.2
"""A node that hosts the store waits for the others to read how the run ended."""


class CoordinatedRendezvous(RendezvousHandler):
    """Meets other nodes through a `CoordinationStore`, and decides with them for the whole run.

    Threading: a thread of its own talks to the store, from the first `next_rendezvous` to `shutdown`, so that the
    node's lease is kept whatever the agent does.
    """

    api_version: ClassVar[int] = API_VERSION
    capabilities: ClassVar[frozenset[Capability]] = frozenset(
        {Capability.CONTROL, Capability.MEMBERSHIP, Capability.EVIDENCE}
    )

    def __init__(self, store: CoordinationStore, settings: RendezvousSettings, *, clock: Clock = SYSTEM_CLOCK) -> None:
        """Keep the store; no connection is made before the first `next_rendezvous`."""
        super().__init__(settings)
        self._store = store
        self._clock = clock
        self._driver: Driver | None = None
        self._lock = threading.Condition()
        self._places: deque[m.Formed | m.JoinFailed] = deque()
        self._changes: deque[RoundChange] = deque()
        self._awaits = False
        self._on_loopback = False
        self._ended = False
        self._failure: Exception | None = None

    @property
    def store(self) -> CoordinationStore:
        """Return what it meets others in. While this object is in use, nobody else may call it."""
        return self._store

    # --- what the agent calls

    def next_rendezvous(self) -> RendezvousInfo:
        """Block until there is a round with this node in it.

        Raises:
            RendezvousTimeoutError: too few nodes came in time.
            RendezvousConnectionError: the store could not be reached, or refused us.
            RendezvousClosedError: the run is over; its exit code is the error's.
            RendezvousGracefulExitError: the run has enough nodes without this one.
            RendezvousError: the run was begun with other settings, or by another attempt.
        """
        self.wait.check()
        wait = self.wait
        wait.on_cancel(self._wake)
        with self._lock:
            self._places.clear()
            self._changes.clear()
            self._awaits = False
        port = self.services.reserve_port()
        self._tell(m.JoinAsked(master_port=port))
        with self._lock:
            while not self._places:
                if wait.cancelled:
                    raise WaitCancelledError
                self._check_driver()
                wait.check()
                left_s = wait.remaining_s()
                self._lock.wait(None if left_s == NEVER_S else left_s)
            place = self._places.popleft()
        if isinstance(place, m.JoinFailed):
            raise _error(place)
        return _info(place)

    def watch(self, timeout_s: float) -> RoundChange | None:
        """Block until the round or the run is over, at most `timeout_s`."""
        wait = self.wait
        wait.on_cancel(self._wake)
        end_s = self._clock.monotonic_s() + timeout_s
        with self._lock:
            while not self._changes:
                if wait.cancelled:
                    raise WaitCancelledError
                if self._ended and self._awaits:
                    self._awaits = False
                    return Undecided(reason=f"this node no longer hears of run {self.settings.run_id!r}", final=True)
                self._check_driver()
                left_s = wait.remaining_s(end_s - self._clock.monotonic_s())
                if left_s <= 0:
                    return None
                self._lock.wait(left_s)
            change = self._changes.popleft()
            self._awaits = isinstance(change, StopOrdered)
            return change

    def publish(self, decision: Restart | Stop, failure: Failure) -> None:
        """Take this agent's decision to all others."""
        self._tell(m.DecisionPosted(post=_post(decision, failure)))

    def request_restart(self, reason: str) -> None:
        """Have all nodes start their workers again."""
        node = self.settings.node_id if self._driver is None else self._driver.node
        self._tell(m.DecisionPosted(post=Ending(token=0, nonce="", kind="asked", reason=reason, by=node)))

    def answer(self, decision: Restart | Stop, failure: Failure, evidence: str, *, question: str = "") -> None:
        """Take what was decided for the whole run to all nodes."""
        post = _post(decision, failure)
        fits = len(evidence.encode()) <= RUN_EVIDENCE_BYTES
        self._tell(m.AnswerGiven(post=replace(post, evidence=evidence) if fits else post, question=question))

    def order_stop(self, reason: str, report: NodeReport) -> None:
        """Have all nodes stop their workers."""
        self._awaits = True
        self._tell(m.StopPosted(reason=reason, report=_bounded(report)))

    def report_stopped(self, report: NodeReport) -> None:
        """Put what this node has seen where the leader reads it."""
        self._tell(m.ReportPosted(report=_bounded(report)))

    def ask_steps(self) -> None:
        """Ask all nodes how far their workers are."""
        self._tell(m.StepsWanted())

    def report_steps(self, steps: NodeSteps) -> None:
        """Put how far this node's workers are where the leader reads it."""
        self._tell(m.StepsReported(steps=steps))

    def report_finishing(self) -> None:
        """Park whoever comes from now on."""
        self._tell(m.FinishingReported())

    def report_done(self) -> None:
        """Say that this node's workers have all ended well."""
        self._tell(m.DoneReported())

    def announce_departure(self) -> None:
        """Say that this node will leave; the store that it hosts goes with it, and so does the run."""
        if self._driver is None:
            return
        if self._store.hosting and self._driver.in_round:
            node = self._driver.node
            reason = f"node {node}, which hosts the rendezvous store, {self._store.where}, was told to stop"
            failure = replace(self._driver.failure(reason), failure_class=FailureClass.PREEMPTED)
            verdict = Verdict(outcome="failed", exit_code=failure.exit_code, reason=reason, by=node, failure=failure)
            self._tell(m.DecisionPosted(post=verdict))
        self._tell(m.DepartureAnnounced())

    def is_closed(self) -> bool:
        """Return whether it is known here that the run is over."""
        control = None if self._driver is None else self._driver.control
        return control is not None and control.verdict is not None

    def set_closed(self) -> None:
        """End the run well for all nodes, unless it was decided already how it ends."""
        if self._driver is None or not self._driver.in_round:
            return
        verdict = Verdict(outcome="done", exit_code=0, reason="the run was closed", by=self._driver.node)
        self._tell(m.DecisionPosted(post=verdict))
        with self._lock:
            self._lock.wait_for(lambda: self._ended or self.is_closed(), timeout=_LEAVE_S)

    def shutdown(self) -> bool:
        """Give the seat back and let the thread end; what a dead store keeps us from doing, its lease does."""
        driver = self._driver
        if driver is None:
            self._store.close()
            return True
        driver.post(m.LeaveAsked())
        if driver.join(_HOST_LEAVE_S if self._store.hosting or driver.has_word else _LEAVE_S):
            return True
        driver.urge()
        return driver.join(_LEAVE_S)

    def pids(self) -> frozenset[int]:
        """Return the processes that the store keeps on this host (a server of its own)."""
        return self._store.pids()

    # --- the driver

    def _tell(self, event: m.Event) -> None:
        if self._driver is None:
            self._driver = Driver(
                self._store,
                State(me=self._me()),
                services=self.services,
                place=self._place,
                route=self._route,
                announce=self._hear,
                ended=self._on_end,
                agent_port=self.settings.agent_port,
                clock=self._clock,
            )
            self._driver.post(event)
            self._driver.start()
            return
        self._driver.post(event)

    def _wake(self) -> None:
        with self._lock:
            self._lock.notify_all()

    def _hear(self, announcement: m.Announcement) -> None:
        match announcement:
            case m.Said(text=text):
                self.services.say(text)
                return
            case m.StepsAsked(serial=serial):
                self.services.tell_steps(serial)
                return
            case m.StepsHeard(seen=seen):
                self.services.hear_steps(seen)
                return
        with self._lock:
            if isinstance(announcement, (m.Formed, m.JoinFailed)):
                self._changes.clear()  # they were about the round before
                self._places.append(announcement)
            elif isinstance(announcement, m.Changed):
                self._changes.append(announcement.change)
            self._lock.notify_all()

    def _on_end(self, failure: Exception | None) -> None:
        with self._lock:
            self._ended, self._failure = True, failure
            self._lock.notify_all()

    def _check_driver(self) -> None:
        if not self._ended:
            return
        if isinstance(self._failure, ElasticError):
            raise self._failure
        if self._failure is not None:
            text = f"{type(self._failure).__name__}: {' '.join(str(self._failure).split())}"
            raise RendezvousStateError(f"the rendezvous on {self._store.where} broke: {text}") from self._failure
        raise RendezvousClosedError(f"this node has left run {self.settings.run_id!r}")

    # --- who this node is

    def _me(self) -> Me:
        settings = self.settings
        options = settings.options
        last_call_s = options.get("last_call_timeout")
        return Me(
            node=settings.node_id or os.uname().nodename,
            incarnation=(settings.incarnation or os.urandom(6).hex())[:12],
            run_id=settings.run_id,
            where=self._store.where,
            fresh_epoch=os.urandom(6).hex(),
            secret=os.urandom(16).hex(),
            min_nodes=settings.min_nodes,
            max_nodes=settings.max_nodes,
            nproc=settings.local_world_size,
            role=settings.role,
            rank_hint=settings.node_rank,
            boot=host_identity(),
            master=settings.master_addr or "",
            ttl_s=_seconds(options.get("lease_ttl"), DEFAULT_LEASE_TTL_S),
            first_call_s=_seconds(last_call_s, FIRST_CALL_S),
            last_call_s=_seconds(last_call_s, LAST_CALL_S),
            join_timeout_s=_seconds(options.get("join_timeout"), DEFAULT_JOIN_TIMEOUT_S),
            connect_timeout_s=_seconds(options.get("connect_timeout"), DEFAULT_CONNECT_TIMEOUT_S),
            outage_grace_s=settings.store_outage_grace_s,
            fail_on_loss=settings.on_store_loss == "fail",
            hosted=self._store.hosted_by_member,
            attempt=settings.attempt,
            attempt_given=settings.attempt_given,
            job=settings.job,
            spares=settings.spares,
            max_changes=settings.max_membership_changes,
            fingerprint=dict(settings.fingerprint),
            allow_mismatch=settings.allow_mismatch,
        )

    def _place(self, source: str, agent_port: int) -> m.Connected:
        """Choose the address to give to others. Called: on the driver's thread, when the store was first reached."""
        settings = self.settings
        address = settings.local_addr or source or LOOPBACK
        alternative = ""
        self._on_loopback = not settings.local_addr and is_loopback(address)
        if self._on_loopback:
            alternative = route_source(_OUTSIDE) or full_name(wait=WaitBudget.lasting(2.0, clock=self._clock))
        node = settings.node_id or default_node_id(os.uname().nodename, address)
        return m.Connected(address=address, alternative=alternative, agent_port=agent_port, node=node)

    def _route(self, members: tuple[Candidate, ...]) -> str:
        """Return from where members on other hosts are reached, where this one has told a loopback address.

        The way out of `_place` may be another one than to them. Called: on the driver's thread.
        """
        boot = host_identity() if self._on_loopback else ""
        told = (
            address
            for member in members
            if self._on_loopback and member.record.boot != boot
            for address in (member.record.address, member.record.alternative)
        )
        sources = (route_source(address) for address in told if not is_loopback(address))
        return next((source for source in sources if source and not is_loopback(source)), "")


def _seconds(value: object, default_s: float) -> float:
    return float(value) if isinstance(value, (int, float)) else default_s


def _post(decision: Restart | Stop, failure: Failure) -> Ending | Verdict:
    """Return what is published; the machine fills in which round it is about."""
    noted = replace(failure, decision=decision)
    if isinstance(decision, Restart):
        return Ending(
            token=0,
            nonce="",
            kind="restart",
            reason=failure.summary,
            by=failure.node_id,
            delay_s=decision.delay_s,
            rule=decision.rule,
            exclude=decision.exclude_nodes,
            exclude_s=decision.exclude_s,
            failure=noted,
        )
    done = decision.outcome == "done"
    return Verdict(
        outcome="done" if done else "failed",
        exit_code=0 if done else failure.exit_code,
        reason=decision.reason,
        by=failure.node_id,
        rule=decision.rule,
        failure=noted,
    )


def _bounded(report: NodeReport) -> NodeReport:
    """Return a report that fits into a member's record."""
    failure = report.failure
    if failure is not None and len(failure.message) > MESSAGE_CHARS:
        report = replace(report, failure=replace(failure, message=failure.message[:MESSAGE_CHARS]))
    return report if len(report.evidence.encode()) <= EVIDENCE_BYTES else replace(report, evidence="")


def _info(formed: m.Formed) -> RendezvousInfo:
    document = formed.document
    return RendezvousInfo(
        rank=formed.rank,
        world_size=len(document.roster),
        round_token=document.token,
        nonce=document.nonce,
        members=tuple(
            RosterMember(node_id=entry.node, local_world_size=entry.nproc, role=entry.role, address=entry.host)
            for entry in document.roster
        ),
        master_addr=document.master_addr,
        master_port=document.master_port or None,
        index=document.index,
        restart_count=document.restarts,
        membership_changes=document.changes,
        history=formed.history,
        at_s=formed.at_s,
    )


def _error(failed: m.JoinFailed) -> RendezvousError:
    match failed.kind:
        case "timeout":
            return RendezvousTimeoutError(failed.what, hint=failed.hint)
        case "connection":
            return RendezvousConnectionError(failed.what, hint=failed.hint)
        case "not needed":
            return RendezvousGracefulExitError(failed.what, hint=failed.hint)
        case "closed":
            return RendezvousClosedError(failed.what, hint=failed.hint, exit_code=failed.exit_code)
        case _:
            return RendezvousError(failed.what, hint=failed.hint)
