"""What a waiting member says."""

import pytest
from msgspec.structs import replace

from elastic_core import messages as m
from elastic_core.rendezvous.member.documents import ControlDocument, MemberRecord, RosterEntry, RoundDocument
from elastic_core.rendezvous.member.duty import LAST_CALL, LeaderMemory
from elastic_core.rendezvous.member.machine import step
from elastic_core.rendezvous.member.observe import MEMBERS
from elastic_core.rendezvous.member.roster import Candidate
from elastic_core.rendezvous.member.state import (
    JoinWait,
    LeaderDuty,
    Me,
    OwnLease,
    OwnRun,
    SeenStore,
    State,
    StoreConnection,
    Want,
)
from elastic_core.rendezvous.member.texts import missing, timed_out, waiting
from elastic_core.rendezvous.store import CONTROL_KEY, ROUND_KEY, Revisions, Seat


def state(min_nodes, said=(), **known):
    """Return a member that waits; a node for each state that is `said` has come, `n` the first one."""
    me = Me(node="n", incarnation="i", run_id="r", where="w", fresh_epoch="e", secret="s", min_nodes=min_nodes,
              max_nodes=8)  # fmt: skip
    records = [MemberRecord(epoch="e", node=node, state=state) for node, state in zip("nab", said, strict=False)]
    members = tuple(Candidate(seat=seat, incarnation=str(seat), record=record) for seat, record in enumerate(records))
    return State(**{"me": me, "run": OwnRun(epoch="e"), "seen": SeenStore(live=len(said), members=members)} | known)


def test_who_waits_for_nodes_says_how_many_are_missing():
    assert (
        waiting(state(3, seen=SeenStore(live=1)), 0.0)
        == "run 'r': waiting for nodes: 1 of at least 3 nodes joined; 2 missing"
    )


@pytest.mark.parametrize(
    ("known", "call"),
    [
        (
            {"duty": LeaderDuty(obstacle=LAST_CALL, memory=LeaderMemory(enough_s=100.0))},
            "last call for more, 24 s left",
        ),
        ({"waiting": JoinWait(since_s=100.0)}, "last call for more, at most 24 s left"),  # others count it
    ],
)
def test_who_waits_for_more_than_enough_names_the_last_call_and_its_option(known, call):
    line = waiting(state(1, ["ready"], **known), 106.0)
    assert line == f"run 'r': 1 node joined (n), at least 1 needed: {call} (--rdzv-conf last_call_timeout)"


def test_a_call_that_outlasts_the_time_to_join_is_named_as_its_reason():
    known = state(1, ["ready", "ready"], duty=LeaderDuty(obstacle=LAST_CALL, memory=LeaderMemory(enough_s=0.0)))
    call = "last call for more, 15 s left (--rdzv-conf last_call_timeout)"
    assert timed_out(known, 15.0) == (
        f"run 'r': no round within 600 s: 2 nodes joined (n, a), at least 1 needed: {call}"
    )
    hint = "a shorter last call (--rdzv-conf last_call_timeout=S), or a longer --join-timeout"
    assert missing(known, 15.0) == hint


def test_a_waiting_leader_prints_the_last_call_that_it_holds():
    """From the machine: what the leader finds when it looks for a duty is what its line says."""
    seated = state(
        1,
        ["ready"],
        want=Want.JOIN,
        connection=StoreConnection(connected=True, ever_connected=True),
        lease=OwnLease(seat=Seat(number=0, incarnation="i", ahead=0), confirmed_s=9.9, renew_s=11.0),
        duty=LeaderDuty(memory=LeaderMemory(token=0, enough_s=0.0)),
        waiting=JoinWait(line_s=10.0),
    )
    seen = replace(
        seated.seen,
        since=Revisions(birth="b", members=1),
        control=ControlDocument(epoch="e", attempt=0, secret="s"),
        fresh=frozenset({MEMBERS, CONTROL_KEY, ROUND_KEY}),
        members_read_s=9.9,
    )
    seated = replace(seated, seen=seen)
    looked = step(seated, (), now_s=9.95).state
    printed = [one.text for one in step(looked, (), now_s=10.0).announcements if isinstance(one, m.PrintLine)]
    call = "last call for more, 20 s left (--rdzv-conf last_call_timeout)"
    assert printed == [f"run 'r': 1 node joined (n), at least 1 needed: {call}"]


@pytest.mark.parametrize(
    ("duty", "obstacle", "hint"),
    [
        (
            LeaderDuty(outstanding="form 0"),
            "this node leads the run, and has not formed the round yet",
            "raise --join-timeout",
        ),
        (
            LeaderDuty(obstacle="a has not seen yet that its round is over"),
            "a has not seen yet that its round is over",
            "raise --join-timeout",
        ),
    ],
)
def test_who_gives_up_with_enough_nodes_says_what_the_round_waits_for(duty, obstacle, hint):
    known = state(2, ["ready", "ready"], duty=duty)
    assert timed_out(known, 700.0) == (
        f"run 'r': no round within 600 s: 2 nodes joined (n, a), at least 2 needed: {obstacle}"
    )
    assert missing(known, 700.0) == hint


def test_who_gives_up_on_another_node_that_leads_names_it():
    records = [MemberRecord(epoch="e", node=node, state="ready") for node in ("a", "n")]
    members = tuple(Candidate(seat=seat, incarnation=str(seat), record=one) for seat, one in enumerate(records))
    known = state(2, seen=SeenStore(live=2, members=members), duty=LeaderDuty(outstanding="form 0"))
    assert "needed: a leads the run, and has not formed the round yet" in timed_out(known, 700.0)
    assert missing(known, 700.0) == "look at a, or raise --join-timeout"


def test_who_is_parked_beside_a_round_does_not_speak_of_missing_nodes():
    roster = tuple(RosterEntry(f"i{rank}", f"n{rank}", "", 0) for rank in range(2))
    round_ = RoundDocument(epoch="e", token=1, nonce="x", index=0, roster=roster, master_addr="", master_port=0)
    line = waiting(state(1, run=OwnRun(kept_round=round_), waiting=JoinWait(spare=True)), 0.0)
    assert line == "run 'r' goes on with 2 nodes: waiting for its next round, or its end"


def test_who_gives_up_says_who_came():
    line = "1 of at least 3 nodes joined within 600 s, 2 missing; at one time there were 2"
    assert timed_out(state(3, seen=SeenStore(live=1), waiting=JoinWait(most=2)), 600.0) == f"run 'r': {line}"


def test_who_waits_for_the_old_workers_of_a_node_says_so():
    known = state(1, ["ready", "running"])
    here = "2 nodes joined (n, a), at least 1 needed: the old workers of a have not ended yet"
    assert waiting(known, 0.0) == f"run 'r': {here}"
    assert timed_out(known, 0.0) == f"run 'r': no round within 600 s: {here}"
    assert missing(known, 0.0) == "raise --join-timeout, or lower --shutdown-timeout of the nodes that have workers"
