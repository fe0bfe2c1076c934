"""One simulated node's way to the store: the real machine, and a client that carries out what it says, in order."""

import random
from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import lru_cache, partial
from typing import TYPE_CHECKING

from elastic_core import messages as m
from elastic_core.rendezvous.member import protocol
from elastic_core.rendezvous.member.documents import ControlDocument, MemberRecord, RoundDocument, decode, encode
from elastic_core.rendezvous.member.machine import step
from elastic_core.rendezvous.member.roster import Candidate
from elastic_core.rendezvous.member.state import NEVER_S, Me, State
from elastic_core.rendezvous.shell.grants import PeerAnswer, PeerExchange, PeerQuestion, PeerView, peer_view
from elastic_core.rendezvous.store import (
    CONTROL_KEY,
    Document,
    Members,
    Renewal,
    Revisions,
    Seat,
    Survey,
    Swapped,
    Watched,
)
from simulation.network import Call, Line, Refused

if TYPE_CHECKING:
    from simulation.simulator import Simulation

MOST_TURNS = 400
"""How many turns a member may have within one second: it has a few dozen where most happens at once."""

_record = lru_cache(maxsize=4096)(partial(decode, kind=MemberRecord))
_round = lru_cache(maxsize=512)(partial(decode, kind=RoundDocument))
_control = lru_cache(maxsize=512)(partial(decode, kind=ControlDocument))


UNANSWERED = "no answer"
"""The text of a failure without a reply: the operation may have been carried out."""


class Pace:
    """How often something happens within one second."""

    def __init__(self) -> None:
        self._since_s = float("-inf")
        self._count = 0

    def count(self, now_s: float) -> int:
        """Take note that it happens now; return how often it has within this second."""
        if now_s >= self._since_s + 1.0:
            self._since_s, self._count = now_s, 0
        self._count += 1
        return self._count


class SimulatedClient(ABC):
    """A machine on a processor that may be stopped. Its clock is off by a random time: nobody else's looks at it."""

    def __init__(self, world: "Simulation", name: str, number: int) -> None:
        self.world = world
        self.net = world.net
        self.rng: random.Random = world.rng
        self.name = name
        self.incarnation = f"{name}#{number}"
        self.offset_s = self.rng.uniform(0, 1e6)
        self.state = State(me=self._me())
        self.line = Line(self.net.cuts, self.incarnation)
        self.paused = False
        self.dead = False
        self.operations = 0
        self._pace = Pace()
        self._turn = 0
        self._operation: protocol.Operation | None = None
        self._intents: list[protocol.Event] = []
        self._held: list[Callable[[], None]] = []
        self._reached_s = float("-inf")
        self._exchange = PeerExchange(self._view(), self.rng)
        self._asks_s = NEVER_S

    def _me(self) -> Me:
        scenario = self.world.scenario
        return Me(
            node=self.name,
            incarnation=self.incarnation,
            run_id="simulated",
            where="the store",
            fresh_epoch=f"epoch of {self.incarnation}",
            secret="s",
            min_nodes=scenario.min_nodes,
            max_nodes=scenario.max_nodes,
            ttl_s=scenario.ttl_s,
            first_call_s=scenario.first_call_s,
            last_call_s=scenario.last_call_s,
            spares=scenario.spares,
            store_outage_grace_s=scenario.outage_grace_s,
            boot=self.name,
        )

    # --- what its agent does

    @abstractmethod
    def _told(self, announcement: protocol.Announcement) -> None:
        """Do what the machine says."""

    @abstractmethod
    def _ask_agent(self, operation: m.DecisionAsked) -> None:
        """Decide about what the nodes report."""

    @abstractmethod
    def _gather(self, event: m.AnswersGathered) -> None:
        """Conclude the answers of all nodes."""

    @abstractmethod
    def _guard(self) -> None:
        """See to it that the workers are dead in time."""

    @abstractmethod
    def _leave(self) -> None:
        """End: the machine has left."""

    # --- its time

    @property
    def local_s(self) -> float:
        """Return what its clock says."""
        return self.net.now_s + self.offset_s

    @property
    def address(self) -> str:
        """Return its address."""
        return f"10.0.0.{self.name}"

    @property
    def live(self) -> bool:
        """Return whether there is an agent."""
        return not self.dead and not isinstance(self._operation, protocol.Gone)

    @property
    def operation(self) -> protocol.Operation | None:
        """Return what it is doing."""
        return self._operation

    def _soon(self, delay_s: float, call: Callable[[], None]) -> None:
        """Do something on this node's processor: not while it is stopped, never when it is dead."""
        self.net.after(delay_s, lambda: self._run(call))

    def _run(self, call: Callable[[], None]) -> None:
        if self.dead:
            return
        if self.paused:
            self._held.append(call)
        else:
            call()

    def resume(self) -> None:
        """Go on after a SIGSTOP: everything that waited happens now."""
        self.paused = False
        self.line.disturbed_s = self.net.now_s
        held, self._held = self._held, []
        if self.rng.random() < 0.5:
            self.rng.shuffle(held)
        for call in held:
            self._run(call)

    # --- the machine

    def _intend(self, event: protocol.Event) -> None:
        self._intents.append(event)
        if isinstance(self._operation, protocol.Watch | protocol.Pause):
            turn = self._turn
            self._soon(0.0, lambda: self._answer(turn, protocol.WatchEnded(watched=None)))

    def _answer(self, turn: int, event: protocol.Event) -> None:
        if turn == self._turn and not isinstance(self._operation, protocol.Gone):
            self._go((event,))

    def _go(self, events: tuple[protocol.Event, ...]) -> None:
        intents, self._intents = tuple(self._intents), []
        self._turn += 1
        self.world.steps += 1
        self._count_turn()
        after = step(self.state, (*events, *intents), now_s=self.local_s)
        self.state = after.state
        self._operation = after.operation
        if self.world.verbose and not isinstance(after.operation, protocol.Pause | protocol.Watch):
            self.world.checks.said(self.net.now_s, self.incarnation, f"{after.reason}: {_short(after.operation)}")
        self._talk()
        self._guard()
        for announcement in after.announcements:
            self._told(announcement)
        self._perform(after.operation)
        if self._intents and isinstance(after.operation, protocol.Watch | protocol.Pause):
            turn = self._turn
            self._soon(0.0, lambda: self._answer(turn, protocol.WatchEnded(watched=None)))

    def _count_turn(self) -> None:
        if self._pace.count(self.net.now_s) > MOST_TURNS:
            self.world.checks.fail("nobody spins", f"{self.incarnation} has {MOST_TURNS} turns in a second")

    # --- the client

    def _perform(self, operation: protocol.Operation) -> None:
        match operation:
            case protocol.Pause(until_s=until_s):
                self._wait(until_s)
            case m.DecisionAsked():
                turn = self._turn
                self._soon(0.0, lambda: self._answer(turn, protocol.WatchEnded(watched=None)))
                self._ask_agent(operation)
            case m.AnswersGathered():
                turn = self._turn
                self._soon(0.0, lambda: self._answer(turn, protocol.WatchEnded(watched=None)))
                self._gather(operation)
            case protocol.Watch():
                self._watch(operation)
            case protocol.Gone():
                self._leave()
            case _:
                self._request(operation)

    def _wait(self, until_s: float) -> None:
        if until_s != NEVER_S:
            turn = self._turn
            self._soon(until_s - self.local_s, lambda: self._answer(turn, protocol.WatchEnded(watched=None)))

    # --- what its members ask each other

    def _view(self) -> PeerView:
        return peer_view(self.state, self._reached_s + self.offset_s)

    def _talk(self) -> None:
        """Tell what is new about this member, and ask when it is time."""
        self._exchange.update(self._view(), self.local_s)
        self._plan()

    def _plan(self) -> None:
        due_s = self._exchange.due_s - self.offset_s
        if due_s == NEVER_S or due_s >= self._asks_s:
            return
        self._asks_s = due_s
        self._soon(due_s - self.net.now_s, lambda: self._ask_peers(due_s))

    def _ask_peers(self, due_s: float) -> None:
        if due_s != self._asks_s or not self.live:
            return
        self._asks_s = NEVER_S
        self._count_turn()
        asked = self._exchange.ask(self.local_s) if self.local_s >= self._exchange.due_s - 1e-9 else ()
        for entry, question in asked:
            peer = self.world.member_of(entry)
            if peer is not None:
                self.net.datagram(self.incarnation, peer.incarnation, partial(peer.asked, question, self))
        self._hear()
        self._plan()

    def _hear(self) -> None:
        for event in self._exchange.take_events():
            self._intend(event)

    def asked(self, question: PeerQuestion, asker: "SimulatedClient") -> None:
        """Answer what another one asks, once it has a turn."""
        self._run(partial(self._answer_peer, question, asker))

    def _answer_peer(self, question: PeerQuestion, asker: "SimulatedClient") -> None:
        if not self.live:
            return
        answer = self._exchange.answer(question, self.local_s)
        if answer is not None:
            self.net.datagram(self.incarnation, asker.incarnation, partial(asker.answered, answer))
        self._hear()
        self._plan()

    def answered(self, answer: PeerAnswer) -> None:
        """Take an answer, once it has a turn."""
        self._run(partial(self._take_answer, answer))

    def _take_answer(self, answer: PeerAnswer) -> None:
        if self.live:
            self._exchange.take(answer, self.local_s)
            self._hear()

    def _watch(self, operation: protocol.Watch) -> None:
        turn = self._turn
        since = operation.since

        def back(answer: object) -> None:
            event: protocol.Event = protocol.Failed(text="connection refused")
            if not isinstance(answer, Refused):
                self._soon(0.0, self._reached)
            if isinstance(answer, Watched):
                event = protocol.WatchEnded(watched=answer)
            if isinstance(answer, Revisions):
                event = protocol.WatchEnded(watched=Watched(revisions=answer, changed=frozenset(operation.topics)))
            self._soon(0.0, lambda: self._answer(turn, event))

        lost = protocol.Failed(text=UNANSWERED)
        patience_s = max(0.0, operation.until_s - self.local_s) + self.state.patience_s
        self._soon(patience_s, lambda: self._answer(turn, lost))
        self.operations += 1
        if since is None:
            self.net.send(self.line, lambda store, now_s: store.revisions(now_s=now_s), back)
        else:
            until_s = operation.until_s - self.offset_s
            self.net.watch(self.line, since, operation.topics, until_s, back)

    def _request(self, operation: protocol.Operation) -> None:
        turn, sent_s = self._turn, self.local_s
        key = operation.key if isinstance(operation, protocol.Load | protocol.Swap) else ""
        write = isinstance(operation, protocol.Enlist | protocol.Update | protocol.Swap)

        def back(answer: object) -> None:
            event: protocol.Event
            if isinstance(answer, Refused):
                event = protocol.Failed(text="connection refused", write=write, key=key)
            else:
                event = _event(operation, answer, sent_s, self)
                self._soon(0.0, self._reached)
            self._soon(0.0, lambda: self._answer(turn, event))

        lost = protocol.Failed(text=UNANSWERED, write=write, key=key)
        self._soon(self._patience_s(operation), lambda: self._answer(turn, lost))
        self.operations += 1
        self.net.send(self.line, self._call(operation), back, write=write)

    def _patience_s(self, operation: protocol.Operation) -> float:
        ttl_s = self.state.ttl_s
        if isinstance(operation, protocol.Connect):
            return 5.0
        return max(3.0, ttl_s / 3) if isinstance(operation, protocol.Withdraw) else self.state.patience_s

    def _reached(self) -> None:
        self._reached_s = self.net.now_s

    def _call(self, operation: protocol.Operation) -> Call:
        match operation:
            case protocol.Connect():
                return lambda store, now_s: None
            case protocol.Enlist(record=record, ttl_s=ttl_s):
                return lambda s, t: s.enlist(record, incarnation=self.incarnation, ttl_s=ttl_s, now_s=t)
            case protocol.Update(seat=seat, record=record):
                return lambda s, t: s.update(seat, record, now_s=t)
            case protocol.Renew(seat=seat, ttl_s=ttl_s):
                return lambda s, t: s.renew(seat, ttl_s=ttl_s, now_s=t)
            case protocol.Withdraw(seat=seat):
                return lambda s, t: s.withdraw(seat, now_s=t)
            case protocol.ReadMembers():
                return lambda s, t: s.members(now_s=t)
            case protocol.Load(key=key):
                return lambda s, t: (s.load(key, now_s=t), s.keep_age_s(now_s=t))
            case protocol.SurveyRun():
                return lambda s, t: s.survey((), now_s=t)
            case protocol.Swap(key=key, document=document, expect=expect, keep_s=keep_s):
                raw = encode(document)
                return lambda s, t: self.net.swap(s, t, key, raw, expect, keep_s)
            case _:
                raise AssertionError(operation)


def _value(key: str, document: Document | None) -> ControlDocument | RoundDocument | None:
    if document is None:
        return None
    return _control(document.value) if key == CONTROL_KEY else _round(document.value)


def _event(operation: protocol.Operation, answer: object, sent_s: float, member: SimulatedClient) -> protocol.Event:
    match operation, answer:
        case protocol.Connect(), None:
            return protocol.Connected(address=member.address, alternative="", agent_port=9000)
        case protocol.Enlist(record=record, ttl_s=ttl_s), Seat():
            return protocol.Enlisted(seat=answer, record=record, sent_s=sent_s, ttl_s=ttl_s)
        case protocol.Update(record=record), bool():
            return protocol.Updated(record=record, kept=answer)
        case protocol.Renew(ttl_s=ttl_s), Renewal() | None:
            return protocol.Renewed(renewal=answer, sent_s=sent_s, ttl_s=ttl_s)
        case protocol.Withdraw(), None:
            return protocol.Withdrawn()
        case protocol.ReadMembers(), Members():
            members = tuple(
                Candidate(seat=one.seat, incarnation=one.incarnation, record=_record(one.record))
                for one in answer.members
            )
            return protocol.MembersRead(members=members)
        case protocol.Load(key=key), (Document() | None as document, float() | None as age_s):
            return protocol.Loaded(key=key, document=document, value=_value(key, document), age_s=age_s)
        case protocol.SurveyRun(), Survey():
            records = {one.incarnation: _record(one.record) for one in answer.members}
            epochs = frozenset(record.epoch for name, record in records.items() if name not in answer.silent)
            silent = frozenset(name for name in answer.silent if records[name].state != "gone")
            return protocol.Surveyed(epochs=epochs, silent=silent)
        case protocol.Swap(key=key), Swapped():
            return protocol.SwapAnswered(key=key, swapped=answer, value=_value(key, answer.current))
        case _:
            raise AssertionError((operation, answer))


def _short(operation: protocol.Operation) -> str:
    text = str(operation)
    return text if len(text) < 300 else text[:300] + "…"
