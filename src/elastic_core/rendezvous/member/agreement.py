"""Numbers on which the nodes of a round agree: each node states one, and all receive the largest. Pure.

A node writes its number into its own record. The leader writes the largest into the control document, which all nodes
read. So each topic costs one write per node and one write of the leader. Only nodes that still have workers of the
round count. The leader stops waiting for a node as soon as it sees that the node died, has no workers left, or stops
its workers because it does not know the topic.
"""

from collections.abc import Mapping

from msgspec.structs import replace

from elastic_core import messages as m
from elastic_core.rendezvous.member.documents import Agreement, ControlDocument, MemberRecord, RoundDocument
from elastic_core.rendezvous.member.outage import NOTHING, Announced
from elastic_core.rendezvous.member.roster import Candidate
from elastic_core.rendezvous.member.state import State, Want

MOST_TOPICS = 16
"""The most topics of a round, which bounds the size of the nodes' records."""
_WITHOUT_WORKERS = ("ready", "out", "done", "stopped", "gone")


def stated(state: State, topic: str, value: int) -> State:
    """Return the state with this node's number for its round; only the first number of a topic counts."""
    has_round = state.mine is not None and state.want in (Want.RUN, Want.STOP)
    known = state.work.stated
    # Other nodes may already have read the number, so it must not change.
    if not has_round or topic in known or len(known) >= MOST_TOPICS:
        return state
    return replace(state, work=replace(state.work, stated={**known, topic: value}))


def due(control: ControlDocument, current: RoundDocument, members: tuple[Candidate, ...]) -> Agreement | None:
    """Return the agreement with all topics that are complete now; `None` if no topic is new."""
    live = {member.incarnation: member.record for member in members if member.record.epoch == current.epoch}
    records = (live[entry.incarnation] for entry in current.roster if entry.incarnation in live)
    voters = [record for record in records if _counts(record, current)]
    known = agreed_in(control, current)
    complete: Mapping[str, int] = {
        topic: max(record.stated[topic] for record in voters)
        for topic in (voters[0].stated if voters else ())
        if topic not in known and all(topic in record.stated for record in voters)
    }
    if not complete:
        return None
    return Agreement(token=current.token, nonce=current.nonce, values={**known, **complete})


def agreed_in(control: ControlDocument, round_: RoundDocument) -> Mapping[str, int]:
    """Return the agreed numbers of a round, by topic."""
    agreement = control.agreement
    if agreement is None or (agreement.token, agreement.nonce) != (round_.token, round_.nonce):
        return {}
    return agreement.values


def announce_agreed(state: State, now_s: float) -> Announced:
    """Report to the agent the new agreed numbers for topics that this node has stated."""
    control, mine, work = state.own_control, state.mine, state.work
    if control is None or mine is None:
        return state, NOTHING
    new = {
        topic: value
        for topic, value in agreed_in(control, mine).items()
        if topic in work.stated and topic not in work.agreed
    }
    if not new:
        return state, NOTHING
    announced = tuple(m.Agreed(topic=topic, value=value) for topic, value in new.items())
    # If the store loses the agreement, the same one is made again, even if other nodes have left by then.
    work = replace(work, agreed=work.agreed | frozenset(new), stated={**work.stated, **new})
    return replace(state, work=work), announced


def _counts(record: MemberRecord, current: RoundDocument) -> bool:
    if (record.token, record.nonce) != (current.token, current.nonce):
        return record.seen < current.token  # it may have workers of this round and not have published that yet
    return record.state not in _WITHOUT_WORKERS
