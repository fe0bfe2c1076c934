"""The rendezvous of one member as a pure state machine: events go in, the next operation and announcements come out.

`step` is total: it accepts every event in every state. `observe` reduces the events into the state, `announce` derives
the announcements, and the first rule below that has work to do returns the next operation. Exactly one operation is
under way at any time. `Watch`, the longest one, ends early when there is a new event. No rule reads a clock or a random
number: the same events at the same times give the same results.

Source: the design's section on the three interfaces, *CoordinationStore*. docs/explanation/rendezvous.md explains the
protocol with its reasons.
"""

from collections.abc import Callable

from msgspec.structs import replace

from elastic_core.rendezvous.address import is_ip
from elastic_core.rendezvous.member import outage, protocol
from elastic_core.rendezvous.member.admission import looks_again_s, puts_back
from elastic_core.rendezvous.member.announce import GONE_S, PART_S, announce, knows_members, record_of
from elastic_core.rendezvous.member.documents import ControlDocument, Verdict, encode
from elastic_core.rendezvous.member.leader import DEPUTIES, Planned, do_duty, swap_control, swap_round
from elastic_core.rendezvous.member.observe import MEMBERS, observe
from elastic_core.rendezvous.member.protocol import MemberStep
from elastic_core.rendezvous.member.questions import to_publish
from elastic_core.rendezvous.member.state import LONG_AGO_S, NEVER_S, Progress, State, Want
from elastic_core.rendezvous.store import CONTROL_KEY, ROUND_KEY, Renewal, Topic, Watched

LAST_POST_S = 2.0
"""How long a leaving node with the run's verdict waits for an unreachable store to publish it, in seconds."""
_READ_COST_S = 0.0002
"""Pause per member between two reads of all members by the leader, in seconds, so that reads do not fill its time."""
_LONGEST_READ_PAUSE_S = 0.25
_EXPIRY_MARGIN_S = 0.01

MemberRule = Callable[[State, float], Planned]


def step(state: State, events: tuple[protocol.Event, ...], *, now_s: float) -> MemberStep:
    """Return a member's next operation and announcements after `events`, in order."""
    quick = _quick_step(state, events, now_s)
    if quick is not None:
        return quick
    observed = replace(state, settled=False)
    for event in events:
        observed = observe(observed, event, now_s)
    state, announcements = announce(observed, now_s)
    state = outage.grant(state, now_s)
    for rule in _RULES:
        state, operation = rule(state, now_s)
        if operation is not None:
            if rule is _watch and not announcements and state == observed and _has_no_timers(state, now_s):
                state = replace(state, settled=True)
            reason = rule.__name__.strip("_")
            return MemberStep(state=state, operation=operation, announcements=announcements, reason=reason)
    raise AssertionError("the last rule always answers")


def _quick_step(state: State, events: tuple[protocol.Event, ...], now_s: float) -> MemberStep | None:
    """Return the step that all rules would take, for most steps of an idle member; `None` if the rules must run."""
    lease = state.lease
    match events:
        # A watch ended without a change when a renewal is due: then only `_renew` has work.
        case (protocol.WatchEnded(watched=Watched(revisions=revisions, reset=False)),) if revisions == state.seen.since:
            waits = state.trouble is None and state.want is not Want.LEAVE
            if lease.seat is not None and waits and lease.renew_s <= now_s < state.cut_s:
                renew = protocol.Renew(seat=lease.seat, ttl_s=state.ttl_s)
                return MemberStep(state=state, operation=renew, reason="renew")
        # The renewal found as many members as before: all rules have run on this state, and changed nothing.
        case (protocol.Renewed(renewal=Renewal(ahead=lease.ahead, live=state.seen.live)) as event,) if state.settled:
            state = observe(state, event, now_s)
            watch = _watch(state, now_s)[1]
            # Any other time at which a rule may have work would end the watch before the next renewal.
            if isinstance(watch, protocol.Watch) and watch.until_s == state.lease.renew_s:
                return MemberStep(state=state, operation=watch, reason="watch")
    return None


def _has_no_timers(state: State, now_s: float) -> bool:
    # These rules read the time, but their times do not end a watch: the steps after renewals are frequent enough.
    work = state.work
    asks = work.wanted or work.asked > work.concluded or state.lease.repeat_s < NEVER_S
    runs = state.want is Want.RUN and state.trouble is None and not state.departure.parting
    return runs and not asks and state.duty.memory.losses_from_s <= now_s


# --- nothing to do with the store


def _idle(state: State, now_s: float) -> Planned:
    return state, protocol.Pause(until_s=NEVER_S) if state.want is Want.NOTHING else None


def _leave(state: State, now_s: float) -> Planned:
    """Leave, unless this node has to publish something first."""
    if state.want is not Want.LEAVE:
        return state, None
    if state.trouble is not None and now_s < _last_post_s(state):
        return state, None
    away = state.trouble is not None and not state.trouble.answers
    post, seat = state.end.post if state.trouble is None else None, state.lease.seat
    # Without a connection no seat can be returned: the lease ends on its own, and other members notice that.
    if away or not state.connection.connected or (seat is None and post is None):
        return state, protocol.Gone()
    # The verdict of this node is published first, by `_post` below; `_leave_at_last` gives the seat back afterwards.
    if post is not None or seat is None:
        return state, None
    return state, protocol.Withdraw(seat=seat)


def _last_post_s(state: State) -> float:
    """Return until when a leaving node tries to publish how the run ended, because other nodes may wait for it."""
    waits = state.want is Want.LEAVE and isinstance(state.end.post, Verdict) and state.connection.ever_connected
    return state.departure.leave_s + LAST_POST_S if waits else NEVER_S * -1


def _trouble(state: State, now_s: float) -> Planned:
    """Wait for the next retry."""
    trouble = state.trouble
    if trouble is None or now_s >= trouble.retry_s:
        return state, None
    return state, protocol.Pause(until_s=min(trouble.retry_s, _deadline_s(state, now_s)))


def _deadline_s(state: State, now_s: float) -> float:
    """Return the latest time at which this member must run its rules again."""
    due = [
        outage.gives_up_s(state),
        outage.misses_host_s(state),
        outage.outage_line_s(state, now_s),
        outage.undecided_s(state),
        outage.grace_line_s(state),
    ]
    if state.want is Want.LEAVE:
        due.append(_last_post_s(state))
    departure, waiting = state.departure, state.waiting
    if departure.parting:
        due += [due_s for due_s in (departure.leave_s + GONE_S, departure.leave_s + PART_S) if due_s > now_s]
    if outage.needs_lease(state):
        # While the store is away, the cut comes first, otherwise the fence. The fence passes only if this agent got no
        # CPU time for long.
        due.append(state.cut_s if state.trouble is not None else state.fence_s)
    if state.want is Want.JOIN:
        if outage.grant_ends_s(state) > now_s:
            due.append(outage.grant_ends_s(state))
        due.append(outage.gives_up_joining_s(state))
        if state.connection.ever_connected and not waiting.spare:
            due += [waiting.line_s, waiting.since_s + state.me.join_timeout_s]
    if state.trouble is not None and state.me.on_store_loss == "fail" and state.want is Want.RUN:
        due.append(state.trouble.since_s + state.me.store_outage_grace_s)
    return max(min(due), now_s + 0.001)


def _connect(state: State, now_s: float) -> Planned:
    return state, None if state.connection.connected else protocol.Connect()


# --- the lease, and which run this is


def _begin_to_watch(state: State, now_s: float) -> Planned:
    """Read the topics' revisions before any content, so that no later change is missed."""
    begun = state.seen.since is not None
    return state, None if begun else protocol.Watch(since=None, topics=_topics(state), until_s=now_s)


def _renew(state: State, now_s: float) -> Planned:
    lease = state.lease
    if lease.seat is None or state.want is Want.LEAVE:
        return state, None
    # The leader and its first deputy renew as soon as another member's lease has ended, not at their next renewal: the
    # store's reply has the new order of the seats.
    expired = lease.ahead <= 1 and now_s >= lease.expiry_s + _EXPIRY_MARGIN_S
    if now_s >= lease.renew_s or expired:
        return state, protocol.Renew(seat=lease.seat, ttl_s=state.ttl_s)
    return state, None


def _read_control(state: State, now_s: float) -> Planned:
    return state, None if CONTROL_KEY in state.seen.fresh else protocol.Load(key=CONTROL_KEY)


def _write_control(state: State, now_s: float) -> Planned:
    """Begin the run, or write a lost control document again."""
    control, run = state.seen.control, state.run
    if control is not None and control.epoch == run.epoch:
        return state, None
    # Any member fills an empty store with its copy; only a member with workers replaces another run's document.
    if run.epoch and run.kept_control is not None and (control is None or puts_back(state)):
        # Another run's document is there. Only a run without a round may be replaced, so its round is read first.
        if control is not None and ROUND_KEY not in state.seen.fresh:
            return state, protocol.Load(key=ROUND_KEY)
        return swap_control(state, run.kept_control)
    if control is not None and state.want is Want.LEAVE:
        return state, None  # its decision is about a run that is no longer in the store
    if control is None or run.begin:
        me = state.me
        fresh = ControlDocument(
            epoch=me.fresh_epoch,
            attempt=me.attempt,
            secret=me.secret,
            fingerprint=dict(me.fingerprint),
            given=me.attempt_given,
            job=me.job,
            user=me.user,
            over_s=me.over_s,
        )
        return swap_control(replace(state, run=run.none()), fresh)
    if ROUND_KEY not in state.seen.fresh:
        return state, protocol.Load(key=ROUND_KEY)
    return _survey_run(state, control, now_s)


def _survey_run(state: State, control: ControlDocument, now_s: float) -> Planned:
    """Find out whether the run in the store continues, or how long ago it ended."""
    ended, lease = state.run.ended, state.lease
    if control.verdict is not None and (ended is None or ended.epoch != control.epoch):
        return state, protocol.Load(key=CONTROL_KEY)
    look_s = looks_again_s(state, control)
    if now_s >= look_s:
        return state, protocol.SurveyRun()
    until_s = min(look_s, _deadline_s(state, now_s), lease.renew_s if lease.seat is not None else NEVER_S)
    topics = (Topic.CONTROL, Topic.ROUND, Topic.MEMBERS)
    return state, protocol.Watch(since=state.seen.since, topics=topics, until_s=max(until_s, now_s + 0.001))


def _give_up_seat(state: State, now_s: float) -> Planned:
    """Give up the seat for one behind all others: its record there reports to the leader that no worker is left."""
    seat = state.lease.seat
    if seat is None or seat.number != state.departure.farewell or state.want is Want.LEAVE:
        return state, None
    return state, protocol.Withdraw(seat=seat)


def _enlist(state: State, now_s: float) -> Planned:
    if state.lease.seat is not None or state.want is Want.LEAVE:
        return state, None
    alternative = state.connection.alternative
    if alternative and not is_ip(alternative) and state.seen.members_read_s == LONG_AGO_S:
        # This host has a loopback address, and routes only to its own networks. Other members may be on these networks;
        # their addresses decide which of this host's addresses they can use.
        return state, protocol.ReadMembers()
    return state, protocol.Enlist(record=encode(record_of(state, now_s)), ttl_s=state.ttl_s)


def _read_round(state: State, now_s: float) -> Planned:
    # In a crowd, members read the roster in turn: it is so long that replies to all at once would come too late.
    waits = ROUND_KEY in state.seen.fresh or now_s < state.seen.round_s
    return state, None if waits else protocol.Load(key=ROUND_KEY)


def _write_round(state: State, now_s: float) -> Planned:
    """Write the round again if the store lost it or a later write of it."""
    kept, round_ = state.run.kept_round, state.own_round
    if ROUND_KEY not in state.seen.fresh or kept is None or kept.epoch != state.run.epoch:
        return state, None
    if round_ is not None and round_.token >= kept.token:
        return state, None
    return swap_round(state, kept)


def _update(state: State, now_s: float) -> Planned:
    record = encode(record_of(state, now_s))
    # A request that was given up during trouble may have arrived after the last update.
    if now_s >= state.lease.repeat_s:
        state = replace(state, lease=replace(state.lease, repeat_s=NEVER_S, recorded=b""))
    if state.lease.seat is None or state.want is Want.LEAVE or record == state.lease.recorded:
        return state, None
    return state, protocol.Update(seat=state.lease.seat, record=record)


def _order(state: State, now_s: float) -> Planned:
    """Publish the order that all nodes stop, first of all; `announce` drops the order once one is in the store."""
    order, control = state.end.order, state.own_control
    if order is None or control is None:
        return state, None
    return swap_control(state, replace(control, stopping=order))


def _post(state: State, now_s: float) -> Planned:
    """Publish this node's decision, which `announce` drops once a decision is in the store; or else a question."""
    control, post = state.own_control, state.end.post
    if control is None or post is not None:
        return (state, None) if control is None or post is None else swap_control(state, control.after(post))
    question = to_publish(state, control, now_s)
    return (state, None) if question is None else swap_control(state, replace(control, question=question))


def _leave_at_last(state: State, now_s: float) -> Planned:
    """Leave after this node's last publication, or when it is no longer needed."""
    if state.want is not Want.LEAVE:
        return state, None
    seat, state = state.lease.seat, replace(state, end=replace(state.end, post=None))
    return state, protocol.Gone() if seat is None else protocol.Withdraw(seat=seat)


# --- the leader's duties


def _pending(state: State) -> bool:
    return state.want in (Want.JOIN, Want.STOP) or state.work.progress is Progress.DONE


def _members(state: State, now_s: float) -> Planned:
    """Read the members: the leader after a change, its deputies at intervals while a duty may be due."""
    due_s, ahead, seen, duty = NEVER_S, state.lease.ahead, state.seen, state.duty
    if ahead == 0:
        pause_s = min(_LONGEST_READ_PAUSE_S, len(seen.members) * _READ_COST_S)
        due_s = seen.members_read_s + pause_s if MEMBERS not in seen.fresh else NEVER_S
        if seen.members_read_s < duty.look_s <= now_s:
            # A decision that is due now depends on the current members. A leader may lack recent changes if it got no
            # CPU time for a while or its store was slow.
            due_s = now_s
    # Deputies read once per renewal period: for them a late duty costs less than a read of 1,000 members.
    elif ahead <= DEPUTIES and (MEMBERS not in seen.fresh or _pending(state) or duty.outstanding):
        due_s = seen.members_read_s + state.period_s
    if _wants_names(state, now_s):
        due_s = now_s
    if now_s >= due_s:
        return state, protocol.ReadMembers()
    return replace(state, duty=replace(duty, look_s=due_s)), None


def _wants_names(state: State, now_s: float) -> bool:
    # Names are read only for a line or an error that is due, or to find out whether a spare is needed.
    if state.want is not Want.JOIN or knows_members(state, now_s):
        return False
    if state.waiting.spare:
        return state.me.spares is not None and MEMBERS not in state.seen.fresh
    return now_s >= min(state.waiting.line_s, state.waiting.since_s + state.me.join_timeout_s)


# --- waiting


def _topics(state: State) -> tuple[Topic, ...]:
    topics = (Topic.CONTROL, Topic.ROUND, Topic.DEPARTURES)
    # Only the leader acts on each change of a record; 1,000 members would wake up for nothing.
    return (*topics, Topic.MEMBERS) if state.lease.ahead == 0 and state.lease.seat is not None else topics


def _watch(state: State, now_s: float) -> Planned:
    until_s = min(state.lease.renew_s, state.duty.look_s, _deadline_s(state, now_s))
    if ROUND_KEY not in state.seen.fresh:
        until_s = min(until_s, state.seen.round_s)
    if state.lease.ahead <= 1:
        until_s = min(until_s, state.lease.expiry_s + _EXPIRY_MARGIN_S)
    return state, protocol.Watch(since=state.seen.since, topics=_topics(state), until_s=max(until_s, now_s + 0.001))


_RULES: tuple[MemberRule, ...] = (
    _idle,
    _leave,
    _trouble,
    _connect,
    _begin_to_watch,
    _renew,
    _read_control,
    _write_control,
    _give_up_seat,
    _enlist,
    _read_round,
    _write_round,
    _order,
    _update,
    _post,
    _leave_at_last,
    _members,
    do_duty,
    _watch,
)
