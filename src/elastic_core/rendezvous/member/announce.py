"""The announcements to a member's agent that follow from what the member knows, without asking anybody. Pure.

Each rule looks at the state alone and may be applied again and again; one that has nothing (more) to say changes
nothing.
"""

from collections.abc import Callable

from msgspec.structs import replace

from elastic_core.rendezvous.member import protocol as m
from elastic_core.rendezvous.member.admission import closed, meet
from elastic_core.rendezvous.member.agreement import announce_agreed
from elastic_core.rendezvous.member.documents import (
    ControlDocument,
    Ending,
    MemberRecord,
    RoundDocument,
    StopOrder,
    Verdict,
)
from elastic_core.rendezvous.member.duty import ended
from elastic_core.rendezvous.member.forming import out_until
from elastic_core.rendezvous.member.observe import LINE_EVERY_S, MEMBERS, crowded
from elastic_core.rendezvous.member.outage import (
    NOTHING,
    Announced,
    announce_grace,
    announce_lost_seat,
    announce_outage,
    announce_silence,
    announce_unreachable,
    end_alone,
    gives_up_joining_s,
    grant_ends_s,
    host_lost,
    keep_lease,
    leave_to_agent,
    misses_host_s,
    stayed_away,
    stop,
    store_failure,
)
from elastic_core.rendezvous.member.protocol import Announcement
from elastic_core.rendezvous.member.state import LONG_AGO_S, NEVER_S, Progress, State, Want
from elastic_core.rendezvous.member.steps import announce_steps
from elastic_core.rendezvous.member.texts import lacks_refused, missing, nodes, timed_out, waiting
from elastic_core.rendezvous.store import CONTROL_KEY, ROUND_KEY
from elastic_core.reports import Absence, NodeReport
from elastic_core.types import Decided, FailureClass, Restart, RoundEnded, Stop, StopOrdered

PART_S = 0.5
"""How long a node that was told to stop waits, without workers, for the others to have noticed."""
GONE_S = 0.5
"""How long it says so from a seat behind all others, where others than the round's members wait for the next one."""
NAMES_LIMIT = 64
"""Up to so many members a waiting node reads who they are; beyond, it only counts them."""


def announce(state: State, now_s: float) -> Announced:
    """Return the state after all that follows from it, and the announcements, in order."""
    every: list[Announcement] = []
    for rule in _RULES:
        state, announcements = rule(state, now_s)
        every += announcements
    return state, tuple(every)


def record_of(state: State, now_s: float) -> MemberRecord:
    """Return what this member says of itself."""
    me = state.me
    mine = state.mine
    what: str = "ready" if state.absence is None else "out"
    if state.want in (Want.RUN, Want.STOP):
        what = state.progress.value if state.want is Want.RUN else _stopping(state)
        # Where the store goes with this node, the verdict comes first: the others would begin a round without it.
        if state.leaving and what != "done" and not isinstance(state.post, Verdict):
            what = "leaving"
    elif state.leaving and state.seat is not None:
        what = "leaving"  # no round is formed with it
    elif now_s < grant_ends_s(state):
        what = "running"  # as others of its round do: it has promised them to take part in no later one
    if state.farewell is not None:
        what = "gone"
    return MemberRecord(
        epoch=state.epoch,
        node=me.node,
        state=what,  # type: ignore[arg-type]  # Progress has the same words
        seen=state.seen,
        token=mine.token if mine is not None else 0,
        nonce=mine.nonce if mine is not None else "",
        address=state.address,
        alternative=state.alternative,
        master=me.master_addr or "",
        agent_port=state.agent_port,
        master_port=state.master_port,
        nproc=me.local_world_size,
        role=me.role,
        rank_hint=me.node_rank,
        boot=me.boot,
        report=_report_in_time(state) if state.want is Want.STOP else None,
        steps=state.steps if state.want is Want.RUN else None,
        absence=state.absence or state.left_out,
        stated=state.stated if state.want in (Want.RUN, Want.STOP) else {},
    )


def _report_in_time(state: State) -> NodeReport | None:
    """Return what this node has seen, by the time at which the order stood: that is the same for all."""
    report = state.report
    return report if report is None or not state.lag_s else replace(report, age_s=report.age_s + state.lag_s)


def _stopping(state: State) -> str:
    """Return what a member says of itself whose workers are being stopped, or have been."""
    if state.report is None or not state.report.final:
        return "running"
    return "done" if state.progress is Progress.DONE else "stopped"


def own_round(state: State) -> RoundDocument | None:
    """Return the run's round as it stands; None: there is none, or it is not known."""
    round_ = state.round
    return round_ if round_ is not None and ROUND_KEY in state.fresh and round_.epoch == state.epoch else None


# --- what was decided


def _drain(state: State, now_s: float) -> Announced:
    """Have the agent end by an order from outside, once; once more where the same is wanted within another time."""
    control, before = state.control, state.drain
    if CONTROL_KEY not in state.fresh or control is None or state.want in (Want.NOTHING, Want.LEAVE):
        return state, NOTHING
    stop = control.stop_order if state.epoch and control.epoch == state.epoch else None
    # One to this member counts in whatever run: also where it was not let in yet, or begins another in its place.
    order = stop or next((order for order in control.drains if order.incarnation == state.me.incarnation), None)
    if order is None or (before is not None and order.grace_s in (None, before.grace_s)):
        return state, NOTHING
    what = "this node is to leave the run" if order.incarnation else f"run {state.me.run_id!r} is stopped"
    return replace(state, drain=order), (m.DrainOrdered(text=f"{what}: {order.reason}", grace_s=order.grace_s),)


def _control(state: State, now_s: float) -> Announced:
    control = state.control
    if CONTROL_KEY not in state.fresh or control is None or not state.epoch or control.epoch != state.epoch:
        return state, NOTHING
    ordering = state.order is not None
    state = _drop_superseded(state, control)
    if ordering and state.order is None:
        state = replace(state, lag_s=state.lag_s or now_s - state.stopped_s)
    if control.verdict is not None:
        return _verdict(state, control.verdict, now_s)
    ending, mine = control.ending, state.mine
    if mine is None:
        return state, NOTHING
    if ending is None or (ending.token, ending.nonce) != (mine.token, mine.nonce):
        return _ordered(state, control.stopping, now_s)
    if state.announced >= ending.token or state.want not in (Want.RUN, Want.STOP):
        return state, NOTHING
    return replace(state, announced=ending.token, want=Want.STOP), (m.RoundChanged(change=_change(ending)),)


def _drop_superseded(state: State, control: ControlDocument) -> State:
    """Forget what this node was about to publish and others have said already: the first word stands."""
    post, order = state.post, state.order
    over = post is not None and _is_over(control, post.token, post.nonce) and not _from_outside(post)
    if post is not None and (control.verdict is not None or over):
        state = replace(state, post=None)
    if order is None:
        return state
    if control.verdict is not None or _is_over(control, order.token, order.nonce):
        return replace(state, order=None)
    stands = control.stopping
    if stands is None or (stands.token, stands.nonce) != (order.token, order.nonce):
        return state
    # Another node was first: what failed here is in that order's place nowhere, so this node's record has it.
    report = state.report if stands.incarnation == order.incarnation else state.report or order.report
    return replace(state, order=None, report=report)


def _from_outside(post: Ending | Verdict) -> bool:
    return isinstance(post, Verdict) and post.from_outside


def _is_over(control: ControlDocument, token: int, nonce: str) -> bool:
    ending = control.ending
    return ending is not None and (ending.token > token or (ending.token, ending.nonce) == (token, nonce))


def _ordered(state: State, stopping: StopOrder | None, now_s: float) -> Announced:
    """Pass the order to stop on to the agent."""
    mine = state.mine
    assert mine is not None
    if stopping is None or (stopping.token, stopping.nonce) != (mine.token, mine.nonce):
        return _order_again(state), NOTHING
    if state.want is not Want.RUN or state.stop_token >= stopping.token:
        return state, NOTHING
    state = replace(state, want=Want.STOP, stop_token=stopping.token, stopped_s=now_s, lag_s=0.0, stands=stopping)
    return state, (m.RoundChanged(change=StopOrdered(reason=stopping.reason, by=stopping.by)),)


def _order_again(state: State) -> State:
    """Put back an order that the store has lost: this node has stopped its workers for it."""
    order, control = state.stands, state.control
    if not state.awaiting or order is None or control is None or _is_over(control, order.token, order.nonce):
        return state
    return replace(state, order=order)


def _change(ending: Ending) -> RoundEnded | Decided:
    if ending.kind == "restart":
        decision = Restart(
            delay_s=ending.delay_s, exclude_nodes=ending.exclude, exclude_s=ending.exclude_s, rule=ending.rule
        )
        if ending.failure is not None and isinstance(ending.failure.decision, Restart):
            decision = replace(decision, reason=ending.failure.decision.reason)
        return Decided(decision=decision, failure=ending.failure, evidence=ending.evidence)
    if ending.kind == "asked":
        return Decided(decision=Restart(rule=ending.reason))
    planned = not ending.unclean and not ending.out
    return RoundEnded(reason=ending.reason, lost=ending.lost, arrived=ending.arrived, planned=planned)


def _verdict(state: State, verdict: Verdict, now_s: float) -> Announced:
    if state.verdict_announced:
        return state, NOTHING
    if state.want is Want.JOIN:
        state, (failed,) = closed(state, verdict, now_s)
        if isinstance(failed, m.JoinFailed) and verdict.outcome == "failed":
            failed = replace(failed, failure=verdict.failure, evidence=verdict.evidence)
        return state, (failed,)
    if state.want not in (Want.RUN, Want.STOP):
        return state, NOTHING
    decision = Stop(reason=verdict.reason, outcome=verdict.outcome, rule=verdict.rule)
    failure = verdict.failure
    if failure is None and verdict.outcome == "failed":
        failure = replace(store_failure(state, verdict.reason), failure_class=FailureClass.NODE_LOST)
        failure = replace(failure, node_id=verdict.by, exit_code=verdict.exit_code)
    state = replace(state, want=Want.STOP, verdict_announced=True)
    return state, (m.RoundChanged(change=Decided(decision=decision, failure=failure, evidence=verdict.evidence)),)


def _exclusion(state: State, now_s: float) -> Announced:
    """Note that the last decision leaves this node out, or no longer does; its time counts from when that was seen."""
    control, name = state.control, state.me.node
    if CONTROL_KEY not in state.fresh or control is None or control.epoch != state.epoch:
        return state, NOTHING
    ending, before = control.ending, state.left_out
    if ending is None or state.want is not Want.JOIN:
        return _left_out(state, None) if state.want is Want.RUN else (state, NOTHING)
    if state.ending != (ending.token, ending.nonce):
        state = replace(state, ending=(ending.token, ending.nonce), ending_s=now_s)
    until_s = out_until(ending, own_round(state), state.ending_s).get(name)
    if until_s is None or until_s <= now_s:
        return _left_out(state, None)
    for_s = None if until_s == NEVER_S else round(until_s - state.ending_s, 3)
    if before is not None and for_s is not None:
        return _left_out(state, replace(before, for_s=for_s))
    by = f"policy {ending.policy!r}" if ending.policy else "the policy"
    reason = ending.failure.summary if ending.failure is not None else "an earlier failure"
    return _left_out(state, before or Absence(by=by, reason=reason, for_s=for_s, refused=False))


def _left_out(state: State, absence: Absence | None) -> Announced:
    if absence == state.left_out:
        return state, NOTHING
    lines: tuple[Announcement, ...] = ()
    if absence is not None and state.left_out is None:
        lines = (m.PrintLine(text=f"this node is {absence.text}"),)
    return replace(state, left_out=absence), (*lines, m.LeftOut(absence=absence))


# --- the round


def _round(state: State, now_s: float) -> Announced:
    round_, control = own_round(state), state.control
    if round_ is None or CONTROL_KEY not in state.fresh or control is None or control.epoch != state.epoch:
        return state, NOTHING
    if state.kept_round is None or round_.token >= state.kept_round.token:
        state = replace(state, kept_round=round_)
    state = replace(state, seen=max(state.seen, round_.token), clock=_clock(state, round_, now_s))
    if state.post is not None and round_.token > state.post.token and not _from_outside(state.post):
        # The run has gone on without it: what was decided here is about a round that is no more.
        state = replace(state, post=None)
        if state.want is Want.STOP:
            reason = "the others have formed a round without this node"
            return stop(state, RoundEnded(reason=reason, lost=(state.me.node,), stop_within_s=0.0))
    if state.want is Want.RUN or state.awaiting:
        return _evicted(state, round_)
    if state.want is not Want.JOIN or control.verdict is not None:
        return state, NOTHING
    if ended(control, round_):
        return (replace(state, spare=False, waiting_s=now_s), NOTHING) if state.spare else (state, NOTHING)
    rank = round_.rank_of(state.me.incarnation)
    last = state.mine.token if state.mine is not None else 0
    if rank is None or round_.token <= last or state.absence is not None or state.leaving:
        return _spare(state, round_, now_s)
    # Not without a lease that lasts, and is as long as this round's: the others count on it if this node is lost.
    if state.seat is None or state.last_lease_s != state.ttl_s or now_s - state.confirmed_s > state.ttl_s / 2:
        return replace(state, renew_s=now_s), NOTHING
    if now_s < grant_ends_s(state):
        return state, NOTHING  # not before others of the round before have had their time: it has given its word
    return _formed(state, round_, rank, control, now_s)


def _clock(state: State, round_: RoundDocument, now_s: float) -> tuple[str, float]:
    """Return the run's clock: what is read late can only say that the run is younger than it is."""
    began_s = now_s - round_.at_s
    known = state.clock
    return (round_.epoch, began_s if known is None or known[0] != round_.epoch else min(known[1], began_s))


def _formed(state: State, round_: RoundDocument, rank: int, control: ControlDocument, now_s: float) -> Announced:
    state = replace(
        state,
        want=Want.RUN,
        mine=round_,
        progress=Progress.RUNNING,
        steps_wanted=0,
        steps_asked=0,
        steps_seen=0,
        steps=None,
        stated={},
        agreed=frozenset(),
        spare=False,
        line_s=NEVER_S,
        evidence_s=LONG_AGO_S,
        granted_s=LONG_AGO_S,
        unreachable=frozenset(),
        fresh=state.fresh - {MEMBERS},
        members_read_s=LONG_AGO_S,  # what members said before the round says nothing about it
    )
    return state, (m.Formed(document=round_, rank=rank, history=control.history, at_s=state.run_s(now_s)),)


def _evicted(state: State, round_: RoundDocument) -> Announced:
    mine = state.mine
    if mine is None or round_.token < mine.token or (round_.token, round_.nonce) == (mine.token, mine.nonce):
        return state, NOTHING
    reason = "the others have formed a round without this node"
    return stop(state, RoundEnded(reason=reason, lost=(state.me.node,), stop_within_s=0.0))


def _spare(state: State, round_: RoundDocument, now_s: float) -> Announced:
    """Wait beside a round that runs: as long as it takes."""
    state = replace(state, spare=True, waiting_s=now_s)
    me = state.me
    if me.spares is not None and MEMBERS in state.fresh and state.seat is not None and _surplus(state, round_):
        size = nodes(len(round_.roster))
        what = f"run {me.run_id!r} is full ({size}, --spares {me.spares}): this node is not needed"
        failed = m.JoinFailed(kind="not needed", what=what, exit_code=0)
        return replace(state, want=Want.NOTHING), (failed,)
    if me.spares is not None and MEMBERS not in state.fresh:
        return state, NOTHING  # who else waits decides whether this node is needed
    here = round_.rank_of(me.incarnation) is not None  # the others will notice that this node has left it
    if state.spare_shown or here or state.absence is not None or len(round_.roster) < me.max_nodes:
        return state, NOTHING
    text = f"run {me.run_id!r} is full ({nodes(len(round_.roster))}): waiting as a spare"
    return replace(state, spare_shown=True, line_s=NEVER_S), (m.PrintLine(text=text),)


def _surplus(state: State, round_: RoundDocument) -> bool:
    assert state.seat is not None
    number, incarnations = state.seat.number, round_.incarnations
    before = [
        member
        for member in state.members
        if member.seat < number and member.incarnation not in incarnations and member.record.epoch == state.epoch
    ]
    full = len(round_.roster) >= state.me.max_nodes
    return full and state.me.spares is not None and len(before) >= state.me.spares


def _part(state: State, now_s: float) -> Announced:
    """Leave once the round's end is known to be because of this node, or nobody says so."""
    if not state.parting:
        return state, NOTHING
    over = replace(state, parting=False, want=Want.LEAVE)
    if state.farewell is not None:
        gone = state.trouble is not None or now_s >= state.leave_s + GONE_S
        return over if gone else state, NOTHING
    known = state.verdict_announced or (state.mine is not None and state.announced >= state.mine.token)
    if state.trouble is not None or state.seat is None:
        return over, NOTHING
    if now_s < state.leave_s + (0.0 if known or state.want is Want.JOIN else PART_S):
        return state, NOTHING
    if crowded(state):
        return replace(state, farewell=state.seat.number, leave_s=now_s), NOTHING
    return over, NOTHING


# --- waiting


def knows_members(state: State, now_s: float) -> bool:
    """Return whether who is there is known well enough to be told."""
    return now_s - state.members_read_s <= 1.0 or state.live > NAMES_LIMIT


def _wait(state: State, now_s: float) -> Announced:
    if state.want is not Want.JOIN:
        return state, NOTHING
    me, trouble = state.me, state.trouble
    if trouble is not None and trouble.refused:
        failed = m.JoinFailed(kind="connection", what=f"run {me.run_id!r}: {trouble.text}", hint=trouble.hint)
        return replace(state, want=Want.NOTHING), (failed,)
    if trouble is not None and now_s >= gives_up_joining_s(state):
        away = "has not let this node in" if state.ever_connected else "could not be reached"
        what = f"run {me.run_id!r}: {me.where} {away} within {me.connect_timeout_s:g} s: {trouble.text}"
        look = "look at the store" if state.ever_connected else "check --rdzv-endpoint"
        hint = trouble.hint or f"{look}, or raise --connect-timeout"
        return replace(state, want=Want.NOTHING), (m.JoinFailed(kind="connection", what=what, hint=hint),)
    if not state.ever_connected:
        return state, NOTHING
    if now_s >= misses_host_s(state):
        what = f"run {me.run_id!r}: {host_lost(state)}"
        return replace(state, want=Want.NOTHING), (m.JoinFailed(kind="connection", what=what),)
    if trouble is not None and me.on_store_loss == "fail" and now_s >= trouble.since_s + me.store_outage_grace_s:
        what = f"run {me.run_id!r}: {stayed_away(state)} (--on-store-loss is fail)"
        return replace(state, want=Want.NOTHING), (m.JoinFailed(kind="connection", what=what, hint=trouble.hint),)
    knows = trouble is not None or knows_members(state, now_s) or not state.epoch
    if not state.spare and now_s >= state.waiting_s + me.join_timeout_s and knows:
        what, hint = timed_out(state, now_s), missing(state, now_s)
        kind = "refusal" if lacks_refused(state) else "timeout"
        return replace(state, want=Want.NOTHING), (m.JoinFailed(kind=kind, what=what, hint=hint),)
    if now_s >= state.line_s and knows:
        here = trouble is None and state.had_seat
        announcements = (m.PrintLine(text=waiting(state, now_s)),) if here else ()
        return replace(state, line_s=now_s + LINE_EVERY_S), announcements
    return state, NOTHING


_RULES: tuple[Callable[[State, float], Announced], ...] = (
    keep_lease,
    meet,
    _drain,  # before a verdict: the run of which somebody has ended it ends by that
    _control,
    _exclusion,
    announce_steps,
    announce_agreed,
    _round,
    _wait,  # before `announce_outage`: whoever gives up says why
    announce_outage,
    announce_lost_seat,
    announce_grace,
    announce_unreachable,
    announce_silence,
    end_alone,
    leave_to_agent,
    _part,
)
