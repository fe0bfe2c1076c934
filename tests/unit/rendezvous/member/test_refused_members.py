"""Members whose hooks refuse: they keep nobody waiting, have no place, and everybody knows why."""

import pytest
from msgspec.structs import replace

from elastic_core import messages as m
from elastic_core.errors import NodesRefusedError, RendezvousClosedError
from elastic_core.rendezvous.member import protocol
from elastic_core.rendezvous.member.announce import record_of
from elastic_core.rendezvous.member.documents import (
    ControlDocument,
    Ending,
    MemberRecord,
    RosterEntry,
    RoundDocument,
    StopOrder,
    Verdict,
)
from elastic_core.rendezvous.member.duty import LeaderMemory, View
from elastic_core.rendezvous.member.forming import excluded
from elastic_core.rendezvous.member.leader import judge
from elastic_core.rendezvous.member.machine import step
from elastic_core.rendezvous.member.observe import observe
from elastic_core.rendezvous.member.roster import Candidate
from elastic_core.rendezvous.member.state import Me, OwnLease, OwnRun, SeenStore, State, StoreConnection, Want
from elastic_core.rendezvous.store import CONTROL_KEY, ROUND_KEY, Revisions, Seat
from elastic_core.reports import Absence, NodeReport
from elastic_core.types import Decided, Failure, FailureClass, RendezvousInfo, Restart, Stop

HOT = Absence(by="hook 'gate' (acme 1.0)", reason="hot", for_s=2.0)
WHY = "hook 'gate' (acme 1.0) refused: hot"
CONTROL = ControlDocument(epoch="e", attempt=0, secret="s")


def round_of(names, token=2):
    roster = tuple(RosterEntry(incarnation=f"{n}#", node=n, address="h", agent_port=1) for n in names)
    return RoundDocument(
        epoch="e", token=token, nonce=f"x{token}", index=token - 1, master_addr="h", master_port=1, roster=roster
    )


def member(seat, node, state, token=2, seen=2):
    absence = HOT if state == "out" else None
    record = MemberRecord(epoch="e", node=node, state=state, seen=seen, token=token, nonce=f"x{token}", absence=absence)
    return Candidate(seat=seat, incarnation=f"{node}#", record=record)


def view(*members, control=CONTROL, current=None, min_nodes=1):
    return View(
        now_s=0.0, node="a", nonce="y", min_nodes=min_nodes, max_nodes=3, first_call_s=0.0, last_call_s=0.0,
        max_changes=None, control=control, round=current, members=members,
    )  # fmt: skip


A, B, C = member(1, "a", "running"), member(2, "b", "running"), member(3, "c", "out")
AB, ABC = round_of("ab"), round_of("abc")


# --- the leader


def test_a_round_goes_on_beside_a_node_that_is_out():
    assert judge(view(A, B, member(3, "c", "out", token=0, seen=0), current=AB), LeaderMemory()).duty is None


@pytest.mark.parametrize(
    ("min_nodes", "out", "follows"),
    [
        (1, ("c",), "2 nodes with 2 workers go on"),
        (3, (), "2 nodes left of at least 3: waiting for 1 more"),  # it may come back at once
    ],
)
def test_a_round_whose_start_a_node_refuses_ends_at_no_cost_and_says_why(min_nodes, out, follows):
    duty = judge(view(A, B, C, current=ABC, min_nodes=min_nodes), LeaderMemory()).duty
    assert duty.name.startswith("end ")
    ending = duty.document.ending
    assert (ending.kind, ending.lost, ending.unclean, ending.left, ending.out) == ("regroup", ("c",), (), (), out)
    assert ending.reason == f"c stays out: {WHY}; {follows}"
    assert (ending.failure, ending.decision) == (None, Restart())


def test_the_next_round_is_formed_without_it_and_waits_for_nobody():
    over = replace(CONTROL, ending=Ending(token=2, nonce="x2", kind="regroup", reason="r", by="a", lost=("c",)))
    ready = [member(1, "a", "ready"), member(2, "b", "ready"), C]
    duty = judge(view(*ready, control=over, current=ABC), LeaderMemory()).duty
    assert duty.name.startswith("form ")
    assert [entry.node for entry in duty.document.roster] == ["a", "b"]
    assert (duty.document.restarts, duty.document.changes) == (0, 1)
    assert judge(view(*ready, control=over, current=ABC, min_nodes=3), LeaderMemory()).duty is None


def test_who_has_ended_a_round_at_its_start_again_waits_before_it_ends_another():
    """The first time it is taken in at once: most gates open for good."""
    over = Ending(token=2, nonce="x2", kind="regroup", reason="r", by="a", lost=("c",), out=("c",))
    ready = [member(1, "a", "ready"), member(2, "b", "ready"), C]
    document = judge(view(*ready, control=replace(CONTROL, ending=over), current=ABC), LeaderMemory()).duty.document
    assert document.strikes == {"c": 1}
    back = member(3, "c", "ready")
    running = [replace(one, record=replace(one.record, token=3, nonce=document.nonce, seen=3)) for one in (A, B)]
    at_once = judge(view(*running, back, control=replace(CONTROL, ending=over), current=document), LeaderMemory())
    assert at_once.duty.name.startswith("end ")
    later = judge(view(*running, back, control=CONTROL, current=replace(document, strikes={"c": 2})), LeaderMemory())
    assert (later.duty, later.look_s) == (None, 10.0)


def test_a_stop_for_a_failure_does_not_wait_for_what_it_has_seen():
    report = NodeReport(node_id="a", final=True)
    order = StopOrder(token=2, nonce="x2", by="a", incarnation="a#", reason="r", report=report)
    stopped = replace(A, record=replace(A.record, state="stopped", report=report))
    duty = judge(
        view(stopped, C, control=replace(CONTROL, stopping=order), current=round_of("ac")), LeaderMemory()
    ).duty
    assert duty.name.startswith("end ")


def test_a_node_that_a_policy_left_out_is_taken_where_the_others_refuse():
    ending = Ending(token=1, nonce="x1", kind="restart", by="a", decision=Restart(exclude_nodes=("b",)))
    assert excluded(view(C, B, control=replace(CONTROL, ending=ending), current=round_of("c"))) == frozenset()


# --- the member

ME = Me(node="c", incarnation="c#", run_id="r", where="w", fresh_epoch="f", secret="s", min_nodes=2, max_nodes=3)
RUNS = State(
    me=ME,
    want=Want.RUN,
    mine=ABC,
    seen=SeenStore(round=ABC, control=CONTROL, since=Revisions(), fresh=frozenset({CONTROL_KEY, ROUND_KEY})),
    run=OwnRun(kept_round=ABC, seen_token=2, epoch="e", kept_control=CONTROL),
    connection=StoreConnection(connected=True, ever_connected=True),
    lease=OwnLease(seat=Seat(number=3, incarnation="c#", ahead=2), renew_s=2000.0, confirmed_s=99.9),
)
ASIDE = m.StandAside(absence=HOT)


def out(state=RUNS, now_s=100.0, **seen):
    """Return a member that has stood aside, and that the store knows to; `seen` has changed in the store since."""
    done = step(state, (ASIDE,), now_s=now_s)
    assert isinstance(done.operation, protocol.Update)
    after = step(done.state, (protocol.Updated(record=done.operation.record, kept=True),), now_s=now_s).state
    return replace(after, seen=replace(after.seen, **seen))


def test_it_says_so_of_the_round_that_it_leaves():
    record = record_of(observe(RUNS, ASIDE, 100.0), 100.0)
    assert (record.state, record.seen, record.token, record.nonce, record.absence) == ("out", 2, 2, "x2", HOT)


def test_it_takes_no_place_that_was_meant_for_it_until_it_asks_for_one():
    later = out(round=round_of("abc", token=3), fresh=frozenset({CONTROL_KEY, ROUND_KEY}))
    done = step(later, (), now_s=101.0)
    assert not any(isinstance(one, RendezvousInfo) for one in done.announcements)
    joins = step(done.state, (protocol.JoinAsked(master_port=1),), now_s=101.0)
    assert any(isinstance(one, RendezvousInfo) for one in joins.announcements)
    assert record_of(joins.state, 100.0).absence is None


def test_it_hears_how_the_run_ends():
    verdict = Verdict(decision=Stop(reason="all workers finished", outcome="done"), exit_code=0, by="a", token=2)
    over = out(control=replace(CONTROL, verdict=verdict))
    (failed,) = [one for one in step(over, (), now_s=101.0).announcements if isinstance(one, protocol.JoinFailed)]
    assert (failed.error, failed.exit_code) == (RendezvousClosedError, 0)


def test_a_run_that_goes_on_without_it_is_waited_beside_for_as_long_as_it_takes():
    beside = out(round=round_of("ab", token=3))
    done = step(beside, (), now_s=100.0 + 10 * ME.join_timeout_s)
    assert not [one for one in done.announcements if isinstance(one, (protocol.JoinFailed, m.PrintLine))]


@pytest.mark.parametrize("name", ["c", "a"])
def test_a_run_that_needs_it_fails_for_want_of_it_on_all_nodes_when_the_time_to_join_is_over(name):
    over = replace(CONTROL, ending=Ending(token=2, nonce="x2", kind="regroup", reason="r", by="a", lost=("c",)))
    if name == "c":
        waits = step(out(control=over), (), now_s=100.0).state
    else:
        waits = replace(
            RUNS,
            me=replace(ME, node="a", incarnation="a#"),
            want=Want.JOIN,
            waiting=replace(RUNS.waiting, since_s=100.0),
            seen=replace(RUNS.seen, control=over),
        )
    waits = observe(waits, protocol.MembersRead(members=(member(1, "a", "ready"), C)), 100.0)
    # One of the two gives up a moment before the other.
    left = (member(1, "a", "ready"),) if name == "a" else (member(1, "a", "ready"), C)
    end_s = 100.0 + ME.join_timeout_s
    done = step(observe(waits, protocol.MembersRead(members=left), end_s), (), now_s=end_s)
    (failed,) = [one for one in done.announcements if isinstance(one, protocol.JoinFailed)]
    assert failed.error is NodesRefusedError
    assert failed.what == f"run 'r': 1 of at least 2 nodes joined (a) within 600 s, 1 missing; c is out: {WHY}"
    assert failed.hint == "mend c, start more nodes, or raise --join-timeout"


# --- nodes that a policy has left out

FAILED = Failure(
    failure_class=FailureClass.EXIT, summary="exit code 77", node_id="c", round_index=1, at_s=9.0, uptime_s=8.0
)
WITHOUT_C = Ending(
    token=2, nonce="x2", kind="restart", by="c", decision=Restart(exclude_nodes=("c",), exclude_s=(20.0,)),
    policy="hw", failure=FAILED,
)  # fmt: skip


def told(done):
    """Return what is said of the node's being left out."""
    return [one for one in done.announcements if isinstance(one, (m.LeftOut, m.PrintLine))]


def test_a_node_that_is_left_out_says_by_whom_why_and_how_long_until_it_is_no_longer():
    joins = replace(
        RUNS,
        want=Want.JOIN,
        waiting=replace(RUNS.waiting, since_s=100.0),
        seen=replace(RUNS.seen, control=replace(CONTROL, ending=WITHOUT_C)),
    )
    done = step(joins, (), now_s=100.0)
    line, left_out = told(done)
    assert line.text == "this node is left out for 20 s by policy 'hw': exit code 77"
    assert (left_out.absence.by, left_out.absence.for_s) == ("policy 'hw'", 20.0)
    record = record_of(done.state, 100.0)
    assert (record.state, record.absence) == ("ready", left_out.absence)
    assert told(step(done.state, (), now_s=110.0)) == []
    # The round that runs without it ends for another reason: what is left of its time is carried on.
    later = replace(
        WITHOUT_C,
        token=3,
        nonce="x3",
        kind="regroup",
        decision=Restart(exclude_nodes=("c",), exclude_s=(9.0,)),
        failure=None,
    )
    carried = replace(
        done.state, seen=replace(done.state.seen, control=replace(CONTROL, ending=later), round=round_of("ab", token=3))
    )
    (again,) = told(step(carried, (), now_s=111.0))
    assert (again.absence.reason, again.absence.for_s) == ("exit code 77", 9.0)
    over = step(step(carried, (), now_s=111.0).state, (), now_s=120.0)
    assert told(over) == [m.LeftOut(absence=None)]
    assert record_of(over.state, 100.0).absence is None


def test_a_node_without_a_place_hears_what_the_run_has_failed_of():
    verdict = Verdict(decision=Stop(reason="no budget"), exit_code=7, by="a", token=3, failure=FAILED, evidence="{}")
    over = out(control=replace(CONTROL, verdict=verdict))
    (failed,) = [one for one in step(over, (), now_s=101.0).announcements if isinstance(one, protocol.JoinFailed)]
    decided = Decided(decision=verdict.decision, failure=FAILED, evidence="{}")
    assert (failed.decided, failed.exit_code) == (decided, 7)
