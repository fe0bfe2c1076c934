"""The reducer of a member's events into its state. It records facts only; `announce` derives what follows. Pure."""

import zlib
from signal import SIGTERM
from typing import assert_never

from msgspec.structs import replace

from elastic_core import messages as m
from elastic_core.rendezvous.member import protocol
from elastic_core.rendezvous.member.agreement import stated
from elastic_core.rendezvous.member.documents import (
    STOP_RULE,
    ControlDocument,
    RoundDocument,
    StopOrder,
    Verdict,
    document_of,
)
from elastic_core.rendezvous.member.questions import requested
from elastic_core.rendezvous.member.roster import Candidate
from elastic_core.rendezvous.member.state import (
    ENTRY_S,
    LONG_AGO_S,
    NEVER_S,
    PATIENCE_SHARE,
    TURN_S,
    EndedRun,
    OwnLease,
    Progress,
    RunLiveness,
    State,
    Trouble,
    Want,
    question_about,
)
from elastic_core.rendezvous.store import CONTROL_KEY, ROUND_KEY, Topic, Watched
from elastic_core.reports import Absence, NodeReport
from elastic_core.types import Stop

EARLY_SHARE = 0.9
"""If a seat is gone within this share of its lease after a renewal, by this host's clock, the store lost the seat."""
LINE_EVERY_S = 10.0
"""How often a waiting member prints which nodes have joined, in seconds."""
RETRY_S = (0.05, 0.1, 0.2, 0.4, 0.7, 1.0)
"""Seconds between retries of an unreachable store, less up to a third by member; at most an eighth of the lease."""
MEMBERS = Topic.MEMBERS.value


def observe(state: State, event: protocol.Event, now_s: float) -> State:
    """Return the state after `event`."""
    if isinstance(event, protocol.Request):
        return _request(state, event, now_s)
    match event:
        case protocol.Failed():
            return _fail(state, event, now_s)
        case protocol.PeersAnswered():
            return _peers(state, event)
        case protocol.PeerAsked():
            return _asked(state, event, now_s)
        case protocol.StillRuns(nonce=nonce):
            about = state.seen.round is not None and state.seen.round.nonce == nonce
            return replace(state, peers=replace(state.peers, silent_s=now_s)) if about else state
        case protocol.PeersUnreachable():
            return _unreachable(state, event)
        case protocol.WatchEnded(watched=None):
            return state
        case _:
            return _answer(_recover(state, event, now_s), event, now_s)


# --- what the agent wants


def _request(state: State, event: protocol.Request, now_s: float) -> State:
    match event:
        case protocol.JoinAsked(master_port=port):
            return _joining(state, now_s, None, port)
        # The node already waits beside the round: only the reason is new, and its timeouts continue.
        case m.StandAside(absence=absence) if state.waiting.absence is not None:
            return replace(state, waiting=replace(state.waiting, absence=absence))
        case m.StandAside(absence=absence):
            return _joining(state, now_s, absence, state.connection.master_port)
        case m.ReportFinishing():
            running = state.want is Want.RUN and state.work.progress is Progress.RUNNING
            return replace(state, work=replace(state.work, progress=Progress.FINISHING)) if running else state
        case m.ReportDone():
            return replace(state, work=replace(state.work, progress=Progress.DONE)) if state.want is Want.RUN else state
        case m.PublishDecision(question=""):
            if state.mine is None or not (state.want is Want.RUN or state.awaiting):
                return state
            post = document_of(event, by=state.me.node, token=state.mine.token, nonce=state.mine.nonce)
            return replace(state, want=Want.STOP, end=replace(state.end, post=post))
        case m.PublishDecision(question=question):
            # A policy may decide so late that another node has decided about that round, or that the round is over.
            if state.duty.asked is None or question != question_about(*state.duty.asked):
                return state
            token, nonce = state.duty.asked
            post = document_of(event, by=state.me.node, token=token, nonce=nonce)
            return replace(state, end=replace(state.end, post=post), duty=replace(state.duty, asked=None))
        case m.OrderStop(failure=failure, report=report):
            assert report is not None
            return _stopped(state, failure.summary, report, now_s)
        case NodeReport():
            return replace(state, end=replace(state.end, report=event)) if state.awaiting else state
        case m.AskNodes() | m.AnswerNodes() | m.ConcludeNodes():
            return requested(state, event)
        case m.StateNumber(topic=topic, value=value):
            return stated(state, topic, value)
        case m.AnnounceDeparture():
            return replace(state, departure=replace(state.departure, leaving=True))
        case m.LeaveRendezvous():
            return _leaving(state, now_s)
        case _:
            assert_never(event)


def _joining(state: State, now_s: float, absence: Absence | None, master_port: int) -> State:
    """Return the state of a member that begins to wait for a place in a round, or beside it because of `absence`."""
    waiting = replace(
        state.waiting,
        began_s=now_s,
        since_s=now_s,
        line_s=now_s + LINE_EVERY_S if absence is None else NEVER_S,
        spare=False,
        most=0,
        refusals={},
        absence=absence,
    )
    return replace(
        state,
        want=Want.JOIN,
        waiting=waiting,
        work=replace(state.work, progress=Progress.RUNNING),
        connection=replace(state.connection, master_port=master_port),
        printed=replace(state.printed, spare=False),
        end=replace(state.end, verdict_announced=False, order=None, report=None, alone=False),
    )


def _leaving(state: State, now_s: float) -> State:
    parting = _is_missed(state)
    departure = replace(state.departure, leave_s=now_s, parting=parting or state.departure.parting)
    end = replace(state.end, post=state.end.post or _closing(state))
    return replace(state, want=state.want if parting else Want.LEAVE, departure=departure, end=end)


def _is_missed(state: State) -> bool:
    """Return whether other members would miss this node, because they don't know yet that it was ordered to stop."""
    mine, end = state.mine, state.end
    if not state.departure.leaving or end.verdict_announced or mine is None:
        return False
    if state.trouble is not None or state.lease.seat is None:
        return False
    if state.want is Want.JOIN:  # other members may be about to form a round with it
        return crowded(state)
    trains = state.want in (Want.RUN, Want.STOP) and state.work.progress is not Progress.DONE
    return trains and (crowded(state) or (len(mine.roster) > 1 and end.announced < mine.token))


def crowded(state: State) -> bool:
    """Return whether nodes outside the round must learn that this member has no workers of the last round.

    After it has gone, the leader can't distinguish a seat that was given back from an ended lease.
    """
    if state.mine is None:
        return False
    return state.seen.live > (1 if state.want is Want.JOIN else len(state.mine.roster))


def _closing(state: State) -> Verdict | None:
    """Return the verdict that a node publishes when it leaves a stopped run; `None` if the run has a verdict."""
    control, mine = state.seen.control, state.mine
    order = None if control is None or control.epoch != state.run.epoch else control.stop_order
    if control is None or order is None or control.verdict is not None:
        return None
    return Verdict(
        decision=Stop(reason=order.reason, rule=STOP_RULE),
        exit_code=128 + SIGTERM,
        by=state.me.node,
        token=0 if mine is None else mine.token,
        nonce="" if mine is None else mine.nonce,
    )


def _stopped(state: State, reason: str, report: NodeReport, now_s: float) -> State:
    """Order the stop of this node's round, unless it has been stopped already."""
    if state.awaiting:
        return replace(state, end=replace(state.end, report=report))
    if state.want is not Want.RUN or state.mine is None:
        return state
    mine, me = state.mine, state.me
    order = StopOrder(
        token=mine.token,
        nonce=mine.nonce,
        by=me.node,
        incarnation=me.incarnation,
        reason=reason,
        report=report,
    )
    end = replace(
        state.end, order=order, order_in_force=order, stop_token=mine.token, stopped_s=now_s, order_delay_s=0.0
    )
    return replace(state, want=Want.STOP, end=end)


# --- trouble


def _fail(state: State, event: protocol.Failed, now_s: float) -> State:
    trouble = state.trouble
    count = trouble.count + 1 if trouble is not None else 1
    # Members that lost the store together retry at different times. The name decides, so that a run can be replayed.
    jitter = zlib.crc32(f"{state.me.incarnation}/{count}".encode()) % 1000 / 3000
    pause_s = min(RETRY_S[min(count, len(RETRY_S)) - 1], state.ttl_s / PATIENCE_SHARE)
    # Thousands of members at once would delay the store's replies until each member has given up its request.
    spread_s = min(state.crowd * TURN_S, state.ttl_s / 4)
    retry_s = now_s + pause_s * (1 - jitter) + spread_s * 3 * jitter
    # The last try before the limit has the least time: an earlier result explains more than a missing reply.
    shown = trouble if event.silent and trouble is not None and not state.connection.ever_connected else event
    trouble = replace(
        trouble or Trouble(since_s=now_s),
        count=count,
        retry_s=retry_s,
        text=shown.text,
        hint=shown.hint,
        refused=event.refused,
        own=event.own,
        no_write=event.write,
        answers=event.write and trouble is not None and trouble.answers,
    )
    state = replace(state, trouble=trouble)
    if event.write:
        # Before a write is repeated, other members' writes are read; there is always a write to repeat.
        seen, lease = replace(state.seen, fresh=frozenset()), replace(state.lease, recorded=b"")
        state = replace(state, seen=seen, lease=lease)
    else:
        state = replace(state, seen=replace(state.seen, fresh=state.seen.fresh - {event.key}))
    # The only node of a round needs no grant: no other member can begin another round.
    if state.mine is not None and len(state.mine.roster) == 1 and not event.own:
        state = replace(state, peers=replace(state.peers, evidence_s=now_s))
    return state


def _is_mine(state: State, token: int, nonce: str) -> bool:
    mine = state.mine
    return mine is not None and (mine.token, mine.nonce) == (token, nonce)


def _peers(state: State, event: protocol.PeersAnswered) -> State:
    trouble = state.trouble
    if trouble is None or trouble.own or not _is_mine(state, event.token, event.nonce):
        return state
    trouble = replace(trouble, asked=event.asked, granted=event.granted, reaching=event.reaching)
    # If one of the members hosts the store, the loss of the store is final: grants of other members do not help.
    evidence_s = state.peers.evidence_s if state.me.hosted else max(state.peers.evidence_s, event.oldest_s)
    return replace(state, trouble=trouble, peers=replace(state.peers, evidence_s=evidence_s))


def _asked(state: State, event: protocol.PeerAsked, now_s: float) -> State:
    """Try the store immediately, and remember that other members need this member's grant."""
    if not _is_mine(state, event.token, event.nonce):
        return state
    if event.needs:
        state = replace(state, peers=replace(state.peers, needed_s=now_s))
    return replace(state, lease=replace(state.lease, renew_s=now_s))


def _unreachable(state: State, event: protocol.PeersUnreachable) -> State:
    about = _is_mine(state, event.token, event.nonce) and state.trouble is None
    return replace(state, peers=replace(state.peers, unreachable=frozenset(event.ranks))) if about else state


def _recover(state: State, event: protocol.StoreAnswer, now_s: float) -> State:
    """End the trouble after a reply of the store: everything that was read before must be read again."""
    if state.trouble is None:
        return state
    # A full store serves reads and renewals, but the write that failed must succeed first.
    if state.trouble.no_write and not _writes(event):
        return replace(state, trouble=replace(state.trouble, answers=True))
    # A request that was given up may still arrive, and replace a newer record by an older one.
    # The known revisions are invalid too: a store that went back may have reached the same number with other content.
    lease, seen = replace(state.lease, repeat_s=now_s + state.ttl_s, renew_s=now_s), replace(state.seen, since=None)
    return _doubt(replace(state, trouble=None, lease=lease, seen=seen), now_s)


def _writes(event: protocol.StoreAnswer) -> bool:
    """Return whether an event is the result of a write, or of a survey: the new node that makes one has no write."""
    return isinstance(event, protocol.Enlisted | protocol.Updated | protocol.SwapAnswered | protocol.Surveyed)


def _doubt(state: State, now_s: float) -> State:
    """Discard all that was read, and delay all decisions that need every live member to be known.

    Each member with a lease at the start of the trouble has renewed it, or stopped its workers, within one lease.
    """
    hold_s = now_s + state.ttl_s if state.had_seat else state.duty.memory.losses_from_s
    # The record is written again too: a store that went back in time may have an older one. A node that waits for a
    # run's members to return starts to wait again: the same trouble may have affected them.
    memory = replace(state.duty.memory, losses_from_s=hold_s)
    return replace(
        state,
        seen=replace(state.seen, fresh=frozenset(), round_s=_round_s(state, now_s)),
        lease=replace(state.lease, recorded=b""),
        duty=replace(state.duty, memory=memory),
        run=replace(state.run, liveness=None),
    )


# --- answers of the store


def _answer(state: State, event: protocol.StoreAnswer, now_s: float) -> State:
    match event:
        case protocol.Connected(address=address, alternative=alternative, agent_port=port, node=node):
            connection = replace(
                state.connection,
                connected=True,
                ever_connected=True,
                address=address,
                alternative=alternative,
                agent_port=port,
            )
            return replace(
                state,
                me=replace(state.me, node=node) if node else state.me,
                connection=connection,
                waiting=replace(state.waiting, since_s=now_s),
            )
        case protocol.Enlisted(seat=seat, record=record, sent_s=sent_s, ttl_s=ttl_s):
            lease = replace(_confirmed(state.lease, sent_s, ttl_s), seat=seat, ahead=seat.ahead, recorded=record)
            return replace(state, lease=lease, seen=replace(state.seen, fresh=state.seen.fresh - {MEMBERS}))
        case protocol.Updated(record=record, kept=kept):
            return replace(state, lease=replace(state.lease, recorded=record)) if kept else _unseated(state, now_s)
        case protocol.Renewed(renewal=None):
            return _unseated(state, now_s)
        case protocol.Renewed(renewal=renewal, sent_s=sent_s, ttl_s=ttl_s):
            assert renewal is not None
            expiry_s = NEVER_S if renewal.next_expiry_s is None else now_s + renewal.next_expiry_s
            lease = replace(_confirmed(state.lease, sent_s, ttl_s), ahead=renewal.ahead, expiry_s=expiry_s)
            return replace(_counted(state, renewal.live), lease=lease)
        case protocol.Withdrawn():
            return replace(state, lease=replace(state.lease, seat=None, recorded=b""))
        case protocol.MembersRead(members=members, alternative=alternative):
            state = _counted(state, len(members))
            state = replace(state, waiting=replace(state.waiting, refusals=_refusals(state, members)))
            if alternative:
                state = replace(state, connection=replace(state.connection, alternative=alternative))
                members = tuple(_rerouted(member, state) for member in members)
            fresh = state.seen.fresh | {MEMBERS}
            return replace(state, seen=replace(state.seen, members=members, members_read_s=now_s, fresh=fresh))
        case protocol.Loaded(key=key, document=document, value=value, age_s=age_s):
            state = _read(state, key, document.version if document is not None else None, value)
            return _age(state, value, age_s, now_s) if isinstance(value, ControlDocument) else state
        case protocol.Surveyed(epochs=epochs, silent=silent):
            return _look(state, epochs, silent, now_s)
        case protocol.SwapAnswered(key=key, swapped=swapped, value=value):
            current = swapped.current
            state = replace(state, duty=replace(state.duty, outstanding=""), run=replace(state.run, begin=False))
            return _read(state, key, current.version if current is not None else None, value)
        case protocol.WatchEnded(watched=watched):
            assert watched is not None
            return _watched(state, watched, now_s)
        case _:
            assert_never(event)


def _age(state: State, control: ControlDocument, age_s: float | None, now_s: float) -> State:
    """Record when the run in the store ended."""
    if control.verdict is None:
        return replace(state, run=replace(state.run, ended=None))
    known = state.run.ended
    if age_s is None and known is not None and known.epoch == control.epoch:
        return state
    ended = EndedRun(epoch=control.epoch, at_s=now_s - (age_s or 0.0), known=age_s is not None)
    return replace(state, run=replace(state.run, ended=ended))


def _look(state: State, epochs: frozenset[str], silent: frozenset[str] | None, now_s: float) -> State:
    """Record whether a member of the run in the store is alive, and whether silent members may have workers."""
    control, liveness, round_ = state.seen.control, state.run.liveness, state.seen.round
    if control is None:
        return state
    epoch = control.epoch
    may_train = round_ is not None and round_.epoch == epoch
    if round_ is not None:
        known = silent is not None and control.silent_of != round_.nonce
        # If the store can't list ended leases, or members were recorded as silent, all of them may still train.
        may_train &= not known or not round_.incarnations.isdisjoint(silent or ())
    empty = liveness is not None and liveness.epoch == epoch and not liveness.alive
    empty_s = liveness.empty_s if liveness is not None and empty else now_s
    alive = epoch in epochs
    liveness = RunLiveness(epoch=epoch, alive=alive, looked_s=now_s, empty_s=empty_s, silent=may_train and not alive)
    return replace(state, run=replace(state.run, liveness=liveness))


def _rerouted(member: Candidate, state: State) -> Candidate:
    """Return a member as it will be read once this node's record has its other address."""
    if member.incarnation != state.me.incarnation:
        return member
    return replace(member, record=replace(member.record, alternative=state.connection.alternative))


def _counted(state: State, live: int) -> State:
    waiting = replace(state.waiting, most=max(state.waiting.most, live))
    return replace(state, seen=replace(state.seen, live=live), waiting=waiting)


def _refusals(state: State, members: tuple[Candidate, ...]) -> dict[str, str]:
    """Return the nodes that are `out`, or were when last seen: they may give up a moment before this node."""
    records = {member.record.node: member.record for member in members if member.record.epoch == state.run.epoch}
    gone = {node: reason for node, reason in state.waiting.refusals.items() if node not in records}
    absences = ((node, record.absence) for node, record in records.items() if record.state == "out")
    return gone | {node: absence.text for node, absence in absences if absence is not None}


def _confirmed(lease: OwnLease, sent_s: float, ttl_s: float) -> OwnLease:
    return replace(lease, confirmed_s=sent_s, length_s=ttl_s, renew_s=sent_s + ttl_s / 3)


def _unseated(state: State, now_s: float) -> State:
    age_s = now_s - state.lease.confirmed_s
    # By this host's clock the lease can't have ended: the store lost the seat.
    early_s = age_s if age_s < EARLY_SHARE * state.last_lease_s else None
    lease = replace(state.lease, seat=None, recorded=b"", ahead=0, unseated_s=early_s)
    return _doubt(replace(state, lease=lease), now_s)


def _read(state: State, key: str, version: str | None, value: ControlDocument | RoundDocument | None) -> State:
    fresh = state.seen.fresh | {key}
    if key == CONTROL_KEY:
        control = value if isinstance(value, ControlDocument) else None
        if control is not None and control.epoch == state.run.epoch:
            state = replace(state, run=replace(state.run, kept_control=control))
        return replace(state, seen=replace(state.seen, control=control, control_version=version, fresh=fresh))
    if key == ROUND_KEY:
        round_ = value if isinstance(value, RoundDocument) else None
        return replace(state, seen=replace(state.seen, round=round_, round_version=version, fresh=fresh))
    return state


def _watched(state: State, watched: Watched, now_s: float) -> State:
    first = state.seen.since is None
    state = replace(state, seen=replace(state.seen, since=watched.revisions))
    if first:
        return state
    if watched.reset:
        # The store was replaced or went back in time: its revisions can't be compared with earlier ones.
        return _doubt(replace(state, lease=replace(state.lease, renew_s=now_s)), now_s)
    stale = {topic.value for topic in watched.changed}
    # A member may be back: the new node surveys immediately.
    if state.run.liveness is not None and Topic.MEMBERS in watched.changed:
        state = replace(state, run=replace(state.run, liveness=replace(state.run.liveness, looked_s=LONG_AGO_S)))
    if Topic.DEPARTURES in watched.changed:
        stale.add(MEMBERS)
        if state.lease.ahead:
            # It may have been the leader: the reply to the renewal has the new order. The next leaders
            # of a crowd renew first.
            turn_s = now_s + (state.lease.ahead * TURN_S if state.crowd else 0.0)
            state = replace(state, lease=replace(state.lease, renew_s=min(state.lease.renew_s, turn_s)))
    round_s = _round_s(state, now_s) if ROUND_KEY in stale else state.seen.round_s
    return replace(state, seen=replace(state.seen, fresh=state.seen.fresh - stale, round_s=round_s))


def _round_s(state: State, now_s: float) -> float:
    return now_s + state.lease.ahead * state.crowd * ENTRY_S
