"""The rendezvous thread: answers, failures, cancellation, and handlers that nobody can wake."""

import threading

import pytest

from elastic_core import messages as m
from elastic_core.errors import RendezvousClosedError, RendezvousGracefulExitError, RendezvousTimeoutError
from elastic_core.plugin_faults import Fault, PluginLabel, described
from elastic_core.rendezvous.blocking import CANCEL_GRACE_S, HandlerThread
from elastic_core.rendezvous.handler import RendezvousHandler
from elastic_core.system.reactor import Reactor
from elastic_core.types import Capability, NodesWaiting, RendezvousInfo, RendezvousSettings, Restart, Round
from elastic_plugin_kit import sample_failure
from patience import kept
from support import wait_for

FAILURE = sample_failure()


class Scripted(RendezvousHandler):
    """Does what the test says."""

    api_version = 1

    def __init__(self, join=None, waiting=()):
        super().__init__(
            RendezvousSettings(
                backend="scripted", run_id="r", endpoint="", min_nodes=1, max_nodes=1, local_world_size=1,
                monitor_interval_s=0.01,
            )
        )  # fmt: skip
        self.join = join or (lambda: RendezvousInfo(rank=0, world_size=1))
        self.waiting = list(waiting)
        self.calls = []

    def next_rendezvous(self):
        return self.join()

    def num_nodes_waiting(self):
        value = self.waiting.pop(0) if self.waiting else 0
        if isinstance(value, Exception):
            raise value
        return value

    def set_closed(self):
        self.calls.append("set_closed")

    def shutdown(self):
        self.calls.append("shutdown")
        return True


def resolve(info, wait):
    round_ = Round(
        index=3, token=1, nonce="", node_rank=info.rank, node_count=1, local_world_size=1, base_rank=0,
        world_size=1, role="default", role_base_rank=0, role_world_size=1, master_addr="h", master_port=1,
    )  # fmt: skip
    return m.RoundFormed(round=round_)


@pytest.fixture
def reactor():
    reactor = Reactor()
    yield reactor
    reactor.close()


@pytest.fixture
def run(reactor):
    begun = []

    class Run:
        """An agent, as far as a handler has one."""

        def __init__(self, handler):
            self.events, self.notices = [], []
            self.post, self.call_later, self.resolve = reactor.post, reactor.call_later, resolve
            self.backend = PluginLabel("backend", "scripted", "acme 1.0")
            self.thread = HandlerThread(handler, self)
            begun.append(self)

        def take(self, event):
            if isinstance(event, m.PrintLine):
                self.notices.append(event.text)
            else:
                self.events.append(event)

        def raised(self, operation, error, fate=""):
            return Fault(f"{operation} of backend 'scripted' raised {described(error)}{fate}", again=False)

        def ask(self, *requests):
            for request in requests:
                self.thread.post(request)

        def until(self, condition):
            def turn():
                reactor.turn(0.01)
                return condition()

            return wait_for(turn, within_s=5)

    yield Run
    for it in begun:  # a watch is asked again and again by a thread that nobody ends
        it.ask(m.LeaveRendezvous(close=False))


def test_join_gives_a_round_and_leave_closes(run):
    handler = Scripted()
    it = run(handler)
    it.ask(m.JoinRendezvous())
    it.until(lambda: it.events)
    assert it.events[0].round.index == 3
    it.ask(m.LeaveRendezvous(close=True))
    it.until(lambda: len(it.events) == 2)
    assert it.events[1] == m.RendezvousLeft()
    assert handler.calls == ["set_closed", "shutdown"]


@pytest.mark.parametrize(
    ("error", "code", "text"),
    [
        (RendezvousTimeoutError("2 of 4 nodes came", hint="more nodes"), 4, "2 of 4 nodes came. Try: more nodes"),
        (RendezvousClosedError("the run is over"), 4, "the run is over"),
        (RendezvousGracefulExitError("this spare was not needed"), 0, "this spare was not needed"),
        (ZeroDivisionError("oops"), 4, "next_rendezvous of backend 'scripted' raised ZeroDivisionError: oops"),
    ],
)
def test_failures_become_events(run, error, code, text):
    def join():
        raise error

    it = run(Scripted(join))
    it.ask(m.JoinRendezvous())
    it.until(lambda: it.events)
    assert it.events == [m.RendezvousFailed(summary=text, exit_code=code)]


def test_cancelled_join_ends_at_once_and_says_nothing(run):
    handler = Scripted()
    handler.join = lambda: handler.wait.sleep(60)
    it = run(handler)
    it.ask(m.JoinRendezvous())
    it.ask(m.CancelRendezvous())
    it.ask(m.LeaveRendezvous(close=False))
    it.until(lambda: it.events)
    assert it.events == [m.RendezvousLeft()]
    assert handler.calls == ["shutdown"]


def test_handler_that_nobody_can_wake_is_left_behind(run, reactor):
    release = threading.Event()
    it = run(Scripted(lambda: release.wait(30)))
    it.ask(m.JoinRendezvous())
    wait_for(lambda: it.thread._busy)
    before_s = reactor.now_s()
    it.ask(m.LeaveRendezvous(close=False))
    it.until(lambda: it.events)
    kept(reactor.now_s() - before_s, CANCEL_GRACE_S + 2)
    release.set()
    assert it.events == [m.RendezvousLeft()]


def test_watch_reports_waiting_nodes_once_for_each_watch(run):
    it = run(Scripted(waiting=[0, 0, 2, 1]))
    it.ask(m.JoinRendezvous())
    it.until(lambda: it.events)
    it.ask(m.WatchRound())
    it.ask(m.WatchRound())
    it.until(lambda: len(it.events) == 2)
    assert it.events[1] == m.RoundChanged(change=NodesWaiting(count=2))
    it.ask(m.WatchRound(delay_s=0.01))
    it.until(lambda: len(it.events) == 3)
    assert it.events[2] == m.RoundChanged(change=NodesWaiting(count=1))


def test_watch_that_raises_is_told_once_and_tried_again(run):
    it = run(Scripted(waiting=[OSError("gone"), 5]))
    it.ask(m.JoinRendezvous())
    it.ask(m.WatchRound())
    it.until(lambda: len(it.events) == 2)
    assert it.events[1] == m.RoundChanged(change=NodesWaiting(count=5))
    assert it.notices == ["watch of backend 'scripted' raised OSError: gone; the workers go on, it is called again"]


def test_leaving_may_take_longer_than_an_earlier_call_that_is_stuck(run, reactor):
    release = threading.Event()
    handler = Scripted()
    handler.shutdown = lambda: release.wait(30)
    it = run(handler)
    it.ask(m.JoinRendezvous())
    it.until(lambda: it.events)
    it.ask(m.LeaveRendezvous(close=False))
    reactor.call_later(3 * CANCEL_GRACE_S, release.set)
    it.until(lambda: len(it.events) == 2)
    assert release.is_set()
    assert it.events[1] == m.RendezvousLeft()


def test_words_for_the_run_reach_the_handler_and_its_errors_are_told(run):
    said = []

    class Deciding(Scripted):
        capabilities = frozenset({Capability.CONTROL})

        def publish(self, decision, failure):
            said.append((decision, failure))

        def report_finishing(self):
            said.append("finishing")

        def report_done(self):
            said.append("done")

        def announce_departure(self):
            raise OSError("gone")

    assert not run(Scripted()).thread.control
    it = run(Deciding())
    assert it.thread.control
    it.ask(m.PublishDecision(decision=Restart(), failure=FAILURE))
    it.ask(m.ReportFinishing(), m.ReportDone(), m.AnnounceDeparture())
    assert said == [(Restart(), FAILURE), "finishing", "done"]
    assert it.notices == ["announce_departure of backend 'scripted' raised OSError: gone"]


def test_leaving_before_any_join_still_releases_the_handler(run):
    handler = Scripted()
    it = run(handler)
    it.ask(m.LeaveRendezvous(close=False))
    assert it.events == [m.RendezvousLeft()]
    assert handler.calls == ["shutdown"]
