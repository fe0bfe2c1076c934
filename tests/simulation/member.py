"""One simulated node: an agent with workers, its guard, and the real machine with its client."""

from typing import TYPE_CHECKING

from msgspec.structs import replace

from elastic_core import messages as m
from elastic_core.failure.evidence import first_cause
from elastic_core.rendezvous.member import protocol
from elastic_core.rendezvous.member.announce import record_of
from elastic_core.rendezvous.member.documents import RoundDocument, encode
from elastic_core.rendezvous.member.state import Want
from elastic_core.reports import Absence, NodeReport
from elastic_core.types import (
    Decided,
    Failure,
    FailureClass,
    RendezvousInfo,
    Restart,
    RoundEnded,
    Stop,
    StopOrdered,
    Undecided,
)
from elastic_plugin_kit.store_model import StoreModel
from simulation.asking import SimulatedAsking, conclude
from simulation.client import SimulatedClient
from simulation.saving import SimulatedSaving

if TYPE_CHECKING:
    from collections.abc import Callable

    from simulation.simulator import Simulation

LONGEST_GRACE_S = 3.0
LONGEST_SETTLING_S = 0.5
"""How long after a worker's failure its agent may notice: interpreters take their time to end."""
Next = tuple[bool, float]
"""Whether the run is over, and how long to wait before the next round."""


class SimulatedMember(SimulatedClient):
    """A node. Nothing in it looks at another one's clock: its own is off by a random time."""

    def __init__(self, world: "Simulation", name: str, number: int) -> None:
        super().__init__(world, name, number)
        self.ending = ""
        self.workers: RoundDocument | None = None
        self.saving: SimulatedSaving | None = None
        self.asking: SimulatedAsking | None = None
        self._round: RoundDocument | None = None
        self._round_turn = 0
        self._verdict = False
        self._failed: tuple[float, bool] | None = None
        self._heard_s: float | None = None
        self._gone = False
        self._next: Next | None = None
        self._departing = False
        self._refuses_until_s = float("-inf")
        self._aside = self._over = False
        self._join()
        self._go(())

    # --- the agent

    def _told(self, announcement: protocol.Announcement) -> None:
        match announcement:
            case RendezvousInfo(rank=rank):
                assert self.state.mine is not None
                self._start(self.state.mine, rank)
            case m.RoundChanged(change=change):
                self.world.checks.said(self.net.now_s, self.incarnation, f"told {change}")
                self._changed(change)
            case protocol.JoinFailed(error=error, what=what):
                self.world.checks.said(self.net.now_s, self.incarnation, f"told {error.__name__}: {what}")
                self._end(error.__name__)
                self._intend(m.LeaveRendezvous(close=False))
            case m.Agreed(topic=topic, value=value):
                if self.saving is not None:
                    self.saving.agreed(topic, value)
            case m.NodesAsked():
                assert self.asking is not None
                self.asking.asked(announcement)
            case m.Concluded():
                assert self.asking is not None
                self.asking.concluded(announcement)
            case m.DrainOrdered():
                self._soon(0.0, self.depart)
            case m.PrintLine() | m.LeftOut():
                pass

    def _join(self) -> None:
        """Join, unless a hook refuses: then wait, and ask it again."""
        if self.ending:
            return
        self._aside = self._refuses()
        if not self._aside:
            self._intend(protocol.JoinAsked(master_port=29500))
            return
        self.world.checks.said(self.net.now_s, self.incarnation, "stays out")
        self._intend(m.StandAside(absence=Absence(by="hook 'gate' (acme 1.0)", reason="hot", for_s=2.0)))
        self._soon(self.rng.uniform(0.3, 3.0), self._join)

    def _refuses(self) -> bool:
        return self.local_s < self._refuses_until_s

    def refuse(self, length_s: float) -> None:
        """Let a hook refuse for a while."""
        self._refuses_until_s = self.local_s + length_s

    def _refuse_start(self, document: RoundDocument) -> None:
        """Have the hook answer, some time, unless the round is over before."""
        self._round, self._heard_s, self._next = document, None, None
        self._failed, self._gone, self._over = None, False, False
        self._round_turn += 1
        turn = self._round_turn

        def answer() -> None:
            if turn == self._round_turn and not self._over:
                self._join()

        self._soon(self.rng.uniform(0, 0.5), answer)
        if self._departing:
            self.depart()

    def _start(self, document: RoundDocument, rank: int) -> None:
        checks = self.world.checks
        if self._aside:
            checks.fail("who is out has no place", self.incarnation)
        if self._refuses():
            self._refuse_start(document)
            return
        checks.said(self.net.now_s, self.incarnation, f"starts workers of {document.token} {document.nonce}")
        if self._verdict:
            checks.fail("nobody trains after the verdict", self.incarnation)
        checks.started(self.incarnation, document, rank)
        self.workers = self._round = document
        self.saving = SimulatedSaving(self, document)
        self.asking = SimulatedAsking(self, document)
        self._failed = self._heard_s = self._next = None
        self._gone = False
        self._round_turn += 1
        self._guard()
        self.world.starting(self)
        if self._departing:
            self.depart()
        if self.world.finishing:
            self.finish(self.rng.uniform(0, 5))

    def _changed(self, change: object) -> None:
        self._over = True
        within_s = LONGEST_GRACE_S
        if isinstance(change, RoundEnded) and change.stop_within_s is not None:
            within_s = min(within_s, change.stop_within_s)
        delay_s = 0.0
        over = False
        if isinstance(change, Decided) and self._round is not None:
            self.world.checks.told(self.incarnation, self._round, change)
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
            grace_s, calls = self.rng.uniform(0, within_s), [lambda: self._stopped(over, delay_s)]
            stopped = lambda: calls.pop()() if calls else None  # noqa: E731
            self._soon(grace_s, stopped)
            if isinstance(change, RoundEnded) and change.planned:
                self._hold(grace_s, stopped)
        elif self._gone:
            self._soon(0.0, lambda: self._stopped(over, delay_s))
        else:
            self._next = (over, delay_s)

    def _hold(self, limit_s: float, stopped: "Callable[[], None]") -> None:
        """Have the workers save before they are stopped, and stop them earlier if all have."""
        if self.workers is not None and self.saving is not None:
            self.saving.begin(limit_s, stopped)

    def after(self, delay_s: float, call: "Callable[[], None]") -> None:
        """Make a call later, if it lives then."""
        self._soon(delay_s, call)

    def intend(self, request: protocol.Request) -> None:
        """Request something of the machine, if the agent lives."""
        self._intend(request)

    def _gather(self, event: m.AnswersGathered) -> None:
        conclude(self, event)

    def state_number(self, topic: str, value: int) -> None:
        """State what this node's workers are at."""
        self._intend(m.StateNumber(topic=topic, value=value))

    def _stopped(self, over: bool, delay_s: float) -> None:
        self._kill()
        if over or self._departing:
            self._end("departed")
            self._intend(m.LeaveRendezvous(close=False))
        else:
            self._soon(delay_s, self._join)

    # --- one decision for the run

    def _halt(self, grace_s: float) -> None:
        """Stop the workers, then say what was seen."""
        if self._heard_s is not None:
            return
        self._heard_s = self.local_s
        turn = self._round_turn

        def slow() -> None:
            if turn == self._round_turn and not self._gone and self._next is None:
                self._intend(self._report(final=False))

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
                self._intend(self._report(final=True))

        self._soon(1.0, slow)
        self._soon(grace_s, gone)

    def _report(self, *, final: bool) -> NodeReport:
        if self._failed is None or self._heard_s is None:
            return NodeReport(node_id=self.incarnation, final=final)
        failed_s, collateral = self._failed
        failure = self._failure()
        age_s = self._heard_s - failed_s
        return NodeReport(node_id=self.incarnation, failure=failure, age_s=age_s, collateral=collateral, final=final)

    def _failure(self) -> Failure:
        return Failure(
            failure_class=FailureClass.EXIT,
            summary="worker failed",
            node_id=self.incarnation,
            round_index=0,
            at_s=0.0,
            uptime_s=0.0,
            exit_code=7,
        )

    def _ask_agent(self, operation: m.DecisionAsked) -> None:
        """Let the agent think about it for a while."""
        first = first_cause(operation.reports)
        name = first.node_id if first is not None else ""
        self.world.checks.said(self.net.now_s, self.incarnation, f"is asked, and blames {name}")
        answer = self._word(f"{name} failed", evidence=name, question=operation.question)
        self._soon(self.rng.uniform(0, self.world.scenario.thought_s), lambda: self._intend(answer))

    def _word(self, reason: str, *, evidence: str = "", question: str = "", final: bool = False) -> m.PublishDecision:
        stops = final or self.rng.random() < self.world.scenario.fatal
        decision = Stop(reason=reason, rule=question) if stops else Restart(delay_s=0.5, rule=question, reason=reason)
        failure = self._failure()
        return m.PublishDecision(failure=failure, decision=decision, evidence=evidence, question=question)

    def _alone(self, *, final: bool) -> None:
        word = self._word(f"{self.incarnation} decided alone", final=final)
        self._intend(word)
        over = isinstance(word.decision, Stop)
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
        self._intend(m.OrderStop(failure=self._failure(), report=self._report(final=False)))
        if self._round is not None:
            self.world.stop_posted(self, self._round)

    def trains(self, round_: RoundDocument) -> bool:
        """Return whether workers of this round run here, and nobody has said that they shall not."""
        here = self.workers is not None and self.state.want is Want.RUN
        return self.live and not self.paused and here and self._round == round_

    def finish(self, within_s: float) -> None:
        """Let its workers end well."""
        turn = self._round_turn

        def first() -> None:
            if turn == self._round_turn and self.workers is not None:
                self._intend(m.ReportFinishing())

        def last() -> None:
            if turn == self._round_turn and self.workers is not None and self.state.want is Want.RUN:
                self.world.checks.finished(self.incarnation, self.workers)
                self.workers = None
                self._intend(m.ReportDone())

        self._soon(within_s / 2, first)
        self._soon(within_s, last)

    def depart(self) -> None:
        """Tell the agent to stop."""
        if not self.live:
            return
        self._departing = True
        self._soon(0.0, lambda: self._intend(m.AnnounceDeparture()))
        if self.state.want is Want.RUN:
            self._hold(LONGEST_GRACE_S, self._kill)
        self._soon(self.rng.uniform(0, LONGEST_GRACE_S), self._depart_at_last)

    def _depart_at_last(self) -> None:
        self._kill()
        self._end("departed")
        self._intend(m.LeaveRendezvous(close=False))

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
        """Say that no worker is left, then give the seat back, as the guard's last act does."""
        self._kill()
        seat = self.state.lease.seat
        if seat is None:
            return
        record = encode(replace(record_of(self.state, self.local_s), state="gone"))
        held = [seat]

        def tell(store: StoreModel, now_s: float) -> None:
            store.withdraw(seat, now_s=now_s)
            held[0] = store.enlist(record, incarnation=self.incarnation, ttl_s=5.0, now_s=now_s)

        self.net.send(self.line, tell, lambda _: None)
        self.net.after(
            1.0,
            lambda: self.net.send(self.line, lambda store, now_s: store.withdraw(held[0], now_s=now_s), lambda _: None),
        )

    def _leave(self) -> None:
        self._end("left")
        self._kill()
