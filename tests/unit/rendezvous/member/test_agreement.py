"""Numbers that the nodes of a round agree about: stated, put together, told; and nothing while nobody states one."""

import pytest
from msgspec.structs import replace

from elastic_core import messages as m
from elastic_core.rendezvous.member.agreement import MOST_TOPICS, announce_agreed, due
from elastic_core.rendezvous.member.announce import record_of
from elastic_core.rendezvous.member.documents import (
    Agreement,
    ControlDocument,
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
from elastic_core.rendezvous.member.state import Me, OwnRun, RoundWork, SeenStore, State, Want
from elastic_core.rendezvous.store import CONTROL_KEY
from elastic_core.types import Stop

ROUND = RoundDocument(
    epoch="e", token=1, nonce="x", index=0, master_addr="h", master_port=1,
    roster=tuple(RosterEntry(incarnation=f"{n}#", node=n, address="h", agent_port=1) for n in "ab"),
)  # fmt: skip
CONTROL = ControlDocument(epoch="e", attempt=0, secret="s")
ENDED = replace(CONTROL, ending=Ending(token=1, nonce="x", kind="regroup", reason="c joined", by="a"))
OVER = replace(CONTROL, verdict=Verdict(decision=Stop(reason="the host was told to stop"), exit_code=143, by="a"))
ME = Me(node="a", incarnation="a#", run_id="r", where="w", fresh_epoch="f", secret="s", min_nodes=2, max_nodes=3)


def agreement(**values):
    return Agreement(token=1, nonce="x", values=values)


def member(name, number=0, state="running", **given):
    record = MemberRecord(epoch="e", node=name, state=state, **{"token": 1, "nonce": "x", **given})
    return Candidate(incarnation=f"{name}#", seat=number, record=record)


# --- one member


def running(want=Want.RUN, control=CONTROL, stated=None):
    seen = SeenStore(control=control, fresh=frozenset({CONTROL_KEY}))
    return State(me=ME, want=want, mine=ROUND, run=OwnRun(epoch="e"), seen=seen, work=RoundWork(stated=stated or {}))


@pytest.mark.parametrize("want", [Want.RUN, Want.STOP])
def test_number_is_in_the_record_while_there_are_workers_and_the_first_stands(want):
    state = observe(running(want=want), m.StateNumber(topic="t", value=3), 0.0)
    state = observe(state, m.StateNumber(topic="t", value=9), 0.0)
    assert record_of(state, 100.0).stated == {"t": 3}
    assert record_of(replace(state, want=Want.JOIN), 100.0).stated == {}


def test_without_a_round_nothing_is_stated():
    state = replace(running(want=Want.JOIN), mine=None)
    assert observe(state, m.StateNumber(topic="t", value=3), 0.0) == state
    ready = running(want=Want.JOIN)
    assert observe(ready, m.StateNumber(topic="t", value=3), 0.0) == ready


def test_topics_do_not_fill_a_record():
    state = running(want=Want.RUN)
    for index in range(MOST_TOPICS + 5):
        state = observe(state, m.StateNumber(topic=f"t{index}", value=index), 0.0)
    assert len(state.work.stated) == MOST_TOPICS


def test_agreement_is_told_once_to_who_has_stated_a_number_and_stands_in_its_record():
    state = running(Want.STOP, replace(CONTROL, agreement=agreement(t=5, u=7)), {"t": 1})
    state, told = announce_agreed(state, 0.0)
    assert told == (m.Agreed(topic="t", value=5),)
    assert announce_agreed(state, 1.0)[1] == ()
    assert record_of(state, 100.0).stated == {"t": 5}


@pytest.mark.parametrize("change", [{"nonce": "other"}, {"token": 2}])
def test_agreement_of_another_round_is_nobodys(change):
    other = replace(CONTROL, agreement=replace(agreement(t=5), **change))
    assert announce_agreed(running(control=other, stated={"t": 1}), 0.0)[1] == ()
    assert due(other, ROUND, (member("a", stated={"t": 1}), member("b", 1, stated={"t": 2}))) == agreement(t=2)


# --- the leader


def test_largest_is_agreed_when_all_have_stated_theirs():
    assert due(CONTROL, ROUND, (member("a", stated={"t": 4}), member("b", 1))) is None
    both = (member("a", stated={"t": 4, "u": 1}), member("b", 1, stated={"t": 3}))
    assert due(CONTROL, ROUND, both) == agreement(t=4)
    assert due(replace(CONTROL, agreement=agreement(t=4)), ROUND, both) is None
    more = (both[0], member("b", 1, stated={"t": 3, "u": 0}))
    assert due(replace(CONTROL, agreement=agreement(t=4)), ROUND, more) == agreement(t=4, u=1)


@pytest.mark.parametrize("state", ["ready", "out", "done", "stopped"])
def test_who_has_no_workers_is_not_waited_for(state):
    assert due(CONTROL, ROUND, (member("a", stated={"t": 4}), member("b", 1, state))) == agreement(t=4)


def test_who_leaves_is_waited_for_and_counts_until_its_workers_have_gone():
    assert due(CONTROL, ROUND, (member("a", stated={"t": 4}), member("b", 1, "leaving"))) is None
    both = (member("a", stated={"t": 4}), member("b", 1, "leaving", stated={"t": 6}))
    assert due(CONTROL, ROUND, both) == agreement(t=6)


def test_who_is_gone_or_of_another_round_is_not_waited_for():
    alone = member("a", stated={"t": 4})
    assert due(CONTROL, ROUND, (alone,)) == agreement(t=4)
    assert due(CONTROL, ROUND, (alone, member("b", 1, token=2, nonce="y", seen=2))) == agreement(t=4)
    assert due(CONTROL, ROUND, (alone, member("c", 2, "ready", token=0, nonce=""))) == agreement(t=4)


def test_who_has_not_said_yet_that_it_is_in_the_round_is_waited_for():
    both = (member("a", stated={"t": 4}), member("b", 1, "ready", token=0, nonce="", seen=0))
    assert due(CONTROL, ROUND, both) is None


def test_nothing_is_due_while_nobody_states_anything():
    assert due(CONTROL, ROUND, (member("a"), member("b", 1))) is None
    assert due(CONTROL, ROUND, ()) is None


@pytest.mark.parametrize("control", [CONTROL, ENDED, OVER])
def test_leader_writes_it_down_while_the_round_runs_and_after_it_or_the_run_has_ended(control):
    view = View(
        now_s=1.0, node="a", nonce="n", min_nodes=1, max_nodes=3, first_call_s=1, last_call_s=1, max_changes=None,
        control=control, round=ROUND, members=(member("a", stated={"t": 4}), member("b", 1, stated={"t": 9})),
    )  # fmt: skip
    assert judge(view, LeaderMemory()).duty.document == replace(control, agreement=agreement(t=9))
