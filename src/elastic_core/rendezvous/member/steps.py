"""The steps of all nodes' workers: requested only when some workers make no progress. Pure.

A node publishes the request in the control document, and every node replies in its own record. The leader combines the
replies in the control document, for all nodes: a constant number of bytes per node, whatever the run's size.
"""

from collections.abc import Iterable, Mapping

from msgspec.structs import replace

from elastic_core import messages as m
from elastic_core.rendezvous.member import protocol
from elastic_core.rendezvous.member.documents import ControlDocument, MemberRecord, RoundDocument, StepsOrder
from elastic_core.rendezvous.member.outage import NOTHING, Announced
from elastic_core.rendezvous.member.state import State, Want
from elastic_core.reports import NodeSteps, RankStep, RunSteps

GATHER_STEPS_S = 1.0
"""How long to wait for replies, in seconds: a node without a reply has stopped, or has trouble of its own."""
MOST_BEHIND = 16


def merged(serial: int, answered: Iterable[NodeSteps]) -> RunSteps:
    """Return the replies of all nodes, combined."""
    everyone = [steps for steps in answered if steps.serial == serial]
    top = max((each.max_step for each in everyone if each.max_step is not None), default=None)
    behind: list[RankStep] = []
    for each in everyone:
        if each.max_step is None:
            continue
        ranks = list(each.behind)
        if top is not None and each.max_step < top:  # then all its ranks are behind
            known = {one.global_rank for one in ranks}
            ranks += [RankStep(global_rank=rank, step=each.max_step) for rank in each.ranks if rank not in known]
        behind += [replace(one, node_id=each.node_id) for one in ranks]
    return RunSteps(
        serial=serial,
        node_count=len(everyone),
        max_step=top,
        min_step=min((each.min_step for each in everyone if each.min_step is not None), default=None),
        behind=tuple(sorted(behind, key=lambda one: (one.step, one.global_rank))[:MOST_BEHIND]),
        protected_s=max((each.protected_s for each in everyone), default=0.0),
        quiet_s=min((each.quiet_s for each in everyone if each.quiet_s is not None), default=None),
    )


def last_question(control: ControlDocument, round_: RoundDocument | None) -> StepsOrder | None:
    """Return the last request for this round; `None` if there was none."""
    order = control.steps
    if order is None or round_ is None or (order.token, order.nonce) != (round_.token, round_.nonce):
        return None
    return order


def answers(
    order: StepsOrder, current: RoundDocument, live: Mapping[str, MemberRecord]
) -> tuple[list[NodeSteps], bool]:
    """Return the replies so far, and whether they are complete."""
    found = []
    for entry in current.roster:
        record = live.get(entry.incarnation)
        steps = record.steps if record is not None and record.nonce == current.nonce else None
        if steps is not None and steps.serial == order.serial:
            found.append(steps)
    return found, len(found) == len(current.roster)


# --- of one member: its own question, or another node's


def announce_steps(state: State, now_s: float) -> Announced:
    """Pass a request on to the agent, and report the combined replies to it."""
    control, work = state.own_control, state.work
    if state.want is not Want.RUN or control is None:
        return state, NOTHING
    order = last_question(control, state.mine)
    if order is None:
        return state, NOTHING
    announcements: tuple[protocol.Announcement, ...] = ()
    # Each request is passed on once, whichever node published it.
    if order.serial > work.steps_asked:
        work, announcements = replace(work, steps_asked=order.serial), (m.StepsAsked(serial=order.serial),)
    if order.seen is not None and order.serial > work.steps_seen:
        work, announcements = (
            replace(work, steps_seen=order.serial),
            (*announcements, m.StepsSeen(seen=order.seen)),
        )
    return replace(state, work=work), announcements


def question(state: State, control: ControlDocument) -> StepsOrder | None:
    """Return the request that this node must publish; `None` if there is none, or another node published it."""
    mine, wanted = state.mine, state.work.steps_wanted
    if state.want is not Want.RUN or mine is None or wanted <= state.work.steps_asked:
        return None
    before = last_question(control, mine)
    if before is not None and before.serial >= wanted:
        return None
    return StepsOrder(token=mine.token, nonce=mine.nonce, serial=wanted, by=state.me.node)
