"""A member's rounds as an agent of ours has them: requests in, events out, one thread that is not the loop's."""

import threading
import time
from types import SimpleNamespace

import pytest
from msgspec.structs import replace

from elastic_core import messages as m
from elastic_core.launcher.agent_side import open_rendezvous
from elastic_core.plugin_faults import Fault, PluginLabel, described
from elastic_core.rendezvous.coordinated import CoordinatedRendezvous
from elastic_core.rendezvous.shell.member_rounds import MemberRounds
from elastic_core.reports import NodeReport
from elastic_core.system.reactor import Reactor, Timer
from elastic_core.types import Decided, Restart, Round, RoundEnded, Stop, StopOrdered, Undecided
from elastic_plugin_kit import ManualClock, MemoryServer, MemoryStore, rendezvous_settings, sample_failure
from patience import kept, slowness
from support import wait_for

LEASE_S = 0.9 * min(3.0, slowness())
"""Of the nodes: one that gets no turn for so long is lost."""
MACHINE = (m.RoundFormed, m.RendezvousFailed, m.RoundChanged, m.RendezvousLeft)


class Node:
    """An agent, as far as its rendezvous has one."""

    def __init__(self, reactor, server, name, *, cls=MemoryStore, nodes=(1, 1), **settings):
        options = {"lease_ttl": LEASE_S, "last_call_timeout": 0.1, "connect_timeout": 20.0}
        self.settings = rendezvous_settings(run_id="bert", options=options)
        self.settings = replace(self.settings, node_id=name, min_nodes=nodes[0], max_nodes=nodes[1], **settings)
        self.post, self.call_later, self.turned_s = reactor.post, reactor.call_later, reactor.now_s
        self.events, self.ports = [], [4711]
        self.backend = PluginLabel("backend", "memory")
        self.raised = lambda operation, error: Fault(f"{operation} raised {described(error)}", again=False)
        self.rounds = open_rendezvous(CoordinatedRendezvous(cls(self.settings, server=server), self.settings), self)

    def ask(self, *requests):
        for request in requests:
            self.rounds.post(request)

    def take(self, event):
        self.events.append(event)
        if isinstance(event, m.DecisionAsked):
            failure = next(report.failure for report in event.reports if report.failure is not None)
            self.ask(
                m.PublishDecision(decision=Restart(rule="r"), failure=failure, evidence="", question=event.question)
            )

    def reserve_port(self, done):
        done(self.ports[0])

    def form(self, info, done):
        round_ = Round(
            index=info.index, token=info.round_token, nonce=info.nonce, node_rank=info.rank,
            node_count=info.world_size, local_world_size=1, base_rank=info.rank, world_size=info.world_size,
            role="default", role_base_rank=0, role_world_size=info.world_size, master_addr=info.master_addr,
            master_port=info.master_port,
        )  # fmt: skip
        done(m.RoundFormed(round=round_, members=info.members))

    @property
    def machine(self):
        return [event for event in self.events if isinstance(event, MACHINE)]

    @property
    def last(self):
        return next(reversed(self.machine), None)


@pytest.fixture
def meet():
    reactor, server, nodes = Reactor(), MemoryServer(), []

    class Meeting:
        stop = staticmethod(server.stop)
        start = staticmethod(server.start)

        @staticmethod
        def node(name="a", **more):
            nodes.append(Node(reactor, server, name, **more))
            return nodes[-1]

        @staticmethod
        def until(condition, within_s=10.0):
            def turn():
                reactor.turn(0.01)
                return condition()

            wait_for(turn, within_s=within_s)

    yield Meeting
    server.start()
    for node in nodes:
        node.ask(m.LeaveRendezvous(close=False))
        Meeting.until(lambda node=node: m.RendezvousLeft() in node.events)
    reactor.close()


def joined(meet, *nodes):
    for node in nodes:
        node.ask(m.JoinRendezvous())
    for node in nodes:
        meet.until(lambda node=node: any(isinstance(event, m.RoundFormed) for event in node.events))
        node.ask(m.WatchRound())
    return [next(event.round for event in node.events if isinstance(event, m.RoundFormed)) for node in nodes]


def test_a_round_is_formed_after_its_fence_and_with_the_port_held(meet):
    a = meet.node()
    (round_,) = joined(meet, a)
    assert (round_.index, round_.master_port) == (0, 4711)
    (formed,) = (event for event in a.events if isinstance(event, m.RoundFormed))
    assert [(member.node_id, member.local_world_size) for member in formed.members] == [("a", 1)]
    kinds = [type(event) for event in a.events]
    assert m.SeatHeld in kinds
    assert kinds.index(m.Fenced) < kinds.index(m.RoundFormed)


def test_nothing_but_a_moved_fence_wakes_the_loop_of_an_idle_node(meet):
    a = meet.node()
    joined(meet, a)
    run, post = [], a.post
    a.post = lambda callback: post(lambda: (run.append(callback), callback()))
    meet.until(lambda: run and isinstance(a.events[-1], m.Fenced))  # all that came before has been taken
    a.events.clear()
    run.clear()
    meet.until(lambda: len(a.events) >= 3)
    assert {type(event) for event in a.events} == {m.Fenced}
    assert len(run) == len(a.events)


def test_the_fence_moves_while_a_node_waits_for_its_next_round(meet):
    """It may have kept workers, which the guard ends if the fence passes."""
    a, b = meet.node("a", nodes=(2, 2)), meet.node("b", nodes=(2, 2))
    joined(meet, a, b)
    b.ask(m.LeaveRendezvous(close=False))
    meet.until(lambda: any(isinstance(event, m.RoundChanged) for event in a.events))
    a.events.clear()
    a.ask(m.JoinRendezvous())
    meet.until(lambda: len(fences_of(a)) >= 3)
    assert fences_of(a) == sorted({*fences_of(a)})


def fences_of(node):
    return [event.until_s for event in node.events if isinstance(event, m.Fenced)]


@pytest.mark.parametrize(("cut_s", "delay_s"), [(float("inf"), 2.4), (101.5, 1.5), (100.5, 1.0), (99.0, 1.0)])
def test_store_calls_are_looked_at_in_time_for_the_cut(cut_s, delay_s):
    asked = []
    agent = SimpleNamespace(call_later=lambda delay_s, callback: asked.append(delay_s), turned_s=None)
    settings = rendezvous_settings(run_id="bert")
    rounds = MemberRounds(MemoryStore(settings, server=MemoryServer()), settings, agent, clock=ManualClock(100.0))
    rounds.driver = SimpleNamespace(stops_s=(cut_s, cut_s + 1.0), ttl_s=6.0, call=None)
    rounds._look_later()
    assert asked == [pytest.approx(delay_s)]


def test_a_moved_fence_puts_off_the_look_at_the_store_call():
    timers, taken = [], []

    def call_later(delay_s, callback):
        timers.append(Timer(callback))
        return timers[-1]

    agent = SimpleNamespace(call_later=call_later, take=taken.append, turned_s=None)
    settings = rendezvous_settings(run_id="bert")
    rounds = MemberRounds(MemoryStore(settings, server=MemoryServer()), settings, agent, clock=ManualClock(100.0))
    rounds._look_later()
    for until_s in (104.0, 106.0):
        rounds._take(m.Fenced(until_s=until_s))
    assert [timer.callback for timer in timers] == [None, None, rounds._look]
    assert [event.until_s for event in taken] == [104.0, 106.0]


def test_a_failure_stops_all_one_decides_and_all_hear_of_it(meet):
    a, b = meet.node("a", nodes=(2, 2)), meet.node("b", nodes=(2, 2))
    joined(meet, a, b)
    report = NodeReport(node_id="b", failure=sample_failure(), age_s=0.1, failed_count=1)
    b.ask(m.OrderStop(failure=sample_failure(), report=report))
    meet.until(lambda: any(isinstance(event, m.RoundChanged) for event in a.events))
    assert isinstance(a.last.change, StopOrdered)
    a.ask(NodeReport(node_id="a", stopped_count=1, final=True), m.WatchRound())
    b.ask(replace(report, final=True))
    for node in (a, b):
        meet.until(lambda node=node: isinstance(getattr(node.last, "change", None), Decided))
        assert node.last.change.decision == Restart(rule="r")


def test_what_changes_is_kept_until_it_is_asked_for(meet):
    a = meet.node()
    joined(meet, a)
    a.ask(m.PublishDecision(decision=Stop(reason="no use"), failure=sample_failure()))
    meet.until(lambda: isinstance(a.last, m.RoundChanged))
    b = meet.node("b", nodes=(1, 2))
    a.ask(m.ReportDone())
    meet.until(lambda: True)
    assert len(a.machine) == 2
    b.ask(m.JoinRendezvous())
    meet.until(lambda: any(isinstance(event, m.RendezvousFailed) for event in b.events))
    assert "no use" in b.last.summary
    assert b.rounds.error is not None


def test_a_join_that_is_given_up_says_nothing_and_leaving_is_prompt(meet):
    a = meet.node(nodes=(2, 2))
    a.ask(m.JoinRendezvous())
    meet.until(lambda: any(isinstance(event, m.SeatHeld) for event in a.events))
    before_s = time.monotonic()
    a.ask(m.CancelRendezvous(), m.LeaveRendezvous(close=False))
    meet.until(lambda: m.RendezvousLeft() in a.events)
    kept(time.monotonic() - before_s, 0.1)
    assert a.machine == [m.RendezvousLeft()]


def test_leaving_does_not_wait_for_a_store_that_is_away(meet):
    a = meet.node()
    joined(meet, a)
    meet.stop()
    a.ask(m.LeaveRendezvous(close=False))
    meet.until(lambda: m.RendezvousLeft() in a.events, within_s=3.0)


class Broken(MemoryStore):
    """Fails when somebody looks."""

    broken = False

    def renew(self, *args, **kwargs):
        if self.broken:
            raise ZeroDivisionError("a defect")
        return super().renew(*args, **kwargs)


def test_a_driver_that_has_ended_ends_the_round_and_leaves_what_was_stopped_to_the_agent(meet, monkeypatch):
    a = meet.node(cls=Broken)
    joined(meet, a)
    monkeypatch.setattr(Broken, "broken", True)
    meet.until(lambda: isinstance(a.last, m.RoundChanged))
    assert a.last.change == RoundEnded(reason="renew raised ZeroDivisionError: a defect")
    a.ask(m.OrderStop(failure=sample_failure(), report=NodeReport(node_id="a")), m.WatchRound())
    assert isinstance(a.last.change, Undecided)
    assert a.last.change.final
    a.ask(m.JoinRendezvous())
    assert isinstance(a.last, m.RendezvousFailed)


def test_one_thread_and_none_before_the_first_join(meet):
    before = set(threading.enumerate())  # one of a test before this one may not have ended yet
    a = meet.node()
    assert before.issuperset(threading.enumerate())
    joined(meet, a)
    names = {thread.name for thread in set(threading.enumerate()) - before}
    assert {"elastic-member", "elastic-peers"} <= names
    assert "elastic-rendezvous" not in names


def test_a_newcomer_ends_the_round(meet):
    a = meet.node("a", nodes=(1, 2))
    joined(meet, a)
    b = meet.node("b", nodes=(1, 2))
    b.ask(m.JoinRendezvous())
    meet.until(lambda: isinstance(a.last, m.RoundChanged))
    assert isinstance(a.last.change, RoundEnded)
    a.ask(m.JoinRendezvous())
    meet.until(lambda: isinstance(a.last, m.RoundFormed) and isinstance(b.last, m.RoundFormed))
    assert a.last.round.world_size == 2
