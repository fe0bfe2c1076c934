"""The announcements to a member's agent that follow from the member's state alone, without a store call. Pure.

Each rule reads only the state and can be applied repeatedly; a rule without anything new to announce changes nothing.
"""

from collections.abc import Callable

from msgspec.structs import replace

from elastic_core import messages as m
from elastic_core.errors import (
    NodesRefusedError,
    RendezvousConnectionError,
    RendezvousGracefulExitError,
    RendezvousTimeoutError,
)
from elastic_core.rendezvous.member import outage, protocol
from elastic_core.rendezvous.member.admission import closed, meet
from elastic_core.rendezvous.member.agreement import announce_agreed
from elastic_core.rendezvous.member.documents import (
    ControlDocument,
    Ending,
    MemberRecord,
    RoundDocument,
    StopOrder,
    Verdict,
    decided,
)
from elastic_core.rendezvous.member.duty import ended
from elastic_core.rendezvous.member.forming import out_until
from elastic_core.rendezvous.member.observe import LINE_EVERY_S, MEMBERS, crowded
from elastic_core.rendezvous.member.outage import NOTHING, Announced, stop, store_failure
from elastic_core.rendezvous.member.protocol import Announcement
from elastic_core.rendezvous.member.questions import announce_question, own_answer
from elastic_core.rendezvous.member.state import LONG_AGO_S, NEVER_S, Progress, RoundWork, State, Want
from elastic_core.rendezvous.member.texts import lacks_refused, missing, nodes, timed_out, waiting
from elastic_core.rendezvous.store import CONTROL_KEY
from elastic_core.reports import Absence, NodeReport
from elastic_core.types import Decided, FailureClass, RendezvousInfo, RosterMember, RoundEnded, StopOrdered

PART_S = 0.5
"""How long a node that was ordered to stop waits, without workers, until other nodes have noticed, in seconds."""
GONE_S = 0.5
"""How long it publishes `gone` from a seat behind all others, if other nodes wait for the next round."""
NAMES_LIMIT = 64
"""Up to this many members, a waiting node reads their names; beyond that it only counts them."""


def announce(state: State, now_s: float) -> Announced:
    """Return the state after all rules, and the announcements in order."""
    every: list[Announcement] = []
    for rule in _RULES:
        state, announcements = rule(state, now_s)
        every += announcements
    return state, tuple(every)


def record_of(state: State, now_s: float) -> MemberRecord:
    """Return the record that this member publishes about itself."""
    me, mine, connection, work = state.me, state.mine, state.connection, state.work
    what: str = "ready" if state.waiting.absence is None else "out"
    if state.want in (Want.RUN, Want.STOP):
        what = work.progress.value if state.want is Want.RUN else _stopping(state)
        # If the store ends with this node, the verdict comes first: else the other nodes would begin a new round.
        if state.departure.leaving and what != "done" and not isinstance(state.end.post, Verdict):
            what = "leaving"
    elif state.departure.leaving and state.lease.seat is not None:
        what = "leaving"  # no round is formed with it
    elif now_s < outage.grant_ends_s(state):
        what = "running"  # it gave a grant: it takes part in no later round until the grant ends
    if state.departure.farewell is not None:
        what = "gone"
    return MemberRecord(
        epoch=state.run.epoch,
        node=me.node,
        state=what,  # type: ignore[arg-type]  # Progress has the same values
        seen=state.run.seen_token,
        token=mine.token if mine is not None else 0,
        nonce=mine.nonce if mine is not None else "",
        address=connection.address,
        alternative=connection.alternative,
        master=me.master_addr or "",
        agent_port=connection.agent_port,
        master_port=connection.master_port,
        nproc=me.local_world_size,
        role=me.role,
        rank_hint=me.node_rank,
        boot=me.boot,
        report=_report_in_time(state) if state.want is Want.STOP else None,
        answer=own_answer(state, now_s),
        absence=state.waiting.absence or state.waiting.left_out,
        stated=work.stated if state.want in (Want.RUN, Want.STOP) else {},
    )


def _report_in_time(state: State) -> NodeReport | None:
    """Return this node's report, with its age relative to the published order, which is the same for all nodes."""
    report, order_delay_s = state.end.report, state.end.order_delay_s
    return report if report is None or not order_delay_s else replace(report, age_s=report.age_s + order_delay_s)


def _stopping(state: State) -> str:
    """Return the published state of a member with workers that are being stopped, or have been stopped."""
    if state.end.report is None or not state.end.report.final:
        return "running"
    return "done" if state.work.progress is Progress.DONE else "stopped"


# --- what was decided


def _drain(state: State, now_s: float) -> Announced:
    """Make the agent drain on an outside order, once; again only if the order is repeated with another grace period."""
    control, before = state.seen.control, state.departure.drain
    if CONTROL_KEY not in state.seen.fresh or control is None or state.want in (Want.NOTHING, Want.LEAVE):
        return state, NOTHING
    stop = control.stop_order if state.own_control is not None else None
    # An order to this member counts in any run, even if it was not admitted yet or begins another run in its place.
    order = stop or next((order for order in control.drains if order.incarnation == state.me.incarnation), None)
    # The agent was notified already; a repeated order counts only if it has another grace period.
    if order is None or (before is not None and order.grace_s in (None, before.grace_s)):
        return state, NOTHING
    what = "this node is to leave the run" if order.incarnation else f"run {state.me.run_id!r} is stopped"
    drain = m.DrainOrdered(text=f"{what}: {order.reason}", grace_s=order.grace_s)
    return replace(state, departure=replace(state.departure, drain=order)), (drain,)


def _control(state: State, now_s: float) -> Announced:
    control = state.own_control
    if control is None:
        return state, NOTHING
    ordering = state.end.order is not None
    state = _drop_superseded(state, control)
    end = state.end
    if ordering and end.order is None:
        # All nodes count ages from the order in the store, which is later than this node's own stop.
        end = replace(end, order_delay_s=end.order_delay_s or now_s - end.stopped_s)
        state = replace(state, end=end)
    if control.verdict is not None:
        return _verdict(state, control.verdict, now_s)
    ending, mine = control.ending, state.mine
    if mine is None:
        return state, NOTHING
    # That ending is of an earlier round; the current round continues unless there is an order to stop it.
    if ending is None or (ending.token, ending.nonce) != (mine.token, mine.nonce):
        return _ordered(state, control.stopping, now_s)
    if end.announced >= ending.token or state.want not in (Want.RUN, Want.STOP):
        return state, NOTHING
    state = replace(state, want=Want.STOP, end=replace(end, announced=ending.token))
    return state, (m.RoundChanged(change=_change(ending)),)


def _drop_superseded(state: State, control: ControlDocument) -> State:
    """Drop this node's unpublished decision or order if another node has published one: the first one counts."""
    post, order = state.end.post, state.end.order
    over = post is not None and _is_over(control, post.token, post.nonce) and not _from_outside(post)
    if post is not None and (control.verdict is not None or over):
        state = replace(state, end=replace(state.end, post=None))
    if order is None:
        return state
    if control.verdict is not None or _is_over(control, order.token, order.nonce):
        return replace(state, end=replace(state.end, order=None))
    published = control.stopping
    if published is None or (published.token, published.nonce) != (order.token, order.nonce):
        return state
    # Another node was first, and the order has that node's report: this node's report goes into its own record.
    report = state.end.report if published.incarnation == order.incarnation else state.end.report or order.report
    return replace(state, end=replace(state.end, order=None, report=report))


def _from_outside(post: Ending | Verdict) -> bool:
    return isinstance(post, Verdict) and post.from_outside


def _is_over(control: ControlDocument, token: int, nonce: str) -> bool:
    ending = control.ending
    return ending is not None and (ending.token > token or (ending.token, ending.nonce) == (token, nonce))


def _ordered(state: State, stopping: StopOrder | None, now_s: float) -> Announced:
    """Report the order to stop to the agent."""
    mine = state.mine
    assert mine is not None
    if stopping is None or (stopping.token, stopping.nonce) != (mine.token, mine.nonce):
        return _order_again(state), NOTHING
    # This node has already stopped by its own order, or was notified of this one.
    if state.want is not Want.RUN or state.end.stop_token >= stopping.token:
        return state, NOTHING
    end = replace(state.end, stop_token=stopping.token, stopped_s=now_s, order_delay_s=0.0, order_in_force=stopping)
    state = replace(state, want=Want.STOP, end=end)
    return state, (m.RoundChanged(change=StopOrdered(reason=stopping.reason, by=stopping.by)),)


def _order_again(state: State) -> State:
    """Publish again an order that the store has lost: this node has stopped its workers because of it."""
    order, control = state.end.order_in_force, state.seen.control
    if not state.awaiting or order is None or control is None or _is_over(control, order.token, order.nonce):
        return state
    return replace(state, end=replace(state.end, order=order))


def _change(ending: Ending) -> RoundEnded | Decided:
    if ending.kind in ("restart", "asked"):
        return decided(ending)
    # If nodes joined, or left with notice, hooks and metrics count the change as planned.
    planned = not ending.unclean and not ending.out
    reason, lost, left = ending.reason, ending.lost, ending.left
    return RoundEnded(reason=reason, lost=lost, left=left, arrived=ending.arrived, planned=planned)


def _verdict(state: State, verdict: Verdict, now_s: float) -> Announced:
    if state.end.verdict_announced:
        return state, NOTHING
    if state.want is Want.JOIN:
        state, (failed,) = closed(state, verdict, now_s)
        if isinstance(failed, protocol.JoinFailed) and verdict.decision.outcome == "failed":
            failed = replace(failed, decided=decided(verdict))
        return state, (failed,)
    if state.want not in (Want.RUN, Want.STOP):
        return state, NOTHING
    decision, failure = verdict.decision, verdict.failure
    # A rule of the run ended it, for example the limit of membership changes: no worker's failure caused it.
    if failure is None and decision.outcome == "failed":
        failure = replace(store_failure(state, decision.reason), failure_class=FailureClass.NODE_LOST)
        failure = replace(failure, node_id=verdict.by, exit_code=verdict.exit_code)
    state = replace(state, want=Want.STOP, end=replace(state.end, verdict_announced=True))
    return state, (m.RoundChanged(change=replace(decided(verdict), failure=failure)),)


def _exclusion(state: State, now_s: float) -> Announced:
    """Record whether the last decision leaves this node out; its time counts from when this node saw the decision."""
    control, name = state.own_control, state.me.node
    if control is None:
        return state, NOTHING
    ending, before = control.ending, state.waiting.left_out
    if ending is None or state.want is not Want.JOIN:
        return _left_out(state, None) if state.want is Want.RUN else (state, NOTHING)
    if state.waiting.ending != (ending.token, ending.nonce):
        state = replace(state, waiting=replace(state.waiting, ending=(ending.token, ending.nonce), ending_s=now_s))
    until_s = out_until(ending, state.own_round, state.waiting.ending_s).get(name)
    if until_s is None or until_s <= now_s:
        return _left_out(state, None)
    for_s = None if until_s == NEVER_S else round(until_s - state.waiting.ending_s, 3)
    # A later ending carries over the remaining time without the failure: the reason is kept.
    if before is not None and for_s is not None:
        return _left_out(state, replace(before, for_s=for_s))
    by = f"policy {ending.policy!r}" if ending.policy else "the policy"
    reason = ending.failure.summary if ending.failure is not None else "an earlier failure"
    return _left_out(state, before or Absence(by=by, reason=reason, for_s=for_s, refused=False))


def _left_out(state: State, absence: Absence | None) -> Announced:
    if absence == state.waiting.left_out:
        return state, NOTHING
    lines: tuple[Announcement, ...] = ()
    if absence is not None and state.waiting.left_out is None:
        lines = (m.PrintLine(text=f"this node is {absence.text}"),)
    return replace(state, waiting=replace(state.waiting, left_out=absence)), (*lines, m.LeftOut(absence=absence))


# --- the round


def _round(state: State, now_s: float) -> Announced:
    round_, control, run, post = state.own_round, state.own_control, state.run, state.end.post
    if round_ is None or control is None:
        return state, NOTHING
    if run.kept_round is None or round_.token >= run.kept_round.token:
        run = replace(run, kept_round=round_)
    run = replace(run, seen_token=max(run.seen_token, round_.token), clock=_clock(run.clock, round_, now_s))
    state = replace(state, run=run)
    if post is not None and round_.token > post.token and not _from_outside(post):
        # The run continued without this node: the decision here was about a round that has ended.
        state = replace(state, end=replace(state.end, post=None))
        if state.want is Want.STOP:
            reason = "the others have formed a round without this node"
            return stop(state, RoundEnded(reason=reason, lost=(state.me.node,), stop_within_s=0.0))
    # Workers of an earlier round may exist: this node must stop them before it takes a place in another.
    if state.want is Want.RUN or state.awaiting:
        return _evicted(state, round_)
    if state.want is not Want.JOIN or control.verdict is not None:
        return state, NOTHING
    return _place(state, round_, control, now_s)


def _place(state: State, round_: RoundDocument, control: ControlDocument, now_s: float) -> Announced:
    """Take this node's place in the round, or wait for the next round."""
    # Between two rounds a spare waits like any other node, and its join timeout starts again.
    if ended(control, round_):
        waiting = replace(state.waiting, spare=False, since_s=now_s) if state.waiting.spare else state.waiting
        return replace(state, waiting=waiting), NOTHING
    rank = round_.rank_of(state.me.incarnation)
    last = state.mine.token if state.mine is not None else 0
    if rank is None or round_.token <= last or state.waiting.absence is not None or state.departure.leaving:
        return _spare(state, round_, now_s)
    # The lease must be recent, and as long as this round's: the other nodes rely on it if this node is lost.
    lease = state.lease
    if lease.seat is None or state.last_lease_s != state.ttl_s or now_s - lease.confirmed_s > state.ttl_s / 2:
        return replace(state, lease=replace(lease, renew_s=now_s)), NOTHING
    if now_s < outage.grant_ends_s(state):
        return state, NOTHING  # not before its grant to members of the previous round has ended
    return _formed(state, round_, rank, control, now_s)


def _clock(known: tuple[str, float] | None, round_: RoundDocument, now_s: float) -> tuple[str, float]:
    """Return the start of the run's clock. A late read makes the run look younger, so the earliest start counts."""
    began_s = now_s - round_.at_s
    return (round_.epoch, began_s if known is None or known[0] != round_.epoch else min(known[1], began_s))


def _formed(state: State, round_: RoundDocument, rank: int, control: ControlDocument, now_s: float) -> Announced:
    state = replace(
        state,
        want=Want.RUN,
        mine=round_,
        work=RoundWork(),
        waiting=replace(state.waiting, spare=False, line_s=NEVER_S),
        peers=replace(state.peers, evidence_s=LONG_AGO_S, granted_s=LONG_AGO_S, unreachable=frozenset()),
        # Records from before the round are no information about it.
        seen=replace(state.seen, fresh=state.seen.fresh - {MEMBERS}, members_read_s=LONG_AGO_S),
    )
    place = RendezvousInfo(
        rank=rank,
        world_size=len(round_.roster),
        round_token=round_.token,
        nonce=round_.nonce,
        members=tuple(
            RosterMember(node_id=entry.node, local_world_size=entry.nproc, role=entry.role, address=entry.host)
            for entry in round_.roster
        ),
        master_addr=round_.master_addr,
        master_port=round_.master_port or None,
        index=round_.index,
        restart_count=round_.restarts,
        membership_changes=round_.changes,
        history=control.history,
        at_s=state.run_s(now_s),
    )
    return state, (place,)


def _evicted(state: State, round_: RoundDocument) -> Announced:
    mine = state.mine
    if mine is None or round_.token < mine.token or (round_.token, round_.nonce) == (mine.token, mine.nonce):
        return state, NOTHING
    reason = "the others have formed a round without this node"
    return stop(state, RoundEnded(reason=reason, lost=(state.me.node,), stop_within_s=0.0))


def _spare(state: State, round_: RoundDocument, now_s: float) -> Announced:
    """Wait beside a running round, without a time limit."""
    state = replace(state, waiting=replace(state.waiting, spare=True, since_s=now_s))
    me = state.me
    if MEMBERS in state.seen.fresh and _surplus(state, round_):
        size = nodes(len(round_.roster))
        what = f"run {me.run_id!r} is full ({size}, --spares {me.spares}): this node is not needed"
        failed = protocol.JoinFailed(error=RendezvousGracefulExitError, what=what)
        return replace(state, want=Want.NOTHING), (failed,)
    if me.spares is not None and MEMBERS not in state.seen.fresh:
        return state, NOTHING  # the other waiting nodes decide whether this one is needed
    here = round_.rank_of(me.incarnation) is not None  # the other nodes will notice that it left the round
    if state.printed.spare or here or state.waiting.absence is not None or len(round_.roster) < me.max_nodes:
        return state, NOTHING
    text = f"run {me.run_id!r} is full ({nodes(len(round_.roster))}): waiting as a spare"
    printed, waits = replace(state.printed, spare=True), replace(state.waiting, line_s=NEVER_S)
    return replace(state, printed=printed, waiting=waits), (m.PrintLine(text=text),)


def _surplus(state: State, round_: RoundDocument) -> bool:
    seat, spares, incarnations = state.lease.seat, state.me.spares, round_.incarnations
    if seat is None or spares is None:
        return False
    others = (member for member in state.seen.members if member.incarnation not in incarnations)
    before = [member for member in others if member.seat < seat.number and member.record.epoch == state.run.epoch]
    return len(round_.roster) >= state.me.max_nodes and len(before) >= spares


def _part(state: State, now_s: float) -> Announced:
    """Leave once the round is known to have ended because of this node, or after a time limit."""
    departure, seat = state.departure, state.lease.seat
    if not departure.parting:
        return state, NOTHING
    over = replace(state, want=Want.LEAVE, departure=replace(departure, parting=False))
    if departure.farewell is not None:
        gone = state.trouble is not None or now_s >= departure.leave_s + GONE_S
        return over if gone else state, NOTHING
    # Without a published end of the round, the other nodes may not know yet that this node leaves on purpose.
    known = state.end.verdict_announced or (state.mine is not None and state.end.announced >= state.mine.token)
    if state.trouble is not None or seat is None:
        return over, NOTHING
    if now_s < departure.leave_s + (0.0 if known or state.want is Want.JOIN else PART_S):
        return state, NOTHING
    # Nodes outside the round can't distinguish a returned seat from an ended lease: a last record `gone` does that.
    if crowded(state):
        return replace(state, departure=replace(departure, farewell=seat.number, leave_s=now_s)), NOTHING
    return over, NOTHING


# --- waiting


def knows_members(state: State, now_s: float) -> bool:
    """Return whether the members are known well enough to be named in a line."""
    return now_s - state.seen.members_read_s <= 1.0 or state.seen.live > NAMES_LIMIT


def _wait(state: State, now_s: float) -> Announced:
    if state.want is not Want.JOIN:
        return state, NOTHING
    me, trouble, wait, ever_connected = state.me, state.trouble, state.waiting, state.connection.ever_connected
    # Credentials or a setting are wrong: a retry has the same result.
    if trouble is not None and trouble.refused:
        failed = _unreachable(f"run {me.run_id!r}: {trouble.text}", trouble.hint)
        return replace(state, want=Want.NOTHING), (failed,)
    if trouble is not None and now_s >= outage.gives_up_joining_s(state):
        away = "has not let this node in" if ever_connected else "could not be reached"
        what = f"run {me.run_id!r}: {me.where} {away} within {me.connect_timeout_s:g} s: {trouble.text}"
        look = "look at the store" if ever_connected else "check --rdzv-endpoint"
        hint = trouble.hint or f"{look}, or raise --connect-timeout"
        return replace(state, want=Want.NOTHING), (_unreachable(what, hint),)
    if not ever_connected:
        return state, NOTHING
    if now_s >= outage.misses_host_s(state):
        what = f"run {me.run_id!r}: {outage.host_lost(state)}"
        return replace(state, want=Want.NOTHING), (_unreachable(what),)
    if trouble is not None and me.on_store_loss == "fail" and now_s >= trouble.since_s + me.store_outage_grace_s:
        what = f"run {me.run_id!r}: {outage.stayed_away(state)} (--on-store-loss is fail)"
        return replace(state, want=Want.NOTHING), (_unreachable(what, trouble.hint),)
    # The line and the error name the members. They are read first unless the store can't be reached.
    knows = trouble is not None or knows_members(state, now_s) or not state.run.epoch
    if not wait.spare and now_s >= wait.since_s + me.join_timeout_s and knows:
        what, hint = timed_out(state, now_s), missing(state, now_s)
        error = NodesRefusedError if lacks_refused(state) else RendezvousTimeoutError
        return replace(state, want=Want.NOTHING), (protocol.JoinFailed(error=error, what=what, hint=hint),)
    if now_s >= wait.line_s and knows:
        here = trouble is None and state.had_seat
        announcements = (m.PrintLine(text=waiting(state, now_s)),) if here else ()
        return replace(state, waiting=replace(wait, line_s=now_s + LINE_EVERY_S)), announcements
    return state, NOTHING


def _unreachable(what: str, hint: str = "") -> protocol.JoinFailed:
    return protocol.JoinFailed(error=RendezvousConnectionError, what=what, hint=hint)


_RULES: tuple[Callable[[State, float], Announced], ...] = (
    outage.keep_lease,
    meet,
    _drain,  # before a verdict: a run that was stopped from outside ends by that order
    _control,
    _exclusion,
    announce_question,
    announce_agreed,
    _round,
    _wait,  # before `announce_outage`: a node that gives up reports the reason
    outage.announce_outage,
    outage.announce_lost_seat,
    outage.announce_grace,
    outage.announce_unreachable,
    outage.announce_silence,
    outage.end_alone,
    outage.leave_to_agent,
    _part,
)
