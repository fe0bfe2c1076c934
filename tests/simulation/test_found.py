"""What the simulation once found, told without it: each test failed before its mend."""

import pytest
from msgspec.structs import replace

from elastic_core import messages as m
from elastic_core.rendezvous.member import protocol
from elastic_core.rendezvous.member.documents import (
    ControlDocument,
    DrainOrder,
    MemberRecord,
    RosterEntry,
    RoundDocument,
    Verdict,
    decode,
)
from elastic_core.rendezvous.member.duty import LeaderMemory, View
from elastic_core.rendezvous.member.leader import judge
from elastic_core.rendezvous.member.machine import step
from elastic_core.rendezvous.member.observe import observe
from elastic_core.rendezvous.member.roster import Candidate
from elastic_core.rendezvous.member.state import Me, OwnLease, SeenStore, State, StoreConnection, Trouble, Want
from elastic_core.rendezvous.store import CONTROL_KEY, ROUND_KEY, Revisions, Seat, Topic, Watched
from elastic_core.types import Stop

ME = Me(node="n1", incarnation="n1#1", run_id="r", where="w", fresh_epoch="e", secret="s", min_nodes=2, max_nodes=4)
SEATED = State(
    me=ME,
    want=Want.JOIN,
    connection=StoreConnection(connected=True),
    lease=OwnLease(seat=Seat(number=3, incarnation="n1#1", ahead=2), confirmed_s=99.0, recorded=b"what it said last"),
    seen=SeenStore(since=Revisions(birth="b", members=7)),
)


def test_a_record_is_written_again_to_a_store_that_lost_writes():
    lost = Watched(revisions=Revisions(birth="b", members=5), changed=frozenset(Topic), reset=True)
    assert observe(SEATED, protocol.WatchEnded(watched=lost), 100.0).lease.recorded == b""


def test_a_record_is_written_again_after_trouble():
    trouble = Trouble(since_s=98.0, count=3, retry_s=99.9, text="away")
    same = Watched(revisions=SEATED.seen.since, changed=frozenset())
    assert observe(replace(SEATED, trouble=trouble), protocol.WatchEnded(watched=same), 100.0).lease.recorded == b""


def test_a_record_is_written_a_last_time_one_lease_after_trouble():
    """A request that was given up may arrive after the one that replaced it."""
    trouble = Trouble(since_s=98.0, count=3, retry_s=99.9, text="away")
    same = Watched(revisions=SEATED.seen.since, changed=frozenset())
    state = observe(replace(SEATED, trouble=trouble), protocol.WatchEnded(watched=same), 100.0)
    assert state.lease.repeat_s == 100.0 + ME.ttl_s


def test_a_node_that_waits_goes_over_to_the_run_that_has_begun_since_at_once():
    """It had a round in the one that the store lost; whoever leads the other must not give that token again."""
    other = ControlDocument(epoch="other", attempt=0, secret="s", fingerprint={})
    fresh = frozenset({CONTROL_KEY, ROUND_KEY})
    mine = ControlDocument(epoch="lost", attempt=0, secret="s", fingerprint={})
    here = replace(
        SEATED,
        run=replace(SEATED.run, epoch="lost", kept_control=mine, seen_token=4),
        lease=replace(SEATED.lease, renew_s=101.0),
    )
    state = replace(here, seen=replace(here.seen, control=other, round=None, fresh=fresh))
    done = step(state, (), now_s=100.0)
    assert isinstance(done.operation, protocol.Update)
    record = decode(done.operation.record, MemberRecord)
    assert (record.epoch, record.seen) == ("other", 4)


def test_a_node_that_leaves_with_a_verdict_of_a_run_that_is_here_no_more_goes():
    """The store lost the run, and another has begun since: nobody waits for that word."""
    lost, other = (ControlDocument(epoch=epoch, attempt=0, secret="s", fingerprint={}) for epoch in ("lost", "other"))
    word = Verdict(decision=Stop(reason="a worker failed"), exit_code=1, by="n1")
    here = replace(
        SEATED,
        want=Want.LEAVE,
        run=replace(SEATED.run, epoch="lost", kept_control=lost),
        end=replace(SEATED.end, post=word),
        departure=replace(SEATED.departure, leave_s=99.0),
        connection=replace(SEATED.connection, ever_connected=True),
    )
    done = step(
        replace(here, seen=replace(here.seen, control=other, fresh=frozenset({CONTROL_KEY, ROUND_KEY}))),
        (),
        now_s=100.0,
    )
    assert done.operation == protocol.Withdraw(seat=SEATED.lease.seat)


def test_an_order_to_a_node_counts_before_it_is_in_the_run():
    order = DrainOrder(incarnation="n1#1", node="n1", by="ada")
    other = ControlDocument(epoch="other", attempt=0, secret="s", fingerprint={}, drains=(order,))
    state = replace(
        SEATED,
        lease=replace(SEATED.lease, renew_s=101.0),
        seen=replace(SEATED.seen, control=other, fresh=frozenset({CONTROL_KEY})),
    )
    assert any(isinstance(each, m.DrainOrdered) for each in step(state, (), now_s=100.0).announcements)
    to_all = replace(other, drains=(replace(order, incarnation=""),))
    done = step(replace(state, seen=replace(state.seen, control=to_all)), (), now_s=100.0)
    assert not any(isinstance(each, m.DrainOrdered) for each in done.announcements)


@pytest.mark.parametrize(("losses_from_s", "agrees"), [(100.5, False), (99.5, True)])
def test_nodes_that_a_store_has_forgotten_are_waited_for_before_it_is_agreed(losses_from_s, agrees):
    """One of them had stated a later step, and begun it, before the store was emptied."""
    names = ("n1", "n2")
    roster = tuple(
        RosterEntry(incarnation=f"{name}#1", node=name, address=name, agent_port=1, nproc=1, named_role="")
        for name in names
    )
    round_ = RoundDocument(
        epoch="e",
        token=1,
        nonce="x",
        index=0,
        restarts=0,
        changes=0,
        at_s=0.0,
        master_addr="",
        master_port=1,
        roster=roster,
    )
    record = MemberRecord(epoch="e", node="n1", state="running", seen=1, token=1, nonce="x", stated={"step": 70})
    view = View(
        now_s=100.0,
        node="n1",
        nonce="y",
        incarnation="n1#1",
        min_nodes=2,
        max_nodes=2,
        first_call_s=1.0,
        last_call_s=1.0,
        max_changes=None,
        control=ControlDocument(epoch="e", attempt=0, secret="s", fingerprint={}),
        round=round_,
        members=(Candidate(seat=1, incarnation="n1#1", record=record),),
    )
    found = judge(view, LeaderMemory(token=1, losses_from_s=losses_from_s))
    assert (found.duty is not None and found.duty.name.startswith("agree ")) == agrees


def test_after_trouble_the_revisions_are_learned_anew_before_anything_is_read():
    """A store that went back may have come as far again, with other content, between two looks at it."""
    trouble = Trouble(since_s=98.0, count=3, retry_s=99.9, text="away")
    here = replace(SEATED, trouble=trouble, seen=replace(SEATED.seen, fresh=frozenset({CONTROL_KEY, ROUND_KEY})))
    done = step(here, (protocol.Loaded(key=ROUND_KEY, document=None, value=None, age_s=None),), now_s=100.0)
    assert isinstance(done.operation, protocol.Watch)
    assert done.operation.since is None
