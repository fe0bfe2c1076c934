"""Members on a store, in one process: what reaches the agent, and what it is asked to do."""

import threading

import pytest
from msgspec.structs import replace

from elastic_core import messages as m
from elastic_core.errors import (
    BackendRefusedError,
    BackendUnavailableError,
    RendezvousClosedError,
    RendezvousConnectionError,
    RendezvousError,
    RendezvousGracefulExitError,
    RendezvousStateError,
    RendezvousTimeoutError,
)
from elastic_core.rendezvous.member.protocol import PeerAsked
from elastic_core.reports import NodeReport
from elastic_core.system.clock import SYSTEM_CLOCK
from elastic_core.types import Decided, Restart, RoundEnded, Stop, StopOrdered, Undecided
from elastic_plugin_kit import MemoryServer, MemoryStore, rendezvous_settings, sample_failure
from member_kit import Member
from patience import patience, slowness
from support import wait_for

LEASE_S = 0.9 * min(3.0, slowness())
"""Of the nodes: one that gets no turn for so long is lost."""


class Shifted:
    """The server's clock, which a test puts forward, or stops: then it moves by that alone."""

    def __init__(self):
        self.by_s, self.stopped_s = 0.0, None

    def stop(self):
        self.stopped_s = SYSTEM_CLOCK.monotonic_s()

    def monotonic_s(self):
        return (SYSTEM_CLOCK.monotonic_s() if self.stopped_s is None else self.stopped_s) + self.by_s


@pytest.fixture
def clock():
    return Shifted()


@pytest.fixture
def server(clock):
    return MemoryServer(clock=clock)


@pytest.fixture
def node(server):
    nodes = []

    def make(node_id="a", *, nnodes=(1, 1), cls=MemoryStore, **settings):
        options = {"lease_ttl": LEASE_S, "last_call_timeout": 0.1, "join_timeout": 20.0, "connect_timeout": 20.0}
        options |= settings.pop("options", {})
        settings |= {"node_id": node_id, "min_nodes": nnodes[0], "max_nodes": nnodes[1]}
        own = replace(rendezvous_settings(run_id="bert", options=options), **settings)
        nodes.append(Member(cls(own, server=server), own))
        return nodes[-1]

    yield make
    server.start()
    for made in nodes:
        made.shutdown()


def together(*nodes):
    """Join all at once; return their places by node id."""
    places, errors = {}, []

    def join(one):
        try:
            places[one.settings.node_id] = one.join()
        except Exception as err:  # noqa: BLE001  # told by the assertion below
            errors.append(err)

    threads = [threading.Thread(target=join, args=(one,)) for one in nodes]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(patience(20))
    assert not errors, errors
    return places


def test_one_node_is_a_round(node):
    info = node(local_world_size=3).join()
    assert (info.rank, info.world_size, info.index, info.restart_count, info.membership_changes) == (0, 1, 0, 0, 0)
    assert (info.master_addr, info.master_port) == ("127.0.0.1", 4711)
    assert [member.local_world_size for member in info.members] == [3]


def test_nodes_agree_and_hear_of_a_decision(node):
    a, b = node("a", nnodes=(2, 2)), node("b", nnodes=(2, 2))
    places = together(a, b)
    assert {info.rank for info in places.values()} == {0, 1}
    assert places["a"].members == places["b"].members
    failure = sample_failure()
    b.publish(Restart(delay_s=0.25, rule="r"), failure)
    for one in (a, b):
        assert one.watch() == Decided(decision=Restart(delay_s=0.25, rule="r"), failure=failure)
    again = together(a, b)
    assert {info.restart_count for info in again.values()} == {1}
    assert {info.index for info in again.values()} == {1}
    assert again["a"].history[0].summary == failure.summary
    assert again["a"].rank == places["a"].rank


def test_the_first_of_two_decisions_stands(node):
    a, b = node("a", nnodes=(2, 2)), node("b", nnodes=(2, 2))
    together(a, b)
    a.publish(Restart(rule="from a"), sample_failure())
    b.publish(Stop(reason="from b"), sample_failure())
    first, second = a.watch(), b.watch()
    assert first == second


def test_the_verdict_is_told_to_latecomers(node):
    a = node("a")
    a.join()
    a.publish(Stop(reason="no use"), replace(sample_failure(), exit_code=7))
    assert isinstance(a.watch().decision, Stop)
    with pytest.raises(RendezvousClosedError, match="no use") as told:
        node("late").join()
    assert told.value.exit_code == 7
    a.shutdown()
    assert node("a").join().index == 0  # who was there begins the run again


def test_done_when_all_are(node):
    a, b = node("a", nnodes=(2, 2)), node("b", nnodes=(2, 2))
    together(a, b)
    a.ask(m.ReportDone())
    b.ask(m.ReportFinishing())
    b.ask(m.ReportDone())
    for one in (a, b):
        assert one.watch().decision.outcome == "done"
    assert a.rounds.driver.control.verdict is not None


def test_a_newcomer_ends_the_round_and_joins_the_next(node):
    a, b = node("a", nnodes=(1, 2)), node("b", nnodes=(1, 2))
    assert a.join().world_size == 1
    joining = threading.Thread(target=lambda: together(b))
    joining.start()
    change = a.watch()
    assert isinstance(change, RoundEnded)
    assert change.arrived == 1
    assert a.join().world_size == 2
    joining.join(patience(10))


def test_a_surplus_node_beyond_the_spares_is_not_needed(node):
    node("a").join()
    with pytest.raises(RendezvousGracefulExitError, match="not needed"):
        node("b", spares=0).join()


def test_another_command_line_is_refused(node):
    node("a", fingerprint={"nproc": "4"}).join()
    with pytest.raises(RendezvousError, match=r"--nproc-per-node.*Try: .*--allow-mismatch nproc"):
        node("b", fingerprint={"nproc": "8"}).join()


def test_a_lower_attempt_is_refused_and_a_higher_one_takes_over(node):
    a = node("a", attempt=1)
    a.join()
    with pytest.raises(RendezvousError, match="attempt 1"):
        node("b", attempt=0).join()
    c = node("c", attempt=2)
    joining = threading.Thread(target=lambda: together(c))
    joining.start()
    assert "attempt 2" in a.watch().decision.reason
    a.shutdown()
    joining.join(patience(10))
    assert not joining.is_alive()


def test_too_few_nodes_are_named(node):
    limit_s = round(patience(0.4), 1)  # time to join in, before it is over
    lonely = node("lonely", nnodes=(3, 3), options={"join_timeout": limit_s})
    told = rf"1 of at least 3 nodes joined \(lonely\) within {limit_s:g} s, 2 miss"
    with pytest.raises(RendezvousTimeoutError, match=told):
        lonely.join()


def test_a_server_that_is_not_there(node, server):
    server.stop()
    with pytest.raises(RendezvousConnectionError, match=r"could not be reached within 0.3 s"):
        node(options={"connect_timeout": 0.3}).join()


class Refusing(MemoryStore):
    def enlist(self, *args, **kwargs):
        raise BackendRefusedError("memory refuses the password", hint="another one")


class Broken(MemoryStore):
    def members(self, *args, **kwargs):
        raise ZeroDivisionError("a defect")


def test_a_refusal_is_final(node):
    with pytest.raises(RendezvousConnectionError, match=r"refuses the password\. Try: another one"):
        node(cls=Refusing).join()


def test_a_broken_store_is_one_clear_error(node):
    with pytest.raises(RendezvousStateError, match="ZeroDivisionError: a defect"):
        node(cls=Broken).join()


def test_a_cancelled_join_can_be_repeated(node):
    lonely = node("lonely", nnodes=(1, 2), options={"last_call_timeout": 0.8})
    lonely.ask(m.JoinRendezvous())
    wait_for(lambda: lonely.acts, what="the seat")
    lonely.ask(m.CancelRendezvous())
    assert lonely.join().world_size == 1


def test_an_outage_of_a_lone_node_is_two_lines(node, server):
    a = node("a")
    a.join()
    before = list(a.fences)
    server.stop()
    wait_for(lambda: any("store unreachable" in line for line in a.lines), what="the line")
    wait_for(lambda: a.fences[-1] > before[-1] + 1.5, what="a fence that moves on")
    server.start()
    wait_for(lambda: any("store back" in line for line in a.lines), what="the other line")
    assert len(a.lines) == 2
    assert a.watch(0.3) is None


def test_peers_that_do_not_reach_the_store_either_make_it_an_outage(node, server):
    both = [node(name, nnodes=(2, 2)) for name in "ab"]
    together(*both)
    fences = [one.fences[-1] for one in both]
    server.stop()
    for one, fence_s in zip(both, fences, strict=True):
        wait_for(lambda one=one, fence_s=fence_s: one.fences[-1] > fence_s + 1.5, what="fences that move on")
    server.start()
    for one in both:
        wait_for(lambda one=one: len(one.lines) == 2, what="two lines")
        assert "store unreachable" in one.lines[0]
        assert "store back" in one.lines[1]
    assert both[0].watch(LEASE_S + 0.3) is None


class Cut(MemoryStore):
    """A client whose way to the server is cut for itself alone."""

    cut = False

    def renew(self, *args, **kwargs):
        if self.cut:
            raise BackendUnavailableError("no way to the server")
        return super().renew(*args, **kwargs)

    def watch(self, *args, **kwargs):
        if self.cut:
            raise BackendUnavailableError("no way to the server")
        return super().watch(*args, **kwargs)


def test_a_node_whose_peers_reach_the_store_is_cut_off(node, monkeypatch):
    a, b = node("a", nnodes=(2, 2)), node("b", nnodes=(2, 2), cls=Cut)
    together(a, b)
    monkeypatch.setattr(Cut, "cut", True)
    change = b.watch()
    assert isinstance(change, RoundEnded)
    assert "cut off" in change.reason
    assert change.stop_within_s < LEASE_S
    told = a.watch()
    assert isinstance(told, RoundEnded)
    assert told.lost == ("b",)


def test_a_stuck_loop_loses_its_lease(node):
    lease_s = 2 * LEASE_S  # of which a quarter is left when the round ends: a busy machine may be late by that
    a = node("a", options={"lease_ttl": lease_s})
    a.join()
    a.turns = False
    assert isinstance(a.watch(), RoundEnded)
    assert a.changed_s < a.fences[-1] < a.changed_s + lease_s


def test_the_guard_is_told_of_the_seat(node):
    a = node("a")
    a.join()
    store, seat = a.acts[0]
    assert store.endswith(":MemoryStore")
    assert b'"number"' in seat
    a.shutdown()
    assert a.acts[-1] == ("", b"")


# --- one decision on the evidence of all


def report(node_id, failure=None, **more):
    return NodeReport(node_id=node_id, failure=failure, **more)


@pytest.fixture
def stopped(node):
    """Return two nodes that have stopped for a failure of b's worker, a leading, and told what they saw."""
    grace_s = patience(0.8)  # a store that is back within it was hardly away
    a, b = (node(name, nnodes=(2, 2), store_outage_grace_s=grace_s) for name in "ab")
    joining = threading.Thread(target=lambda: a.join())
    joining.start()
    wait_for(lambda: a.acts, what="a to have the first seat")
    b.join()
    joining.join(patience(10))
    b.order_stop("exit code 7", report("b", sample_failure(), age_s=0.1))
    assert a.watch() == StopOrdered(reason="exit code 7", by="b")
    return a, b


def all_said(a, b):
    b.report_stopped(report("b", sample_failure(), age_s=0.1, final=True))
    a.report_stopped(report("a", final=True))


def test_the_leader_is_asked_once_and_all_hear_what_it_decides(stopped):
    a, b = stopped
    all_said(a, b)
    wait_for(lambda: a.questions, what="the question")
    asked = a.questions[0]
    assert {one.node_id: one.failure is not None for one in asked.reports} == {"a": False, "b": True}
    assert asked.history == ()
    a.answer(Restart(rule="r"), sample_failure(), "all that is known", question=asked.question)
    for one in (a, b):
        change = one.watch()
        assert (change.decision, change.evidence) == (Restart(rule="r"), "all that is known")
    places = together(a, b)
    assert {info.restart_count for info in places.values()} == {1}
    assert (len(a.questions), b.questions) == (1, [])


def test_a_leader_that_does_not_answer_is_replaced(stopped):
    a, b = stopped
    all_said(a, b)
    wait_for(lambda: b.questions, what="the next one to be asked")
    failure, question = replace(sample_failure(), exit_code=7), b.questions[0].question
    b.answer(Stop(reason="no budget"), failure, "evidence of b's", question=question)
    assert b.watch().evidence == "evidence of b's"
    a.answer(Restart(), sample_failure(), "evidence of a's, too late", question=question)
    assert a.watch().evidence == "evidence of b's"


def test_a_node_that_leaves_after_the_stop_is_no_failure_of_those_that_lost_it(stopped):
    a, b = stopped
    a.shutdown()
    b.report_stopped(report("b", sample_failure(), collateral=True, final=True))
    # The order had it that b failed by itself, and what b says now counts.
    change = b.watch()
    assert isinstance(change, RoundEnded)
    assert change.lost == ("a",)


def test_nobody_waits_for_a_store_that_stays_away(stopped, server):
    a, b = stopped
    server.stop()
    all_said(a, b)
    for one in (a, b):
        change = one.watch()
        assert isinstance(change, Undecided)
        assert not change.final


def test_a_store_that_is_back_in_time_has_it_decided(stopped, server):
    a, b = stopped
    server.stop()
    all_said(a, b)
    server.start()
    wait_for(lambda: a.questions or b.questions, what="the question")


def test_a_verdict_that_a_node_came_to_alone_is_told_when_the_store_is_back_before_it_is_gone(stopped, server):
    a, b = stopped
    server.stop()
    all_said(a, b)
    assert isinstance(b.watch(), Undecided)
    b.publish(Stop(reason="decided alone"), replace(sample_failure(), exit_code=7))
    leaving = threading.Thread(target=b.shutdown)
    leaving.start()
    server.start()
    leaving.join(patience(10))
    changes = [a.watch()]
    if isinstance(changes[0], Undecided):
        changes.append(a.watch())
    assert changes[-1].decision.reason == "decided alone"


# --- which run is this


def end(one, decision=None, exit_code=7):
    one.join()
    one.publish(decision or Stop(reason="no use"), replace(sample_failure(), exit_code=exit_code))
    assert isinstance(one.watch().decision, Stop)
    one.shutdown()


@pytest.mark.parametrize("outcome", ["failed", "done"])
def test_a_verdict_answers_latecomers_for_a_minute(node, clock, outcome):
    clock.stop()
    end(node("a"), Stop(reason="no use", outcome=outcome))
    with pytest.raises(RendezvousClosedError) as told:
        node("late").join()
    assert "nothing was started on this node" in str(told.value)
    assert " 0 s ago" in str(told.value)
    assert "the same line in 60 s" in str(told.value)
    clock.by_s += 61
    assert node("next").join().index == 0


def test_who_asks_again_and_again_does_not_keep_a_verdict(node, clock):
    clock.stop()
    end(node("a"))
    for n in range(3):
        with pytest.raises(RendezvousClosedError, match=f" {n * 25} s ago"):
            node(f"late{n}").join()
        clock.by_s += 25
    assert node("next").join().index == 0


@pytest.mark.parametrize(("outcome", "keep_s"), [("failed", 600), ("done", 24 * 3600)])
def test_a_verdict_answers_the_same_attempt_for_longer(node, clock, outcome, keep_s):
    slurm = {"attempt_given": True, "job": "slurm 7"}
    end(node("a", **slurm), Stop(reason="no use", outcome=outcome))
    clock.by_s += keep_s - 30
    with pytest.raises(RendezvousClosedError) as told:
        node("late", **slurm).join()
    assert "the same line" not in str(told.value)
    clock.by_s += 31
    assert node("later", **slurm).join().index == 0


def test_a_verdict_is_nothing_to_another_job(node):
    end(node("a", attempt_given=True, job="slurm 7"))
    assert node("b", attempt_given=True, job="slurm 8").join().index == 0


def test_a_node_of_another_job_joins_a_run_that_goes_on(node):
    a, b = node("a", nnodes=(1, 2), job="slurm 7", attempt=2), node("b", nnodes=(1, 2), job="slurm 8")
    a.join()
    joining = threading.Thread(target=lambda: together(b))
    joining.start()
    assert isinstance(a.watch(), RoundEnded)
    assert a.join().world_size == 2
    joining.join(patience(10))


def cut(one, reach):
    """Let an agent be without its store until `reach` is set."""
    driver = one.rounds.driver
    perform = driver._perform
    driver._perform = lambda operation: (reach.wait(), perform(operation))[1]
    driver.post(PeerAsked(token=0, nonce="", needs=False))  # ends the wait that is under way


@pytest.fixture
def reach():
    event = threading.Event()
    yield event
    event.set()


LEASES = {"lease_ttl": 3.0, "last_call_timeout": 1.0}


def test_a_run_whose_nodes_are_dead_is_begun_anew_whatever_it_was(node, clock, reach):
    a = node("a", fingerprint={"nproc": "4"}, attempt=3, store_outage_grace_s=1.0)
    a.join()
    a.publish(Restart(rule="r"), sample_failure())
    a.watch()
    assert a.join().restart_count == 1
    cut(a, reach)
    a.rounds.driver._peers.close()  # else it answers that it has workers
    clock.by_s += 3600
    b = node("b", fingerprint={"nproc": "8"})
    info = b.join()
    assert (info.index, info.restart_count, info.history) == (0, 0, ())
    said = "has no live node: a new run begins in "
    assert any(said in line for line in b.lines)


def told_that_it_ended(one):
    with pytest.raises(RendezvousError):
        one.join(60.0)


def test_a_newcomer_waits_for_members_whose_leases_ended_while_the_store_was_away(node, clock, reach):
    """It reaches the store first, and finds nobody alive."""
    a = node("a", options=LEASES)
    a.join()
    cut(a, reach)
    clock.by_s += 3600
    b = node("b", options={**LEASES, "join_timeout": 60.0})
    waiting = threading.Thread(target=told_that_it_ended, args=(b,))
    waiting.start()
    wait_for(lambda: any("has no live node" in line for line in b.lines), what="b at the door")
    reach.set()
    wait_for(lambda: b.rounds.driver.control is not None, what="b in a run")
    assert b.rounds.driver.control.epoch == a.rounds.driver.control.epoch
    b.shutdown()
    waiting.join(patience(10))
