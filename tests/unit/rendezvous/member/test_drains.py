"""Orders from outside that nodes end: whom each is for, what its agent gets, and the verdict of a stopped run."""

import pytest
from msgspec.structs import replace

from elastic_core import messages as m
from elastic_core.rendezvous.member import protocol
from elastic_core.rendezvous.member.announce import announce
from elastic_core.rendezvous.member.documents import (
    STOP_RULE,
    ControlDocument,
    DrainOrder,
    Ending,
    MemberRecord,
    RosterEntry,
    RoundDocument,
    Verdict,
)
from elastic_core.rendezvous.member.duty import LeaderMemory, View
from elastic_core.rendezvous.member.leader import judge
from elastic_core.rendezvous.member.observe import observe
from elastic_core.rendezvous.member.roster import Candidate
from elastic_core.rendezvous.member.state import Departure, Me, OwnLease, OwnRun, SeenStore, State, Want
from elastic_core.rendezvous.store import CONTROL_KEY, ROUND_KEY
from elastic_core.types import Stop

ROUND = RoundDocument(
    epoch="e", token=1, nonce="x", index=0, master_addr="h", master_port=1,
    roster=tuple(RosterEntry(incarnation=f"{n}#", node=n, address="h", agent_port=1) for n in "ab"),
)  # fmt: skip
CONTROL = ControlDocument(epoch="e", attempt=0, secret="s")
ME = Me(node="a", incarnation="a#", run_id="r", where="w", fresh_epoch="f", secret="s", min_nodes=1, max_nodes=3)
MINE = DrainOrder(incarnation="a#", node="a", by="ada@desk")
ALL = DrainOrder(by="ada@desk")
STOPPED = replace(CONTROL, drains=(ALL,))


def member(*orders, want=Want.RUN, control=None, epoch="e", fresh=frozenset({CONTROL_KEY})):
    seen = SeenStore(control=control or replace(CONTROL, drains=orders), fresh=fresh)
    return State(me=ME, want=want, mine=ROUND, run=OwnRun(epoch=epoch), seen=seen)


def ordered(state, now_s=0.0):
    state, told = announce(replace(state, lease=replace(state.lease, confirmed_s=now_s)), now_s)
    return state, [one for one in told if isinstance(one, m.DrainOrdered)]


def texts(state):
    return [one.text for one in ordered(state)[1]]


@pytest.mark.parametrize("want", [Want.RUN, Want.STOP, Want.JOIN])
def test_a_node_ends_by_its_own_order_whatever_it_does(want):
    assert texts(member(MINE, want=want)) == ["this node is to leave the run: ada@desk asked for it"]


def test_an_order_to_all_ends_the_run():
    assert texts(member(ALL)) == ["run 'r' is stopped: ada@desk asked for it"]
    assert texts(member(MINE, ALL)) == ["run 'r' is stopped: ada@desk asked for it"]


@pytest.mark.parametrize(
    "given",
    [
        {"control": replace(CONTROL, drains=(replace(MINE, incarnation="b#"),))},
        {"control": replace(STOPPED, epoch="another run")},
        {"control": STOPPED, "fresh": frozenset()},
        {"control": STOPPED, "epoch": ""},  # it does not know yet whether that run is its own
        {"control": STOPPED, "want": Want.LEAVE},
        {"control": STOPPED, "want": Want.NOTHING},
    ],
)
def test_what_is_not_for_this_node_ends_nothing(given):
    assert texts(member(**given)) == []


def test_the_agent_is_told_once_and_again_where_there_is_less_time():
    state, (first,) = ordered(member(MINE))
    assert (first.grace_s, ordered(state, 1.0)[1]) == (None, [])
    hurried = replace(state, seen=replace(state.seen, control=replace(CONTROL, drains=(replace(MINE, grace_s=5.0),))))
    state, (second,) = ordered(hurried, 2.0)
    assert (second.grace_s, ordered(state, 3.0)[1]) == (5.0, [])
    assert ordered(replace(state, seen=replace(state.seen, control=STOPPED)), 4.0)[1] == []  # it ends already


def test_the_order_comes_before_the_verdict_of_it():
    """Who reads both at once, after an outage say, ends by the order: with its planned stop and its code."""
    verdict = Verdict(decision=Stop(reason="ada@desk asked for it", rule=STOP_RULE), exit_code=143, by="b")
    _, said = announce(replace(member(control=replace(STOPPED, verdict=verdict)), lease=OwnLease(confirmed_s=0.0)), 0.0)
    assert [type(one) for one in said if not isinstance(one, m.PrintLine)] == [m.DrainOrdered, m.RoundChanged]


def test_the_first_that_leaves_a_stopped_run_writes_the_verdict():
    leaving = observe(member(ALL, want=Want.STOP), m.LeaveRendezvous(close=False), 1.0)
    verdict = leaving.end.post
    assert (verdict.exit_code, verdict.by) == (143, "a")
    assert verdict.decision == Stop(reason="ada@desk asked for it", rule=STOP_RULE)
    over = replace(STOPPED, verdict=verdict)
    ending = Ending(token=1, nonce="x", kind="regroup", reason="b left", by="b", lost=("b",))
    later = replace(ROUND, token=2, nonce="y", roster=ROUND.roster[1:])
    for control in (replace(STOPPED, ending=ending), STOPPED):  # whatever the others make of its leaving meanwhile
        known = replace(
            leaving, seen=replace(leaving.seen, control=control, round=later, fresh=frozenset({CONTROL_KEY, ROUND_KEY}))
        )
        assert announce(known, 1.0)[0].end.post == verdict
    assert announce(replace(leaving, seen=replace(leaving.seen, control=over)), 1.0)[0].end.post is None
    assert observe(member(control=over), m.LeaveRendezvous(close=False), 1.0).end.post is None
    assert observe(member(MINE), m.LeaveRendezvous(close=False), 1.0).end.post is None
    other = member(control=replace(STOPPED, epoch="another run"))
    assert observe(other, m.LeaveRendezvous(close=False), 1.0).end.post is None


def test_no_round_is_formed_of_nodes_that_come_meanwhile():
    over = replace(CONTROL, ending=Ending(token=1, nonce="x", kind="regroup", reason="r", by="a"))
    ready = Candidate(incarnation="c#", seat=3, record=MemberRecord(epoch="e", node="c", state="ready"))

    def duty(control, current=ROUND):
        view = View(
            now_s=0.0, node="c", nonce="y", min_nodes=1, max_nodes=3, first_call_s=0.0, last_call_s=0.0,
            max_changes=None, control=control, round=current, members=(ready,),
        )  # fmt: skip
        return judge(view, LeaderMemory()).duty

    assert duty(over).name.startswith("form ")
    assert duty(replace(over, drains=(ALL,))) is None
    assert duty(STOPPED, None) is None


def test_latecomers_get_the_verdict_of_a_stopped_run_as_such():
    verdict = Verdict(decision=Stop(reason="ada@desk asked for it", rule=STOP_RULE), exit_code=143, by="b")
    waits = member(want=Want.JOIN, control=replace(STOPPED, verdict=verdict))
    waits = replace(waits, mine=None, departure=Departure(drain=ALL))
    _, told = announce(waits, 0.0)
    (failed,) = [one for one in told if isinstance(one, protocol.JoinFailed)]
    assert failed.exit_code == 143
    assert failed.what == "run 'r' was stopped: ada@desk asked for it; nothing was started on this node"
