"""Nodes that a decision left out: for how long, and that nobody waits for ever because of it."""

import msgspec
import pytest

from elastic_core.rendezvous.member.documents import ControlDocument, Ending, MemberRecord, RosterEntry, RoundDocument
from elastic_core.rendezvous.member.duty import LeaderMemory, View
from elastic_core.rendezvous.member.forming import carried, excluded, still_out
from elastic_core.rendezvous.member.leader import judge, leads
from elastic_core.rendezvous.member.roster import Candidate
from elastic_core.types import Restart


def round_of(names, token=2):
    roster = tuple(RosterEntry(incarnation=f"{n}#", node=n, address="h", agent_port=1) for n in names)
    return RoundDocument(
        epoch="e", token=token, nonce=f"x{token}", index=token - 1, master_addr="h", master_port=1, roster=roster
    )


def ending(*exclude, token=1, times=()):
    decision = Restart(exclude_nodes=exclude, exclude_s=tuple(times))
    return Ending(token=token, nonce=f"x{token}", kind="restart", by="a", decision=decision)


def member(seat, node, state, token=2):
    record = MemberRecord(epoch="e", node=node, state=state, seen=2, token=token, nonce=f"x{token}")
    return Candidate(seat=seat, incarnation=f"{node}#", record=record)


def view(*members, ended_by, current, now_s=0.0, min_nodes=1):
    control = ControlDocument(epoch="e", attempt=0, secret="s", ending=ended_by)
    return View(
        now_s=now_s, node="b", nonce="y", min_nodes=min_nodes, max_nodes=3, first_call_s=1.0, last_call_s=1.0,
        max_changes=None, control=control, round=current, members=members,
    )  # fmt: skip


A = member(1, "a", "ready", token=1)
B, C = member(2, "b", "running"), member(3, "c", "running")
BC = round_of("bc")


def test_a_node_that_was_left_out_is_no_newcomer_and_does_not_lead():
    seen = view(A, B, C, ended_by=ending("a"), current=BC)
    assert judge(seen, LeaderMemory()).duty is None
    assert judge(seen, LeaderMemory()).look_s is None
    assert leads(seen, 2) == 0


def test_it_is_one_when_its_time_is_over():
    out = ending("a", times=[60.0])
    first = judge(view(A, B, C, ended_by=out, current=BC, now_s=100.0), LeaderMemory())
    assert (first.duty, first.look_s) == (None, 160.0)
    later = judge(view(A, B, C, ended_by=out, current=BC, now_s=159.0), first.memory)
    assert (later.duty, later.look_s) == (None, 160.0)
    last = judge(view(A, B, C, ended_by=out, current=BC, now_s=160.0), later.memory)
    assert last.duty.name.startswith("end ")
    assert last.duty.document.ending.arrived == 1
    assert last.duty.document.ending.decision == Restart()


def test_a_change_of_the_roster_leaves_it_out_for_the_rest_of_its_time():
    out = ending("a", "z", times=[60.0])
    memory = judge(view(A, B, C, ended_by=out, current=BC, now_s=100.0), LeaderMemory()).memory
    duty = judge(view(A, B, ended_by=out, current=BC, now_s=110.0), memory).duty
    assert duty.name.startswith("end ")
    assert duty.document.ending.lost == ("c",)
    assert duty.document.ending.decision == Restart(exclude_nodes=("a", "z"), exclude_s=(50.0,))


def test_the_next_round_is_formed_without_it_unless_it_is_needed():
    ready = [member(seat, name, "ready") for seat, name in ((1, "a"), (2, "b"), (3, "c"))]
    over = round_of("abc")
    formed = judge(view(*ready, ended_by=ending("a", token=2), current=over, min_nodes=2), LeaderMemory()).duty
    assert formed.name.startswith("form ")
    assert {entry.node for entry in formed.document.roster} == {"b", "c"}
    assert formed.document.token == over.token + 1
    formed = judge(view(*ready, ended_by=ending("a", token=2), current=over, min_nodes=3), LeaderMemory()).duty
    assert formed.name.startswith("form ")
    assert len(formed.document.roster) == 3


@pytest.mark.parametrize("over", [False, True])
def test_somebody_leads_where_the_others_are_too_few(over):
    """Else the last node of a run, which was left out, would wait for ever for somebody to form a round."""
    seen = view(A, ended_by=ending("a", token=2 if over else 1), current=round_of("abc" if over else "b"))
    assert excluded(seen) == frozenset()
    assert leads(seen, 1) == 0


def test_who_was_needed_after_all_leads_like_any_other():
    running = [msgspec.structs.replace(A, record=B.record), B]
    assert excluded(view(*running, ended_by=ending("a"), current=round_of("ab"))) == frozenset()


def test_times_are_counted_from_when_the_ending_was_seen():
    out = ending("a", "b", "z", times=[5.0, 9.0])
    current = round_of("c")
    assert still_out(out, current, 10.0, 10.0) == ({"a", "b", "z"}, 15.0)
    assert still_out(out, current, 10.0, 16.0) == ({"b", "z"}, 19.0)
    assert still_out(out, current, 10.0, 1e9) == ({"z"}, None)
    assert carried(out, current, 10.0, 16.0) == Restart(exclude_nodes=("b", "z"), exclude_s=(3.0,))
    assert still_out(None, current, 0.0, 0.0) == (frozenset(), None)
    assert carried(None, current, 0.0, 0.0) == Restart()
