"""What the leader does about nodes that come and go while the first workers end."""

import pytest
from msgspec.structs import replace

from elastic_core.messages import DecisionAsked
from elastic_core.rendezvous.member import protocol
from elastic_core.rendezvous.member.announce import record_of
from elastic_core.rendezvous.member.documents import (
    ControlDocument,
    Ending,
    MemberRecord,
    RosterEntry,
    RoundDocument,
    StopOrder,
    encode,
)
from elastic_core.rendezvous.member.duty import LeaderMemory, View
from elastic_core.rendezvous.member.leader import GATHER_S, LOSS_MARGIN_S, judge
from elastic_core.rendezvous.member.machine import step
from elastic_core.rendezvous.member.observe import MEMBERS
from elastic_core.rendezvous.member.roster import Candidate
from elastic_core.rendezvous.member.state import (
    LeaderDuty,
    Me,
    OwnLease,
    OwnRun,
    RoundEnd,
    SeenStore,
    State,
    StoreConnection,
    Want,
)
from elastic_core.rendezvous.store import CONTROL_KEY, ROUND_KEY, Renewal, Revisions, Seat
from elastic_core.reports import NodeReport
from elastic_core.types import Failure, FailureClass

ROUND = RoundDocument(
    epoch="e",
    token=1,
    nonce="x",
    index=0,
    master_addr="h",
    master_port=1,
    roster=tuple(RosterEntry(incarnation=f"{n}#", node=n, address="h", agent_port=1) for n in "ab"),
)

CONTROL = ControlDocument(epoch="e", attempt=0, secret="s")


def member(seat, node, state, token=1, nonce="x", report=None):
    record = MemberRecord(epoch="e", node=node, state=state, seen=1, token=token, nonce=nonce, report=report)
    return Candidate(seat=seat, incarnation=f"{node}#", record=record)


def view(*members, control=CONTROL, incarnation="", now_s=0.0):
    return View(
        now_s=now_s,
        node="a",
        nonce="y",
        min_nodes=1,
        max_nodes=3,
        first_call_s=1.0,
        last_call_s=1.0,
        max_changes=None,
        control=control,
        incarnation=incarnation,
        round=ROUND,
        members=members,
    )


A, N = member(1, "a", "running"), member(3, "n", "ready", 0, "")


def test_a_newcomer_is_taken_in_while_all_workers_run():
    assert judge(view(A, member(2, "b", "running"), N), LeaderMemory()).duty.name.startswith("end ")


def test_nobody_is_taken_in_when_the_only_node_that_was_done_has_gone():
    first = judge(view(A, member(2, "b", "done")), LeaderMemory())
    assert first.duty is None
    later = judge(view(A, N), first.memory)
    assert later.duty is None
    assert later.why == "workers have begun to finish"


def test_a_leader_that_is_done_writes_it_down_for_its_successor():
    done, running = member(1, "a", "done"), member(2, "b", "running")
    duty = judge(view(done, running, incarnation="a#"), LeaderMemory()).duty
    noted = ControlDocument(epoch="e", attempt=0, secret="s", done_of="x", done=("a#",))
    assert duty.document == noted
    assert judge(view(done, running, control=noted, incarnation="a#"), LeaderMemory()).duty is None
    # It is gone, and whoever leads now never saw it done.
    assert judge(view(running, control=noted), LeaderMemory()).duty is None
    assert judge(view(member(2, "b", "done"), control=noted), LeaderMemory()).duty.name.startswith("verdict ")


def test_what_was_noted_of_another_round_says_nothing():
    noted = ControlDocument(epoch="e", attempt=0, secret="s", done_of="earlier", done=("a#",))
    assert judge(view(member(2, "b", "running"), control=noted), LeaderMemory()).duty.name.startswith("end ")


# --- while a round is stopped

FAILURE = Failure(
    failure_class=FailureClass.EXIT, summary="exit code 7", node_id="b", round_index=0, at_s=0.0, uptime_s=0.0
)


def report(node, failure=FAILURE, **more):
    return NodeReport(node_id=node, failure=failure, **more)


def stopped_by(node, **more):
    order = StopOrder(
        token=1, nonce="x", by=node, incarnation=f"{node}#", reason="exit code 7", report=report(node, **more)
    )
    return replace(CONTROL, stopping=order)


def said(node, failure=None, **more):
    return member(1 + "ab".index(node), node, "stopped", report=report(node, failure, final=True, **more))


RUNS_A, RUNS_B = member(1, "a", "running"), member(2, "b", "running")
OWN, PEERS = stopped_by("b"), stopped_by("b", collateral=True)


def test_what_all_nodes_have_seen_is_asked_about_once_all_have_said_it():
    waits = judge(view(RUNS_A, said("b", FAILURE), control=OWN), LeaderMemory())
    assert (waits.duty, waits.look_s) == (None, GATHER_S)
    duty = judge(view(said("a"), said("b", FAILURE), control=OWN), waits.memory).duty
    assert isinstance(duty, DecisionAsked)
    assert [(one.node_id, one.failure, one.final) for one in duty.reports] == [("a", None, True), ("b", FAILURE, True)]


def test_nobody_is_waited_for_longer_than_two_seconds_if_the_reason_is_known():
    waits = judge(view(RUNS_A, RUNS_B, control=OWN), LeaderMemory())
    duty = judge(view(RUNS_A, RUNS_B, control=OWN, now_s=GATHER_S), waits.memory).duty
    assert [one.node_id for one in duty.reports] == ["b"]


def test_a_node_whose_workers_are_done_is_not_waited_for_and_counted():
    duty = judge(view(member(1, "a", "done"), said("b", FAILURE), control=OWN), LeaderMemory()).duty
    assert [(one.node_id, one.finished_count) for one in duty.reports] == [("a", 1), ("b", 0)]


def test_the_order_speaks_for_a_node_that_has_gone_since():
    duty = judge(view(said("a"), control=OWN), LeaderMemory()).duty
    assert [(one.node_id, one.failure) for one in duty.reports] == [("a", None), ("b", FAILURE)]


def test_a_lost_node_is_why_the_others_lost_a_peer():
    duty = judge(view(said("b", FAILURE, collateral=True), control=PEERS), LeaderMemory()).duty
    assert duty.name.startswith("end ")
    assert duty.document.ending.kind == "regroup"
    assert duty.document.ending.lost == ("a",)


def test_a_node_that_says_nothing_at_all_is_waited_for_until_its_lease_is_over():
    victim = said("b", FAILURE, collateral=True)
    waits = judge(view(RUNS_A, victim, control=PEERS), LeaderMemory())
    later = judge(view(RUNS_A, victim, control=PEERS, now_s=GATHER_S), waits.memory)
    assert (later.duty, later.look_s) == (None, 5.0 + LOSS_MARGIN_S)
    assert judge(view(victim, control=PEERS, now_s=4.0), later.memory).duty.name.startswith("end ")
    assert isinstance(judge(view(RUNS_A, victim, control=PEERS, now_s=6.5), later.memory).duty, DecisionAsked)


def test_a_node_that_has_not_taken_its_place_yet_may_have_the_longer_lease_of_the_last_round():
    victim, before = said("b", FAILURE, collateral=True), member(1, "a", "ready", token=0, nonce="")
    before = replace(before, record=replace(before.record, seen=0))
    waits = judge(view(before, victim, control=PEERS), LeaderMemory())
    later = judge(view(before, victim, control=PEERS, now_s=6.5), waits.memory)
    assert (later.duty, later.look_s) == (None, 2 * 5.0 + LOSS_MARGIN_S)
    assert judge(view(victim, control=PEERS, now_s=9.0), later.memory).duty.name.startswith("end ")


def test_a_node_that_is_slow_but_speaks_is_not_taken_for_lost():
    slow = member(1, "a", "running", report=report("a", None))
    waits = judge(view(slow, said("b", FAILURE, collateral=True), control=PEERS), LeaderMemory())
    later = judge(view(slow, said("b", FAILURE, collateral=True), control=PEERS, now_s=GATHER_S), waits.memory)
    assert isinstance(later.duty, DecisionAsked)


def test_what_is_decided_because_its_time_has_come_rests_on_who_is_there_by_then():
    """The leader had no turn from before the lease of the lost node ended until it should have ended for sure."""
    me = Me(node="a", incarnation="a#", run_id="r", where="w", fresh_epoch="f", secret="s", min_nodes=1, max_nodes=2)
    victim = said("a", FAILURE, collateral=True)
    state = State(
        me=me,
        want=Want.STOP,
        mine=ROUND,
        run=OwnRun(kept_round=ROUND, epoch="e", seen_token=1),
        seen=SeenStore(
            round=ROUND,
            control_version="1",
            control=stopped_by("a", collateral=True),
            since=Revisions(),
            members=(victim, RUNS_B),
            members_read_s=1.0,
            fresh=frozenset({CONTROL_KEY, ROUND_KEY, MEMBERS}),
        ),
        end=RoundEnd(report=victim.record.report, stop_token=1, announced=1),
        connection=StoreConnection(connected=True, ever_connected=True),
        lease=OwnLease(seat=Seat(number=1, incarnation="a#", ahead=0), length_s=1.0, confirmed_s=1.0),
        duty=LeaderDuty(memory=LeaderMemory(token=1, stopping_s=1.0), look_s=1.0 + me.ttl_s + LOSS_MARGIN_S),
    )
    late_s = state.duty.look_s + 0.1
    state = replace(state, lease=replace(state.lease, recorded=encode(record_of(state, late_s))))
    alone = Renewal(ahead=0, live=1, next_expiry_s=None)
    told = step(state, (protocol.Renewed(renewal=alone, sent_s=late_s, ttl_s=me.ttl_s),), now_s=late_s)
    assert told.operation == protocol.ReadMembers()
    read = step(told.state, (protocol.MembersRead(members=(victim,)),), now_s=late_s)
    assert isinstance(read.operation, protocol.Swap)
    assert read.operation.document.ending.lost == ("b",)


@pytest.mark.parametrize("change", ["ended", "other round"])
def test_an_order_about_another_round_or_one_that_has_ended_asks_for_nothing(change):
    control = OWN
    if change == "ended":
        control = replace(OWN, ending=Ending(token=1, nonce="x", kind="restart", reason="r", by="a"))
    else:
        control = replace(OWN, stopping=replace(OWN.stopping, nonce="other"))
    assert not isinstance(judge(view(RUNS_A, RUNS_B, control=control), LeaderMemory()).duty, DecisionAsked)


# --- the run's clock


def test_round_says_how_old_the_run_is_whoever_writes_it():
    now = view(member(1, "a", "ready"), member(2, "b", "ready"), now_s=1_000.0)
    over = replace(CONTROL, ending=Ending(token=1, nonce="x", kind="restart", reason="r", by="a"))
    duty = judge(replace(now, control=over, run_s=17.25), LeaderMemory()).duty
    assert (duty.document.index, duty.document.at_s) == (1, 17.25)


# --- a restart that a user asked for


@pytest.mark.parametrize(("kind", "counts"), [("restart", (3, 5)), ("regroup", (2, 6)), ("asked", (2, 5))])
def test_only_failures_and_changes_of_membership_are_counted(kind, counts):
    now = view(member(1, "a", "ready"), member(2, "b", "ready"))
    over = replace(CONTROL, ending=Ending(token=1, nonce="x", kind=kind, reason="r", by="a"))
    duty = judge(replace(now, control=over, round=replace(ROUND, restarts=2, changes=5)), LeaderMemory()).duty
    assert (duty.document.index, duty.document.restarts, duty.document.changes) == (1, *counts)


@pytest.mark.parametrize(
    ("others", "left"), [((), ()), ((("b", "gone"),), ()), ((("b", "leaving"),), ("b",)), ((("b", "ready"),), ("b",))]
)
def test_an_ending_separates_nodes_that_left_from_lost_ones(others, left):
    """A seat that a guard has withdrawn is lost; `c` is a lost node in each case."""
    roster = (*ROUND.roster, RosterEntry("c#1", "c", "h", 1))
    members = [member(1, "a", "running"), *(member(seat, node, state) for seat, (node, state) in enumerate(others, 2))]
    ending = judge(replace(view(*members), round=replace(ROUND, roster=roster)), LeaderMemory()).duty.document.ending
    assert (ending.lost, ending.left) == (("b", "c"), left)
    assert ending.unclean == tuple(node for node in ("b", "c") if node not in left)


# --- no more changes


@pytest.mark.parametrize(
    ("others", "kind"), [((), FailureClass.NODE_LOST), ((("b", "leaving"),), FailureClass.PREEMPTED)]
)
def test_change_too_many_is_told_as_what_it_was(others, kind):
    members = [member(1, "a", "running"), *(member(seat, node, state) for seat, (node, state) in enumerate(others, 2))]
    duty = judge(replace(view(*members), max_changes=0, run_s=9.0), LeaderMemory()).duty
    assert duty.name.startswith("verdict ")
    failure = duty.document.verdict.failure
    assert (failure.failure_class, failure.node_id, failure.node_count, failure.at_s) == (kind, "b", 2, 9.0)
    assert failure.summary == duty.document.verdict.decision.reason
