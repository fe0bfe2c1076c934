"""What follows for one member from a question about everybody's steps: its own, or another node's. Pure."""

from msgspec.structs import replace

from elastic_core.rendezvous.member import protocol as m
from elastic_core.rendezvous.member.documents import ControlDocument, StepsOrder
from elastic_core.rendezvous.member.outage import NOTHING, Heeded
from elastic_core.rendezvous.member.state import State, Want
from elastic_core.rendezvous.member.steps import standing
from elastic_core.rendezvous.store import CONTROL_KEY


def tell_steps(state: State, now_s: float) -> Heeded:
    """Have the agent answer a question, and tell it what all have answered."""
    control = state.control
    if state.want is not Want.RUN or CONTROL_KEY not in state.fresh or control is None or control.epoch != state.epoch:
        return state, NOTHING
    order = standing(control, state.mine)
    if order is None:
        return state, NOTHING
    told: tuple[m.Announcement, ...] = ()
    if order.serial > state.steps_asked:
        state, told = replace(state, steps_asked=order.serial), (m.StepsAsked(serial=order.serial),)
    if order.seen is not None and order.serial > state.steps_heard:
        state, told = replace(state, steps_heard=order.serial), (*told, m.StepsSeen(seen=order.seen))
    return state, told


def question(state: State, control: ControlDocument) -> StepsOrder | None:
    """Return what this node is to ask; None: nothing, or somebody else has asked it already."""
    mine = state.mine
    if state.want is not Want.RUN or mine is None or state.steps_wanted <= state.steps_asked:
        return None
    before = standing(control, mine)
    if before is not None and before.serial >= state.steps_wanted:
        return None
    return StepsOrder(token=mine.token, nonce=mine.nonce, serial=state.steps_wanted, by=state.me.node)
