"""One simulated node: the real machine, a sequential client for it, an agent with workers, and its guard."""

import random
from collections.abc import Callable
from functools import lru_cache, partial
from typing import TYPE_CHECKING

from elastic_core.failure.evidence import first_cause
from elastic_core.rendezvous import member_messages as m
from elastic_core.rendezvous.documents import (
    ControlDocument,
    Ending,
    MemberRecord,
    RoundDocument,
    Verdict,
    decode,
    encode,
)
from elastic_core.rendezvous.machine import step
from elastic_core.rendezvous.membership import NEVER_S, Me, State, Want
from elastic_core.rendezvous.roster import Candidate
from elastic_core.rendezvous.store import CONTROL_KEY, Document, Members, Renewal, Revisions, Seat, Swapped, Watched
from elastic_core.testing.simulation_network import Call, Line, Refused
from elastic_core.types import (
    Decided,
    Failure,
    FailureClass,
    NodeReport,
    Restart,
    RoundEnded,
    Stop,
    StopOrdered,
    Undecided,
)

if TYPE_CHECKING:
    from elastic_core.testing.simulation import Simulation

_record = lru_cache(maxsize=4096)(partial(decode, kind=MemberRecord))
_round = lru_cache(maxsize=512)(partial(decode, kind=RoundDocument))
_control = lru_cache(maxsize=512)(partial(decode, kind=ControlDocument))
LONGEST_GRACE_S = 3.0
PEERS_AGAIN_S = 0.05
LONGEST_SETTLING_S = 0.5
"""How long after a worker's failure its agent may notice: interpreters take their time to end."""
LONGEST_THOUGHT_S = 0.3
Next = tuple[bool, float]
"""Whether the run is over, and how long to wait before the next round."""


class SimulatedMember:
    """A node. Nothing in it looks at another one's clock: its own is off by a random time."""

    def __init__(self, world: "Simulation", name: str, number: int) -> None:
        self.world = world
        self.net = world.net
        self.rng: random.Random = world.rng
        self.name = name
        scenario = world.scenario
        self.incarnation = f"{name}#{number}"
        self.offset_s = self.rng.uniform(0, 1e6)
        self.state = State(
            me=Me(
                node=name,
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
                outage_grace_s=scenario.outage_grace_s,
                boot=name,
            )
        )
        self.line = Line()
        self.peers_cut = False
        self.paused = False
        self.dead = False
        self.ending = ""
        self.operations = 0
        self.workers: RoundDocument | None = None
        self._turn = 0
        self._operation: m.Operation | None = None
        self._intents: list[m.Event] = []
        self._held: list[Callable[[], None]] = []
        self._round_turn = 0
        self._verdict = False
        self._stopping = False
        self._failed: tuple[float, bool] | None = None
        self._heard_s: float | None = None
        self._gone = False
        self._next: Next | None = None
        self._departing = False
        self._reached_s = float("-inf")
        self._intend(m.JoinAsked(master_port=29500))
        self._go(())

    # --- its time

    @property
    def local_s(self) -> float:
        """Return what its clock says."""
        return self.net.now_s + self.offset_s

    @property
    def live(self) -> bool:
        """Return whether there is an agent."""
        return not self.dead and not isinstance(self._operation, m.Gone)

    @property
    def operation(self) -> m.Operation | None:
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
        held, self._held = self._held, []
        if self.rng.random() < 0.5:
            self.rng.shuffle(held)
        for call in held:
            self._run(call)

    # --- the machine

    def _intend(self, event: m.Event) -> None:
        self._intents.append(event)
        if isinstance(self._operation, m.Watch | m.Pause):
            turn = self._turn
            self._soon(0.0, lambda: self._answer(turn, m.WatchEnded(watched=None)))

    def _answer(self, turn: int, event: m.Event) -> None:
        if turn == self._turn and not isinstance(self._operation, m.Gone):
            self._go((event,))

    def _go(self, events: tuple[m.Event, ...]) -> None:
        intents, self._intents = tuple(self._intents), []
        self._turn += 1
        self.world.steps += 1
        after = step(self.state, (*events, *intents), now_s=self.local_s)
        self.state = after.state
        self._operation = after.operation
        if self.world.verbose and not isinstance(after.operation, m.Pause | m.Watch):
            self.world.checks.said(self.net.now_s, self.incarnation, f"{after.reason}: {_short(after.operation)}")
        self._guard()
        for announcement in after.announcements:
            self._told(announcement)
        self._perform(after.operation)
        if self._intents and isinstance(after.operation, m.Watch | m.Pause):
            turn = self._turn
            self._soon(0.0, lambda: self._answer(turn, m.WatchEnded(watched=None)))

    # --- the agent

    def _told(self, announcement: m.Announcement) -> None:
        match announcement:
            case m.Formed(document=document, rank=rank):
                self._start(document, rank)
            case m.Changed(change=change):
                self.world.checks.said(self.net.now_s, self.incarnation, f"told {change}")
                self._changed(change)
            case m.JoinFailed(kind=kind, what=what):
                self.world.checks.said(self.net.now_s, self.incarnation, f"told {kind}: {what}")
                self._end(kind)
                self._intend(m.LeaveAsked())
            case m.Said() | m.Fenced():
                pass

    def _start(self, document: RoundDocument, rank: int) -> None:
        checks = self.world.checks
        checks.said(self.net.now_s, self.incarnation, f"starts workers of {document.token} {document.nonce}")
        if self._verdict:
            checks.fail("nobody trains after the verdict", self.incarnation)
        checks.started(self.incarnation, document, rank)
        self.workers = document
        self._failed = self._heard_s = self._next = None
        self._gone = False
        self._round_turn += 1
        self._stopping = False
        self._guard()
        if self._departing:
            self.depart()
        if self.world.finishing:
            self.finish(self.rng.uniform(0, 5))

    def _changed(self, change: object) -> None:
        within_s = LONGEST_GRACE_S
        if isinstance(change, RoundEnded) and change.stop_within_s is not None:
            within_s = min(within_s, change.stop_within_s)
        delay_s = 0.0
        over = False
        if isinstance(change, Decided):
            over = isinstance(change.decision, Stop)
            delay_s = change.decision.delay_s if isinstance(change.decision, Restart) else 0.0
        if over and isinstance(change, Decided) and isinstance(change.decision, Stop):
            self._verdict = True
            self._end(change.decision.outcome)
            if change.decision.rule != "store":  # that one it gave itself, for want of anybody to ask
                self.world.checks.heard(self.incarnation, (change.decision.outcome, change.decision.reason))
        if isinstance(change, StopOrdered):
            self._halt(self.rng.uniform(0, LONGEST_GRACE_S))
        elif isinstance(change, Undecided):
            self._alone(final=change.final)
        elif self._heard_s is None:
            grace_s = self.rng.uniform(0, within_s)
            self._soon(grace_s, lambda: self._stopped(over, delay_s))
        elif self._gone:
            self._soon(0.0, lambda: self._stopped(over, delay_s))
        else:
            self._next = (over, delay_s)

    def _stopped(self, over: bool, delay_s: float) -> None:
        self._kill()
        if over or self._departing:
            self._end("departed")
            self._intend(m.LeaveAsked())
        else:
            self._soon(delay_s, lambda: self._intend(m.JoinAsked(master_port=29500)))

    # --- one decision for the run

    def _halt(self, grace_s: float) -> None:
        """Stop the workers, then say what was seen."""
        if self._heard_s is not None:
            return
        self._heard_s = self.local_s
        turn = self._round_turn

        def slow() -> None:
            if turn == self._round_turn and not self._gone and self._next is None:
                self._intend(m.ReportPosted(report=self._report(final=False)))

        def gone() -> None:
            if turn != self._round_turn:
                return
            self._kill()
            self._gone = True
            if self._next is not None:
                self._stopped(*self._next)
            elif self._departing:
                self._depart_at_last()
            else:
                self._intend(m.ReportPosted(report=self._report(final=True)))

        self._soon(1.0, slow)
        self._soon(grace_s, gone)

    def _report(self, *, final: bool) -> NodeReport:
        if self._failed is None or self._heard_s is None:
            return NodeReport(node_id=self.incarnation, final=final)
        failed_s, collateral = self._failed
        failure = Failure(
            failure_class=FailureClass.EXIT,
            summary="worker failed",
            node_id=self.incarnation,
            round_index=0,
            at_s=0.0,
            uptime_s=0.0,
            exit_code=7,
        )
        age_s = self._heard_s - failed_s
        return NodeReport(node_id=self.incarnation, failure=failure, age_s=age_s, collateral=collateral, final=final)

    def _ask_agent(self, operation: m.Ask) -> None:
        """Let the agent think about it for a while."""
        first = first_cause(operation.reports)
        name = first.node_id if first is not None else ""
        self.world.checks.said(self.net.now_s, self.incarnation, f"is asked, and blames {name}")
        post = self._word(f"{name} failed", evidence=name)
        self._soon(self.rng.uniform(0, LONGEST_THOUGHT_S), lambda: self._intend(m.AnswerGiven(post=post)))

    def _word(self, reason: str, *, evidence: str = "", final: bool = False) -> Ending | Verdict:
        if final or self.rng.random() < self.world.scenario.fatal:
            return Verdict(outcome="failed", exit_code=7, reason=reason, by=self.incarnation, evidence=evidence)
        return Ending(token=0, nonce="", kind="restart", reason=reason, by=self.name, delay_s=0.5, evidence=evidence)

    def _alone(self, *, final: bool) -> None:
        word = self._word(f"{self.incarnation} decided alone", final=final)
        self._intend(m.DecisionPosted(post=word))
        over = isinstance(word, Verdict)
        if over:
            self._end("failed")
        self._soon(0.1, lambda: self._stopped(over, 0.5))

    def _end(self, how: str) -> None:
        if not self.ending:
            self.ending = how
            self.world.checks.outcomes[how] += 1

    def _kill(self) -> None:
        if self.workers is not None:
            self.world.checks.said(self.net.now_s, self.incarnation, "has no workers any more")
            self.workers = None
            self.world.checks.ended(self.incarnation)

    def _guard(self) -> None:
        """Kill the workers, agent or no agent, when the last moment that the machine named has come."""
        if self.workers is None:
            return
        turn, left_s = self._round_turn, self.state.fence_s - self.local_s

        def look() -> None:
            if self.workers is None or turn != self._round_turn:
                return
            if self.local_s >= self.state.fence_s - 1e-6:
                self.world.checks.said(self.net.now_s, self.incarnation, "guard: the lease is over")
                self._kill()
                self._soon(0.01, self._mourn)

        self.net.after(max(0.0, left_s), look)

    def _mourn(self) -> None:
        """Take workers that the guard killed for failed ones, unless their round is known to be over."""
        if self.state.want is Want.RUN and self.workers is None:
            self._decide()

    # --- what happens to it

    def fail(self, *, collateral: bool = False) -> None:
        """Let its workers fail, if they have not been told to stop; the agent sees it a little later."""
        if self.workers is None or self._failed is not None or self.state.want is not Want.RUN:
            return
        turn = self._round_turn
        self._failed = (self.local_s, collateral)
        self.world.checks.failed(self.incarnation, self.workers, self.net.now_s, collateral=collateral)

        def settled() -> None:
            if turn == self._round_turn and self.state.want is Want.RUN:
                self._decide()

        self._soon(self.rng.uniform(0, LONGEST_SETTLING_S), settled)

    def _decide(self) -> None:
        if self._heard_s is not None:
            return
        if self._failed is None:
            self._failed = (self.local_s, False)
        heard_s = self.local_s
        self._halt(self.rng.uniform(0, LONGEST_GRACE_S))
        self._heard_s = heard_s
        self._intend(m.StopPosted(reason="worker failed", report=self._report(final=False)))

    def finish(self, within_s: float) -> None:
        """Let its workers end well."""
        turn = self._round_turn

        def first() -> None:
            if turn == self._round_turn and self.workers is not None:
                self._intend(m.FinishingReported())

        def last() -> None:
            if turn == self._round_turn and self.workers is not None and self.state.want is Want.RUN:
                self.world.checks.finished(self.incarnation, self.workers)
                self.workers = None
                self._intend(m.DoneReported())

        self._soon(within_s / 2, first)
        self._soon(within_s, last)

    def depart(self) -> None:
        """Tell the agent to stop."""
        if not self.live:
            return
        self._departing = True
        self._soon(0.0, lambda: self._intend(m.DepartureAnnounced()))
        self._soon(self.rng.uniform(0, LONGEST_GRACE_S), self._depart_at_last)

    def _depart_at_last(self) -> None:
        self._kill()
        self._end("departed")
        self._intend(m.LeaveAsked())

    def crash(self, *, guarded: bool) -> None:
        """End the agent at once: with a guard that cleans up, or with its node."""
        self.world.checks.said(self.net.now_s, self.incarnation, "crashes" if guarded else "loses power")
        self.dead = True
        self._end("crashed")
        if not guarded:
            self._kill()
            return
        self.net.after(self.rng.uniform(0, 0.9), self._clean_up)

    def _clean_up(self) -> None:
        self._kill()
        seat = self.state.seat
        if seat is not None:
            self.net.send(self.line, lambda store, now_s: store.withdraw(seat, now_s=now_s), lambda _: None)

    def asked(self) -> tuple[float, bool]:
        """Return what it answers a peer: how long ago the store last answered, and whether it was then tried in vain.

        It tries at once, for the next question.
        """
        self._soon(0.0, lambda: self._intend(m.PeerAsked()))
        return self.net.now_s - self._reached_s, self.state.trouble is not None

    # --- its client

    def _perform(self, operation: m.Operation) -> None:
        match operation:
            case m.Pause(until_s=until_s):
                self._wait(until_s)
            case m.AskPeers():
                self._ask(operation)
            case m.Ask():
                turn = self._turn
                self._soon(0.0, lambda: self._answer(turn, m.WatchEnded(watched=None)))
                self._ask_agent(operation)
            case m.Watch():
                self._watch(operation)
            case m.Gone():
                self._end("left")
                self._kill()
            case _:
                self._request(operation)

    def _wait(self, until_s: float) -> None:
        if until_s != NEVER_S:
            turn = self._turn
            self._soon(until_s - self.local_s, lambda: self._answer(turn, m.WatchEnded(watched=None)))

    def _ask(self, operation: m.AskPeers) -> None:
        """Ask all again and again, each with its own way there and back; end when each could tell, or at last."""
        turn, asked_s = self._turn, self.local_s
        answers: dict[str, bool] = {}

        def end() -> None:
            event = m.PeersAnswered(asked_s=asked_s, answered=len(answers), reaching=sum(answers.values()))
            self._answer(turn, event)

        def back(name: str, age_s: float, away: bool) -> None:
            reaches = age_s < self.local_s - asked_s
            if reaches or away:
                answers[name] = answers.get(name, False) or reaches
            if len(answers) == len(operation.peers):
                end()

        def there(peer: "SimulatedMember") -> None:
            if self._hears(peer):
                age_s, away = peer.asked()
                self._soon(self.net.latency_s(), lambda: back(peer.incarnation, age_s, away))

        def ask() -> None:
            if turn != self._turn:
                return
            for peer in map(self.world.member_of, operation.peers):
                if peer is not None:
                    self.net.after(self.net.latency_s(), partial(there, peer))
            self._soon(PEERS_AGAIN_S, ask)

        ask()
        self._soon(operation.until_s - self.local_s, end)

    def _hears(self, peer: "SimulatedMember") -> bool:
        return peer.live and not peer.paused and not peer.peers_cut and not self.peers_cut

    def _watch(self, operation: m.Watch) -> None:
        turn = self._turn
        since = operation.since

        def back(answer: object) -> None:
            event: m.Event = m.Failed(text="connection refused")
            if not isinstance(answer, Refused):
                self._soon(0.0, self._reached)
            if isinstance(answer, Watched):
                event = m.WatchEnded(watched=answer)
            if isinstance(answer, Revisions):
                event = m.WatchEnded(watched=Watched(revisions=answer, changed=frozenset(operation.topics)))
            self._soon(0.0, lambda: self._answer(turn, event))

        lost = m.Failed(text="no answer", unknown=True)
        patience_s = max(0.0, operation.until_s - self.local_s) + self.state.me.ttl_s / 6
        self._soon(patience_s, lambda: self._answer(turn, lost))
        self.operations += 1
        if since is None:
            self.net.send(self.line, lambda store, now_s: store.revisions(now_s=now_s), back)
        else:
            until_s = operation.until_s - self.offset_s
            self.net.watch(self.line, since, operation.topics, until_s, back)

    def _request(self, operation: m.Operation) -> None:
        turn, sent_s = self._turn, self.local_s
        key = operation.key if isinstance(operation, m.Load | m.Swap) else ""

        def back(answer: object) -> None:
            event: m.Event
            if isinstance(answer, Refused):
                event = m.Failed(text="connection refused", key=key)
            else:
                event = _event(operation, answer, sent_s, self)
                self._soon(0.0, self._reached)
            self._soon(0.0, lambda: self._answer(turn, event))

        lost = m.Failed(text="no answer", unknown=True, key=key)
        self._soon(self._patience_s(operation), lambda: self._answer(turn, lost))
        self.operations += 1
        self.net.send(self.line, self._call(operation), back)

    def _patience_s(self, operation: m.Operation) -> float:
        ttl_s = self.state.me.ttl_s
        if isinstance(operation, m.Connect):
            return 5.0
        return max(3.0, ttl_s / 3) if isinstance(operation, m.Withdraw) else ttl_s / 6

    def _reached(self) -> None:
        self._reached_s = self.net.now_s

    def _call(self, operation: m.Operation) -> Call:
        ttl_s = self.state.me.ttl_s
        match operation:
            case m.Connect():
                return lambda store, now_s: None
            case m.Enlist(record=record):
                return lambda s, t: s.enlist(record, incarnation=self.incarnation, ttl_s=ttl_s, now_s=t)
            case m.Update(seat=seat, record=record):
                return lambda s, t: s.update(seat, record, now_s=t)
            case m.Renew(seat=seat):
                return lambda s, t: s.renew(seat, ttl_s=ttl_s, now_s=t)
            case m.Withdraw(seat=seat):
                return lambda s, t: s.withdraw(seat, now_s=t)
            case m.ReadMembers():
                return lambda s, t: s.members(now_s=t)
            case m.Load(key=key):
                return lambda s, t: s.load(key, now_s=t)
            case m.Swap(key=key, document=document, expect=expect, keep_s=keep_s):
                raw = encode(document)
                return lambda s, t: self.net.swap(s, t, key, raw, expect, keep_s)
            case _:
                raise AssertionError(operation)


def _value(key: str, document: Document | None) -> ControlDocument | RoundDocument | None:
    if document is None:
        return None
    return _control(document.value) if key == CONTROL_KEY else _round(document.value)


def _event(operation: m.Operation, answer: object, sent_s: float, member: SimulatedMember) -> m.Event:
    match operation, answer:
        case m.Connect(), None:
            return m.Connected(address=f"10.0.0.{member.name}", alternative="", agent_port=9000)
        case m.Enlist(record=record), Seat():
            return m.Enlisted(seat=answer, record=record, sent_s=sent_s)
        case m.Update(record=record), bool():
            return m.Updated(record=record, kept=answer)
        case m.Renew(), Renewal() | None:
            return m.Renewed(renewal=answer, sent_s=sent_s)
        case m.Withdraw(), None:
            return m.Withdrawn()
        case m.ReadMembers(), Members():
            members = tuple(
                Candidate(seat=one.seat, incarnation=one.incarnation, record=_record(one.record))
                for one in answer.members
            )
            return m.MembersRead(members=members)
        case m.Load(key=key), Document() | None:
            return m.Loaded(key=key, document=answer, value=_value(key, answer))
        case m.Swap(key=key), Swapped():
            return m.SwapAnswered(key=key, swapped=answer, value=_value(key, answer.current))
        case _:
            raise AssertionError((operation, answer))


def _short(operation: m.Operation) -> str:
    text = str(operation)
    return text if len(text) < 300 else text[:300] + "…"
