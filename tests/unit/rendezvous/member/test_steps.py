"""How far the workers of all nodes are: asked, answered, put together, told; and nothing of it while nobody asks."""

import pytest
from msgspec.structs import replace

from elastic_core import messages as m
from elastic_core.rendezvous.member.announce import record_of
from elastic_core.rendezvous.member.documents import (
    ControlDocument,
    MemberRecord,
    RosterEntry,
    RoundDocument,
    StepsOrder,
)
from elastic_core.rendezvous.member.duty import LeaderMemory, View
from elastic_core.rendezvous.member.leader import judge
from elastic_core.rendezvous.member.observe import observe
from elastic_core.rendezvous.member.roster import Candidate
from elastic_core.rendezvous.member.state import Me, OwnRun, SeenStore, State, Want
from elastic_core.rendezvous.member.steps import GATHER_STEPS_S, announce_steps, merged, question
from elastic_core.rendezvous.store import CONTROL_KEY
from elastic_core.reports import NodeSteps, RankStep, RunSteps

ROUND = RoundDocument(
    epoch="e", token=1, nonce="x", index=0, master_addr="h", master_port=1,
    roster=tuple(RosterEntry(incarnation=f"{n}#", node=n, address="h", agent_port=1) for n in "ab"),
)  # fmt: skip
CONTROL = ControlDocument(epoch="e", attempt=0, secret="s")
ORDER = StepsOrder(token=1, nonce="x", serial=1, by="a")
ME = Me(node="a", incarnation="a#", run_id="r", where="w", fresh_epoch="f", secret="s", min_nodes=2, max_nodes=2)


def steps(node, *, serial=1, **given):
    return NodeSteps(serial=serial, node_id=node, **given)


# --- put together


def test_ranks_behind_are_those_of_a_node_that_is_behind_and_those_behind_on_another():
    ahead = steps("a", ranks=(0, 1), max_step=9, min_step=7, behind=(RankStep(global_rank=1, step=7),))
    late = steps("b", ranks=(2, 3), max_step=8, min_step=8)
    seen = merged(1, [ahead, late, steps("c", serial=0, max_step=99)])
    assert (seen.node_count, seen.max_step, seen.min_step) == (2, 9, 7)
    assert [(one.node_id, one.global_rank, one.step) for one in seen.behind] == [("a", 1, 7), ("b", 2, 8), ("b", 3, 8)]


def test_open_section_anywhere_protects_and_the_last_sign_of_anybody_counts():
    seen = merged(1, [steps("a", protected_s=3.0, quiet_s=9.0), steps("b", quiet_s=0.5), steps("c")])
    assert (seen.protected_s, seen.quiet_s, seen.max_step, seen.behind) == (3.0, 0.5, None, ())


# --- one member


def running(control=CONTROL):
    return State(
        me=ME,
        want=Want.RUN,
        mine=ROUND,
        run=OwnRun(epoch="e"),
        seen=SeenStore(control=control, fresh=frozenset({CONTROL_KEY})),
    )


def test_nothing_is_asked_or_said_while_nobody_wants_to_know():
    state = running()
    assert question(state, CONTROL) is None
    assert announce_steps(state, 0.0) == (state, ())
    assert record_of(state, 100.0).steps is None


def test_who_wonders_asks_once_even_if_another_was_first():
    state = observe(running(), m.AskSteps(), 0.0)
    asked = question(state, CONTROL)
    assert (asked.serial, asked.by) == (1, "a")
    assert question(state, replace(CONTROL, steps=replace(ORDER, by="b"))) is None
    again = observe(replace(state, work=replace(state.work, steps_asked=1)), m.AskSteps(), 1.0)
    assert question(again, replace(CONTROL, steps=ORDER)).serial == 2


@pytest.mark.parametrize("change", [{"nonce": "other"}, {"token": 2}])
def test_question_about_another_round_is_nobodys(change):
    state = running(replace(CONTROL, steps=replace(ORDER, **change)))
    assert announce_steps(state, 0.0)[1] == ()


def test_question_and_its_answer_are_told_once():
    state = running(replace(CONTROL, steps=ORDER))
    state, told = announce_steps(state, 0.0)
    assert told == (m.StepsAsked(serial=1),)
    assert announce_steps(state, 1.0)[1] == ()
    seen = RunSteps(serial=1, max_step=4)
    state = replace(state, seen=replace(state.seen, control=replace(CONTROL, steps=replace(ORDER, seen=seen))))
    state, told = announce_steps(state, 2.0)
    assert told == (m.StepsSeen(seen=seen),)
    assert announce_steps(state, 3.0)[1] == ()


def test_answer_is_in_the_record_while_workers_run():
    state = observe(running(), m.ReportSteps(steps=steps("a", max_step=3)), 0.0)
    assert record_of(state, 100.0).steps.max_step == 3
    assert record_of(replace(state, want=Want.STOP), 100.0).steps is None


# --- the leader


def member(node, answer=None, nonce="x"):
    record = MemberRecord(epoch="e", node=node, state="running", seen=1, token=1, nonce=nonce, steps=answer)
    return Candidate(seat=ord(node), incarnation=f"{node}#", record=record)


def judged(*members, now_s=0.0, memory=None, order=ORDER):
    view = View(
        now_s=now_s, node="a", nonce="y", min_nodes=1, max_nodes=2, first_call_s=1.0, last_call_s=1.0,
        max_changes=None, control=replace(CONTROL, steps=order), round=ROUND, members=members,
    )  # fmt: skip
    return judge(view, memory or LeaderMemory())


def test_all_answers_are_told_at_once():
    duty = judged(member("a", steps("a", max_step=4)), member("b", steps("b", max_step=5))).duty
    seen = duty.document.steps.seen
    assert (seen.node_count, seen.max_step) == (2, 5)


def test_node_that_does_not_answer_is_waited_for_but_not_for_long():
    members = member("a", steps("a", max_step=4)), member("b")
    first = judged(*members, now_s=10.0)
    assert (first.duty, first.look_s) == (None, 10.0 + GATHER_STEPS_S)
    late = judged(*members, now_s=10.0 + GATHER_STEPS_S, memory=first.memory)
    assert late.duty.document.steps.seen.node_count == 1


def test_answers_to_another_question_or_of_another_round_count_for_nothing():
    old, elsewhere = member("a", steps("a", serial=7)), member("b", steps("b"), nonce="other")
    assert judged(old, elsewhere).duty is None


def test_what_was_told_is_not_told_again():
    order = replace(ORDER, seen=RunSteps(serial=1))
    assert judged(member("a", steps("a")), member("b", steps("b")), order=order).duty is None
