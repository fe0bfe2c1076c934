"""Numbers that the nodes of a round agree about: each states its own, and all learn the largest once all have. Pure.

A node's number is in its own record, and the leader writes the largest into the control document, where all read it:
for each topic one write of every node and one of the leader, whatever the run's size. Who counts is who still has
workers of that round: a node that dies, that has none left, or that knows nothing of the topic and stops its workers at
once, is waited for no longer than it takes to see that.
"""

from collections.abc import Mapping

from msgspec.structs import replace

from elastic_core import messages as m
from elastic_core.rendezvous.member.documents import Agreement, ControlDocument, MemberRecord, RoundDocument
from elastic_core.rendezvous.member.outage import NOTHING, Announced
from elastic_core.rendezvous.member.roster import Candidate
from elastic_core.rendezvous.member.state import State, Want

MOST_TOPICS = 16
"""A round has no more: what nodes state must not fill their records."""
_WITHOUT_WORKERS = ("ready", "out", "done", "stopped", "gone")


def stated(state: State, topic: str, value: int) -> State:
    """Return the state with this node's number for its round; the first one counts."""
    has_round = state.mine is not None and state.want in (Want.RUN, Want.STOP)
    known = state.work.stated
    # A number that others may have read already must not change.
    if not has_round or topic in known or len(known) >= MOST_TOPICS:
        return state
    return replace(state, work=replace(state.work, stated={**known, topic: value}))


def due(control: ControlDocument, current: RoundDocument, members: tuple[Candidate, ...]) -> Agreement | None:
    """Return what is agreed by now, with what was before; None: nothing new."""
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
    """Return what is agreed in a round."""
    agreement = control.agreement
    if agreement is None or (agreement.token, agreement.nonce) != (round_.token, round_.nonce):
        return {}
    return agreement.values


def announce_agreed(state: State, now_s: float) -> Announced:
    """Pass on what the nodes of this node's round have agreed, of what it has stated itself."""
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
    # A store that loses the agreement can only have the same made again, whoever is gone by then.
    work = replace(work, agreed=work.agreed | frozenset(new), stated={**work.stated, **new})
    return replace(state, work=work), announced


def _counts(record: MemberRecord, current: RoundDocument) -> bool:
    if (record.token, record.nonce) != (current.token, current.nonce):
        return record.seen < current.token  # it may have workers of it that it has not spoken of yet
    return record.state not in _WITHOUT_WORKERS
