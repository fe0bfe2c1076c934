"""Questions to all nodes of a round, each with one conclusion for all nodes. Pure.

A node publishes its question in the control document, and each node writes its answer into its own record. The leader
passes the answers to its hook, and writes the hook's conclusion into the control document, for all nodes. So only the
leader reads all answers. A round has one open question at a time.
"""

from collections.abc import Mapping

from msgspec.structs import replace

from elastic_core import messages as m
from elastic_core.rendezvous.member import protocol
from elastic_core.rendezvous.member.documents import ControlDocument, MemberRecord, NodesQuestion, RoundDocument
from elastic_core.rendezvous.member.duty import Judgement, View
from elastic_core.rendezvous.member.outage import NOTHING, Announced
from elastic_core.rendezvous.member.state import State, Want

CONCLUDE_S = 5.0
"""How long the leader's hook may take to conclude before a deputy gathers the answers too, in seconds."""
OPEN_S = 15.0
"""How long a question without a conclusion stays open after its time, in seconds; then the next one replaces it."""


def question_of(control: ControlDocument, round_: RoundDocument | None) -> NodesQuestion | None:
    """Return the last question of a round; `None` if there was none."""
    last = control.question
    of_round = last is not None and round_ is not None and (last.token, last.nonce) == (round_.token, round_.nonce)
    return last if of_round else None


def is_open(state: State, question: NodesQuestion, now_s: float) -> bool:
    """Return whether a question still gets answers and a conclusion. The time counts from when this node read it."""
    asked_s = state.work.asked_s if question.serial == state.work.asked else now_s
    return question.conclusion is None and now_s < asked_s + question.within_s + OPEN_S


def requested(state: State, request: m.NodesRequest) -> State:
    """Return the state after a request of this node's hook; one about another question changes nothing."""
    work, control = state.work, state.seen.control
    match request:
        case m.AskNodes(topic=topic, within_s=within_s) if state.want is Want.RUN:
            # The question is published as soon as no other one is open.
            return replace(state, work=replace(work, wanted={**work.wanted, topic: within_s}))
        case m.AnswerNodes(serial=serial) if serial == work.asked > work.concluded:
            return replace(state, work=replace(work, answer=request))
        case m.ConcludeNodes(serial=serial, data=data):
            question = None if control is None else control.question
            if question is not None and question.serial == serial == state.duty.memory.gathered:
                return replace(state, duty=replace(state.duty, conclusion=replace(question, conclusion=data)))
    return state


def to_publish(state: State, control: ControlDocument, now_s: float) -> NodesQuestion | None:
    """Return the conclusion or else the question that this node must publish; `None` if there is none."""
    mine, conclusion, last = state.mine, state.duty.conclusion, control.question
    if conclusion is not None and last == replace(conclusion, conclusion=None):
        return conclusion
    before = question_of(control, mine)
    waits = before is not None and is_open(state, before, now_s)
    if mine is None or state.want is not Want.RUN or not state.work.wanted or waits:
        return None
    topic, within_s = next(iter(state.work.wanted.items()))
    # Numbers rise during the whole run, so that no answer of an earlier round counts.
    serial = 1 + max(state.work.asked, 0 if last is None else last.serial)
    return NodesQuestion(token=mine.token, nonce=mine.nonce, serial=serial, topic=topic, within_s=within_s)


def _current(state: State) -> NodesQuestion | None:
    control = state.own_control
    return None if control is None or state.want is not Want.RUN else question_of(control, state.mine)


def own_answer(state: State, now_s: float) -> m.AnswerNodes | None:
    """Return the answer for this node's record: only while its question is open, to keep records small."""
    question = _current(state)
    return state.work.answer if question is not None and is_open(state, question, now_s) else None


def announce_question(state: State, now_s: float) -> Announced:
    """Pass a question and its conclusion on to this node's hooks, each once, whichever node published it."""
    question, work = _current(state), state.work
    if question is None:
        return state, NOTHING
    announcements: tuple[protocol.Announcement, ...] = ()
    is_new, ended = question.serial > work.asked, question.conclusion
    if is_new or is_open(state, question, now_s):
        # A request about the topic of an open question joins that question.
        rest = {topic: within_s for topic, within_s in work.wanted.items() if topic != question.topic}
        work = replace(work, wanted=rest)
    if is_new:
        work = replace(work, asked=question.serial, asked_s=now_s, answer=None)
        announcements = (m.NodesAsked(serial=question.serial, topic=question.topic),)
    if ended is not None and question.serial > work.concluded:
        work = replace(work, concluded=question.serial, answer=None)
        announcements = (m.Concluded(serial=question.serial, topic=question.topic, data=ended),)
    return replace(state, work=work), announcements


def gathered(view: View, judgement: Judgement, current: RoundDocument, live: Mapping[str, MemberRecord]) -> Judgement:
    """Return the judgement with the answers to the open question, when all nodes have answered or its time is over."""
    question, memory = question_of(view.control, current), judgement.memory
    if question is None or question.conclusion is not None or memory.gathered == question.serial:
        return judgement
    if memory.question[0] != question.serial:
        memory = replace(memory, question=(question.serial, view.now_s))
    answers, missing, pending = dict[str, bytes](), list[str](), False
    for entry in current.roster:
        record = live.get(entry.incarnation)
        answer = record.answer if record is not None and record.nonce == current.nonce else None
        if answer is not None and answer.serial == question.serial:
            answers[entry.node] = answer.data
        else:
            missing.append(entry.node)
            pending = pending or record is not None
    # A deputy leaves the leader's hook its time: else it would read all answers too.
    end_s = memory.question[1] + question.within_s + (0.0 if view.incarnation else CONCLUDE_S)
    if view.now_s < end_s and (pending or not view.incarnation):
        look_s = end_s if judgement.look_s is None else min(end_s, judgement.look_s)
        return replace(judgement, memory=memory, look_s=look_s, why="waiting for answers of nodes to a question")
    duty = m.AnswersGathered(serial=question.serial, topic=question.topic, answers=answers, missing=tuple(missing))
    return replace(judgement, memory=memory, duty=duty)
