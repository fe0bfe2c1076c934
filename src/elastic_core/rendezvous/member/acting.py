"""What a member does of the leader's duties, and when it is its turn: a rule of `machine`. Pure."""

from msgspec.structs import replace

from elastic_core.rendezvous.member import protocol as m
from elastic_core.rendezvous.member.admission import KEEP_DONE_S, KEEP_FAILED_S
from elastic_core.rendezvous.member.documents import ControlDocument
from elastic_core.rendezvous.member.duty import (
    AskDecision,
    Duty,
    EndRound,
    FormRound,
    GiveVerdict,
    NoteDone,
    TellSteps,
    View,
)
from elastic_core.rendezvous.member.forming import excluded
from elastic_core.rendezvous.member.leader import judge, leads
from elastic_core.rendezvous.member.observe import MEMBERS
from elastic_core.rendezvous.member.protocol import Operation
from elastic_core.rendezvous.member.state import LONG_AGO_S, NEVER_S, State, question_about
from elastic_core.rendezvous.store import CONTROL_KEY, ROUND_KEY

KEEP_S = 25 * 3600.0
"""How long a run's content stays after its last call; other than after its end, so that stores can tell how old that
is."""
DEPUTIES = 2
"""How many members behind the leader look after its duties."""
DUTY_PERIODS = 2
"""A duty that stays undone for so many renewal periods is the next one's."""
ANSWER_S = 5.0
"""How long the agent may take to decide before it is asked again."""

Planned = tuple[State, Operation | None]


def do_duty(state: State, now_s: float) -> Planned:
    """Do what is owed: at once as the leader, after a while as a deputy."""
    if state.ahead > DEPUTIES or (state.ahead == 0 and MEMBERS not in state.fresh) or state.seat is None:
        return state, None
    view = _view(state, now_s)
    if view is None or state.members_read_s == LONG_AGO_S:
        return state, None
    behind = leads(view, state.seat.number)
    judgement = judge(view, state.notes)
    look_s = min(state.look_s, judgement.look_s if judgement.look_s is not None else NEVER_S)
    state = replace(state, notes=judgement.notes, look_s=look_s)
    if judgement.duty is None:
        return replace(state, owed=""), None
    if state.me.node in excluded(view):
        return state, None
    owed = _name(judgement.duty)
    if state.owed != owed:
        state = replace(state, owed=owed, owed_s=now_s)
    due_s = state.owed_s + behind * DUTY_PERIODS * state.me.period_s
    if now_s < due_s:
        return replace(state, look_s=min(state.look_s, due_s)), None
    if behind and state.members_read_s < due_s - state.me.period_s:
        return state, None  # a deputy acts on what it has read lately; it reads again within a period
    if isinstance(judgement.duty, AskDecision):
        return _ask(state, judgement.duty, now_s)
    return _do(replace(state, serial=state.serial + 1), judgement.duty)


def _view(state: State, now_s: float) -> View | None:
    if state.control is None or ROUND_KEY not in state.fresh or CONTROL_KEY not in state.fresh:
        return None
    me = state.me
    return View(
        now_s=now_s,
        node=me.node,
        nonce=f"{me.incarnation}.{state.serial}",
        incarnation=me.incarnation if state.ahead == 0 else "",
        min_nodes=me.min_nodes,
        max_nodes=me.max_nodes,
        first_call_s=me.first_call_s,
        last_call_s=me.last_call_s,
        max_changes=me.max_membership_changes,
        control=state.control,
        round=state.round,
        members=state.members,
        ttl_s=me.ttl_s,
        run_s=state.run_s(now_s),
    )


def _ask(state: State, duty: AskDecision, now_s: float) -> Planned:
    """Ask the agent once; it may be busy, or on its way out."""
    asked = (duty.token, duty.nonce)
    again_s = state.asked_s + ANSWER_S
    if state.asked == asked and now_s < again_s:
        return replace(state, look_s=min(state.look_s, again_s)), None
    assert state.control is not None
    ask = m.Ask(question=question_about(*asked), reports=duty.reports, history=state.control.failures)
    return replace(state, asked=asked, asked_s=now_s), ask


def _name(duty: Duty) -> str:
    match duty:
        case FormRound(document=document):
            return f"form {document.index}"
        case EndRound(ending=ending):
            return f"end {ending.token} {ending.nonce}"
        case NoteDone(nonce=nonce, done=done):
            return f"done {nonce} {len(done)}"
        case TellSteps(seen=seen):
            return f"steps {seen.serial}"
        case GiveVerdict(verdict=verdict):
            return f"verdict {verdict.token} {verdict.outcome}"
        case AskDecision(token=token, nonce=nonce):
            return f"decide {token} {nonce}"


def _do(state: State, duty: FormRound | EndRound | NoteDone | TellSteps | GiveVerdict) -> Planned:
    control = state.control
    assert control is not None
    match duty:
        case FormRound(document=document):
            swap = m.Swap(key=ROUND_KEY, document=document, expect=state.round_version, keep_s=KEEP_S)
            return state, swap
        case EndRound(ending=ending):
            return swap_control(state, replace(control, ending=ending, stopping=None))
        case NoteDone(nonce=nonce, done=done):
            return swap_control(state, replace(control, done_of=nonce, done=done))
        case TellSteps(seen=seen):
            told = None if control.steps is None else replace(control.steps, seen=seen)
            return swap_control(state, replace(control, steps=told))
        case GiveVerdict(verdict=verdict):
            return swap_control(state, replace(control, verdict=verdict, stopping=None))


def swap_control(state: State, document: ControlDocument) -> Planned:
    """Put this document in the place of the one that was read."""
    keep_s = KEEP_S
    if document.verdict is not None:
        keep_s = KEEP_DONE_S if document.verdict.outcome == "done" else KEEP_FAILED_S
    swap = m.Swap(key=CONTROL_KEY, document=document, expect=state.control_version, keep_s=keep_s)
    return state, swap
