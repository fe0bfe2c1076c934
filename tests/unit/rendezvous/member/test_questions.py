"""Questions to all nodes of a round: published, answered, gathered by the leader alone, and concluded for all."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from elastic_core import messages as m
from elastic_core.rendezvous.member.announce import record_of
from elastic_core.rendezvous.member.documents import (
    ControlDocument,
    Ending,
    MemberRecord,
    NodesQuestion,
    RosterEntry,
    RoundDocument,
    decode,
    encode,
)
from elastic_core.rendezvous.member.duty import LeaderMemory, View
from elastic_core.rendezvous.member.leader import judge
from elastic_core.rendezvous.member.observe import observe
from elastic_core.rendezvous.member.questions import CONCLUDE_S, OPEN_S, announce_question, to_publish
from elastic_core.rendezvous.member.roster import Candidate
from elastic_core.rendezvous.member.state import LeaderDuty, Me, OwnRun, SeenStore, State, Want
from elastic_core.rendezvous.store import CONTROL_KEY

ROUND = RoundDocument(
    epoch="e", token=1, nonce="x", index=0, master_addr="h", master_port=1,
    roster=tuple(RosterEntry(incarnation=f"{n}#", node=n, address="h", agent_port=1) for n in "ab"),
)  # fmt: skip
CONTROL = ControlDocument(epoch="e", attempt=0, secret="s")
QUESTION = NodesQuestion(token=1, nonce="x", serial=1, topic="t", within_s=2.0)
ME = Me(node="a", incarnation="a#", run_id="r", where="w", fresh_epoch="f", secret="s", min_nodes=2, max_nodes=2)


def running(control=CONTROL):
    return State(
        me=ME,
        want=Want.RUN,
        mine=ROUND,
        run=OwnRun(epoch="e"),
        seen=SeenStore(control=control, fresh=frozenset({CONTROL_KEY})),
    )


def with_question(state, question):
    control = None if question is None else replace(CONTROL, question=question)
    return replace(state, seen=replace(state.seen, control=control or CONTROL))


def asked(state, topic="t", now_s=0.0, within_s=2.0):
    state, _ = announce_question(observe(state, m.AskNodes(topic=topic, within_s=within_s), now_s), now_s)
    return state


# --- one node: it asks


def test_nothing_is_published_or_passed_on_without_a_question():
    state = running()
    assert to_publish(state, CONTROL, 0.0) is None
    assert announce_question(state, 0.0) == (state, ())
    assert record_of(state, 0.0).answer is None


def test_a_question_is_published_once():
    state = asked(running())
    published = to_publish(state, CONTROL, 0.0)
    assert published == QUESTION
    state, _ = announce_question(with_question(state, published), 0.0)
    concluded = with_question(state, replace(published, conclusion=b"c"))
    assert to_publish(state, state.seen.control, 0.0) is None
    assert to_publish(concluded, concluded.seen.control, 0.0) is None


@pytest.mark.parametrize("conclusion", [None, b"c"])
def test_a_request_joins_a_question_of_its_topic_that_another_node_published_meanwhile(conclusion):
    state = asked(running())
    state, _ = announce_question(with_question(state, replace(QUESTION, conclusion=conclusion)), 0.0)
    assert state.work.wanted == {}
    assert to_publish(state, state.seen.control, 0.0) is None


def test_a_request_after_the_conclusion_is_another_question():
    state, _ = announce_question(with_question(running(), replace(QUESTION, conclusion=b"c")), 0.0)
    state = asked(state)
    assert to_publish(state, state.seen.control, 0.0) == replace(QUESTION, serial=2)


@pytest.mark.parametrize(("age_s", "published"), [(0.0, False), (2.0 + OPEN_S - 0.1, False), (2.0 + OPEN_S, True)])
@pytest.mark.parametrize("topic", ["t", "u"])
def test_another_question_waits_for_the_open_one_but_not_for_ever(topic, age_s, published):
    state, _ = announce_question(with_question(running(), QUESTION), 10.0)
    state = asked(state, topic, 10.0 + age_s)
    found = to_publish(state, state.seen.control, 10.0 + age_s)
    assert found == (replace(QUESTION, serial=2, topic=topic) if published else None)


def test_questions_are_published_in_the_order_of_their_requests():
    state = asked(asked(asked(running(), "u"), "t"), "u", within_s=9.0)
    assert to_publish(state, CONTROL, 0.0) == replace(QUESTION, topic="u", within_s=9.0)


@pytest.mark.parametrize("want", [Want.JOIN, Want.STOP, Want.LEAVE, Want.NOTHING])
def test_a_node_without_running_workers_publishes_and_answers_nothing(want):
    state = asked(running())
    state = replace(state, want=want)
    assert to_publish(state, CONTROL, 0.0) is None
    assert asked(state, "u").work.wanted == state.work.wanted
    answering = replace(
        with_question(state, QUESTION),
        work=replace(state.work, asked=1, answer=m.AnswerNodes(serial=1, data=b"d")),
    )
    assert record_of(answering, 0.0).answer is None


def test_numbers_rise_from_round_to_round():
    over = CONTROL.after(Ending(token=0, nonce="w", kind="regroup", by="a"))
    assert over.question is None
    of_last_round = replace(QUESTION, token=0, nonce="w", serial=7, conclusion=b"long")
    over = replace(CONTROL, question=of_last_round).after(Ending(token=0, nonce="w", kind="regroup", by="a"))
    assert over.question == replace(of_last_round, conclusion=b"")
    assert to_publish(asked(running(over)), over, 0.0).serial == 8


# --- one node: it answers, and gets the conclusion


@pytest.mark.parametrize("change", [{"nonce": "other"}, {"token": 2}])
def test_a_question_of_another_round_is_not_passed_on(change):
    state = with_question(running(), replace(QUESTION, **change))
    assert announce_question(state, 0.0)[1] == ()


def test_a_question_and_its_conclusion_are_passed_on_once_each():
    state, announced = announce_question(with_question(running(), QUESTION), 0.0)
    assert announced == (m.NodesAsked(serial=1, topic="t"),)
    assert announce_question(state, 1.0)[1] == ()
    state, announced = announce_question(with_question(state, replace(QUESTION, conclusion=b"c")), 2.0)
    assert announced == (m.Concluded(serial=1, topic="t", data=b"c"),)
    assert announce_question(state, 3.0)[1] == ()


def test_a_question_that_a_node_reads_with_its_conclusion_is_not_asked_any_more():
    state = with_question(running(), replace(QUESTION, conclusion=b"c"))
    assert announce_question(state, 0.0)[1] == (m.Concluded(serial=1, topic="t", data=b"c"),)


def test_the_answer_is_in_the_record_while_the_question_is_open():
    state, _ = announce_question(with_question(running(), QUESTION), 0.0)
    state = observe(state, m.AnswerNodes(serial=1, data=b"\xff\x00"), 0.0)
    record = record_of(state, 1.0)
    assert decode(encode(record), MemberRecord).answer == m.AnswerNodes(serial=1, data=b"\xff\x00")
    assert record_of(state, 2.0 + OPEN_S).answer is None
    later, _ = announce_question(with_question(state, replace(QUESTION, serial=2)), 1.0)
    assert record_of(later, 1.0).answer is None
    assert record_of(with_question(state, replace(QUESTION, conclusion=b"c")), 1.0).answer is None
    late = replace(state, work=replace(state.work, concluded=1, answer=None))
    assert observe(late, m.AnswerNodes(serial=1, data=b"late"), 1.0).work.answer is None


@pytest.mark.parametrize("serial", [0, 2])
def test_an_answer_to_another_question_counts_for_nothing(serial):
    state, _ = announce_question(with_question(running(), QUESTION), 0.0)
    assert observe(state, m.AnswerNodes(serial=serial, data=b"d"), 0.0).work.answer is None


# --- the leader


def member(node, answer=None, nonce="x", serial=1):
    answer = None if answer is None else m.AnswerNodes(serial=serial, data=answer)
    record = MemberRecord(epoch="e", node=node, state="running", seen=1, token=1, nonce=nonce, answer=answer)
    return Candidate(seat=ord(node[0]), incarnation=f"{node}#", record=record)


def judged(*members, now_s=0.0, memory=None, question=QUESTION, incarnation="a#", **changes):
    view = View(
        now_s=now_s, node="a", nonce="y", incarnation=incarnation, min_nodes=1, max_nodes=2, first_call_s=1.0,
        last_call_s=1.0, max_changes=None, control=replace(CONTROL, question=question, **changes), round=ROUND,
        members=members,
    )  # fmt: skip
    return judge(view, memory or LeaderMemory())


def test_all_answers_are_gathered_at_once():
    duty = judged(member("a", b"1"), member("b", b"2")).duty
    assert duty == m.AnswersGathered(serial=1, topic="t", answers={"a": b"1", "b": b"2"})


def test_a_node_without_an_answer_is_waited_for_until_the_time_is_over():
    members = member("a", b"1"), member("b")
    first = judged(*members, now_s=10.0)
    assert (first.duty, first.look_s) == (None, 12.0)
    assert judged(*members, now_s=11.9, memory=first.memory).duty is None
    late = judged(*members, now_s=12.0, memory=first.memory)
    assert late.duty == m.AnswersGathered(serial=1, topic="t", answers={"a": b"1"}, missing=("b",))


def test_a_node_that_has_done_its_work_and_left_is_missing_and_not_waited_for():
    duty = judged(member("a", b"1"), done_of="x", done=("b#",)).duty
    assert duty == m.AnswersGathered(serial=1, topic="t", answers={"a": b"1"}, missing=("b",))


def test_a_deputy_reads_the_answers_only_if_the_leader_has_not_concluded_them():
    members = member("a", b"1"), member("b", b"2")
    first = judged(*members, now_s=10.0, incarnation="")
    assert (first.duty, first.look_s) == (None, 12.0 + CONCLUDE_S)
    late = judged(*members, now_s=12.0 + CONCLUDE_S, memory=first.memory, incarnation="")
    assert late.duty.answers == {"a": b"1", "b": b"2"}


@pytest.mark.parametrize("change", [{"serial": 7}, {"nonce": "other"}])
def test_answers_to_another_question_or_of_another_round_are_not_gathered(change):
    assert judged(member("a", b"1"), member("b", b"2", **change)).duty is None


def test_what_was_gathered_or_concluded_is_not_gathered_again():
    members = member("a", b"1"), member("b", b"2")
    assert judged(*members, memory=LeaderMemory(token=1, gathered=1)).duty is None
    assert judged(*members, question=replace(QUESTION, conclusion=b"c")).duty is None
    assert judged(*members, question=replace(QUESTION, nonce="other")).duty is None


def leading(gathered=1):
    state = with_question(running(), QUESTION)
    return replace(state, duty=LeaderDuty(memory=LeaderMemory(token=1, gathered=gathered)))


def test_the_leaders_conclusion_is_published_once():
    state = observe(leading(), m.ConcludeNodes(serial=1, data=b"c"), 0.0)
    published = to_publish(state, state.seen.control, 0.0)
    assert published == replace(QUESTION, conclusion=b"c")
    assert to_publish(state, replace(CONTROL, question=published), 0.0) is None
    assert to_publish(state, replace(CONTROL, question=replace(QUESTION, conclusion=b"a deputy's")), 0.0) is None
    assert to_publish(state, replace(CONTROL, question=replace(QUESTION, serial=2)), 0.0) is None


@pytest.mark.parametrize(("serial", "gathered"), [(1, 0), (2, 1), (2, 2)])
def test_a_conclusion_of_answers_that_this_node_has_not_gathered_counts_for_nothing(serial, gathered):
    state = observe(leading(gathered), m.ConcludeNodes(serial=serial, data=b"c"), 0.0)
    assert to_publish(state, state.seen.control, 0.0) is None


def test_the_longest_answers_of_1000_nodes_are_read_by_the_leader_and_the_others_read_one_conclusion():
    data = bytes(range(256)) * 64
    names = [f"node{number:04}" for number in range(1000)]
    roster = tuple(RosterEntry(incarnation=f"{name}#", node=name, address="h", agent_port=1) for name in names)
    records = [encode(member(name, data).record) for name in names]
    assert max(map(len, records)) < 1.34 * len(data) + 200
    members = tuple(
        Candidate(seat=number, incarnation=f"{name}#", record=decode(raw, MemberRecord))
        for number, (name, raw) in enumerate(zip(names, records, strict=True))
    )
    view = View(
        now_s=0.0, node="node0000", nonce="y", incarnation="node0000#", min_nodes=1, max_nodes=1000, first_call_s=1.0,
        last_call_s=1.0, max_changes=None, control=replace(CONTROL, question=QUESTION),
        round=replace(ROUND, roster=roster), members=members,
    )  # fmt: skip
    duty = judge(view, LeaderMemory()).duty
    assert duty == m.AnswersGathered(serial=1, topic="t", answers=dict.fromkeys(names, data))
    concluded = replace(CONTROL, question=replace(QUESTION, conclusion=data))
    assert len(encode(concluded)) < 1.34 * len(data) + 400
    over = concluded.after(Ending(token=1, nonce="x", kind="regroup", by="a"))
    assert len(encode(over)) < 400


# --- any order of what can happen


@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("ask"), st.sampled_from("tu")),
            st.tuples(st.just("answer"), st.integers(0, 4)),
            st.tuples(st.just("publish"), st.none()),
            st.tuples(st.just("conclude"), st.none()),
            st.tuples(st.just("other node asks"), st.sampled_from("tu")),
            st.tuples(st.just("time"), st.sampled_from([0.5, 3.0, 20.0])),
        ),
        max_size=30,
    )
)
def test_each_question_is_passed_on_once_in_order_and_answered_only_while_it_is_open(events):
    state, question, now_s, passed = running(), None, 0.0, []
    for what, value in events:
        if what == "ask":
            state = observe(state, m.AskNodes(topic=value, within_s=1.0), now_s)
        elif what == "answer":
            state = observe(state, m.AnswerNodes(serial=value, data=b"d"), now_s)
        elif what == "publish":
            question = to_publish(state, state.seen.control, now_s) or question
        elif what == "conclude" and question is not None:
            question = replace(question, conclusion=question.conclusion or b"c")
        elif what == "other node asks" and (question is None or question.conclusion is not None):
            serial = 1 if question is None else question.serial + 1
            question = replace(QUESTION, serial=serial, topic=value)
        elif what == "time":
            now_s += value
        state, announced = announce_question(with_question(state, question), now_s)
        passed += announced
        answer = record_of(state, now_s).answer
        assert answer is None or (answer.serial == question.serial and question.conclusion is None)
        if question is not None and question.conclusion is None and announced:
            assert question.topic not in state.work.wanted
    for kind in (m.NodesAsked, m.Concluded):
        serials = [each.serial for each in passed if isinstance(each, kind)]
        assert serials == sorted(set(serials))
