"""What follows from what a member knows, without asking anybody: what its agent must be told. Pure.

Each rule looks at the state alone and may be applied again and again; one that has nothing (more) to say changes
nothing.
"""

from collections.abc import Callable

from msgspec.structs import replace

from elastic_core.rendezvous import membership as m
from elastic_core.rendezvous.documents import (
    ControlDocument,
    Ending,
    MemberRecord,
    RoundDocument,
    StopOrder,
    Verdict,
)
from elastic_core.rendezvous.duties import ended
from elastic_core.rendezvous.hearing import MEMBERS, SAY_EVERY_S
from elastic_core.rendezvous.identity import compare_fingerprints, mismatch_error, mismatch_warning
from elastic_core.rendezvous.membership import Announcement, State, Want
from elastic_core.rendezvous.roster import given_id
from elastic_core.rendezvous.store import CONTROL_KEY, ROUND_KEY
from elastic_core.rendezvous.texts import missing, nodes, timed_out, waiting
from elastic_core.types import Decided, Failure, FailureClass, Restart, RoundEnded, Stop, StopOrdered, Undecided

SAY_AFTER_S = 1.0
"""A store that is away for less is not worth a line."""
NAMES_LIMIT = 64
"""Up to so many members a waiting node reads who they are; beyond, it only counts them."""

Heeded = tuple[State, tuple[Announcement, ...]]
_NOTHING: tuple[Announcement, ...] = ()


def heed(state: State, now_s: float) -> Heeded:
    """Return the state after all that follows from it, and what to tell the agent, in order."""
    told: list[Announcement] = []
    for rule in _RULES:
        state, announcements = rule(state, now_s)
        told += announcements
    return state, tuple(told)


def record_of(state: State) -> MemberRecord:
    """Return what this member says of itself."""
    me = state.me
    mine = state.mine
    said: str = "ready"
    if state.want in (Want.RUN, Want.STOP):
        said = state.progress.value if state.want is Want.RUN else _stopping(state)
        if state.leaving and said != "done":
            said = "leaving"
    return MemberRecord(
        epoch=state.epoch,
        node=me.node,
        state=said,  # type: ignore[arg-type]  # Progress has the same words
        seen=state.seen,
        token=mine.token if mine is not None else 0,
        nonce=mine.nonce if mine is not None else "",
        address=state.address,
        alternative=state.alternative,
        master=me.master,
        agent_port=state.agent_port,
        master_port=state.master_port,
        nproc=me.nproc,
        role=me.role,
        rank_hint=me.rank_hint,
        boot=me.boot,
        report=state.report if state.want is Want.STOP else None,
    )


def _stopping(state: State) -> str:
    """Return what a member says of itself whose workers are being stopped, or have been."""
    if state.report is None or not state.report.final:
        return "running"
    return "done" if state.progress is m.Progress.DONE else "stopped"


def own_round(state: State) -> RoundDocument | None:
    """Return the run's round as it stands; None: there is none, or it is not known."""
    round_ = state.round
    return round_ if round_ is not None and ROUND_KEY in state.fresh and round_.epoch == state.epoch else None


def _store_failure(state: State, summary: str) -> Failure:
    return Failure(
        failure_class=FailureClass.STORE,
        summary=summary,
        node_id=state.me.node,
        round_index=state.mine.index if state.mine is not None else -1,
        at_s=0.0,
        uptime_s=0.0,
        exit_code=4,
        message=summary,
    )


# --- the lease


def _lease(state: State, now_s: float) -> Heeded:
    """Stop in time what a lease no longer covers."""
    if not needs_lease(state):
        return state, _NOTHING
    cut_s = state.lease_s + state.me.cut_s
    # Trouble that began later says nothing about the host of the store: this node itself stood still.
    stood_still = state.me.hosted and state.trouble is not None and state.trouble.since_s >= cut_s
    if state.trouble is not None and now_s >= cut_s and not stood_still:
        return _cut_off(state, now_s)
    if now_s >= state.fence_s or stood_still:
        silent_s = now_s - state.lease_s
        reason = f"this node gave no sign of life for {silent_s:.1f} s, longer than its lease allows"
        return _stop(state, RoundEnded(reason=reason, lost=(state.me.node,), stop_within_s=0.0))
    return state, _NOTHING


def needs_lease(state: State) -> bool:
    """Return whether this node has something to lose with its lease: workers, or the store that went with its host."""
    return state.want is Want.RUN and (state.progress is not m.Progress.DONE or state.me.hosted)


def misses_host_s(state: State) -> float:
    """Return when a node that waits in a run with rounds no longer waits for the host of its store."""
    trouble, round_ = state.trouble, state.kept_round
    if not state.me.hosted or state.want is not Want.JOIN or trouble is None or round_ is None:
        return m.NEVER_S
    return max(trouble.since_s, state.began_s) + state.me.cut_s


def gives_up_s(state: State) -> float:
    """Return when a node whose workers have all ended well no longer waits for a store that is away to say so."""
    trouble, mine = state.trouble, state.mine
    if state.want is not Want.RUN or state.progress is not m.Progress.DONE or trouble is None or mine is None:
        return m.NEVER_S
    return trouble.since_s + (SAY_AFTER_S if len(mine.roster) == 1 else state.me.outage_grace_s)


def _alone_at_the_end(state: State, now_s: float) -> Heeded:
    """End well without the run's word, where nobody can give it: all that was to be done here is done."""
    if now_s < gives_up_s(state):
        return state, _NOTHING
    reason = f"all workers of this node finished, and {state.me.where} is away"
    return _stop(state, Decided(decision=Stop(reason=reason, outcome="done", rule="store")))


def _stop(state: State, change: RoundEnded | Decided) -> Heeded:
    return replace(state, want=Want.STOP, stop_told=0, order=None), (m.Changed(change=change),)


def undecided_s(state: State) -> float:
    """Return when a node whose round was stopped no longer waits for a store that is away."""
    trouble, mine, me = state.trouble, state.mine, state.me
    gone = state.report is not None and state.report.final
    if not state.awaiting or state.alone or not gone or trouble is None or mine is None:
        return m.NEVER_S
    if me.hosted:
        return state.lease_s + me.cut_s
    alone = len(mine.roster) == 1
    return max(trouble.since_s + (SAY_AFTER_S if alone else me.outage_grace_s), state.stopped_s + SAY_AFTER_S)


def _undecided(state: State, now_s: float) -> Heeded:
    """Have this node decide for itself, where nobody can say what the run has decided."""
    if now_s < undecided_s(state):
        return state, _NOTHING
    hosted = state.me.hosted
    why = _host_lost(state) if hosted else f"{state.me.where} is away, so that the run can't decide"
    return replace(state, alone=True), (m.Changed(change=Undecided(reason=why, final=hosted)),)


def _host_lost(state: State) -> str:
    return f"the node that hosts the rendezvous store, {state.me.where}, is lost or can't be reached"


def _cut_off(state: State, now_s: float) -> Heeded:
    me = state.me
    if me.hosted:
        summary = _host_lost(state)
        failure = _store_failure(state, summary)
        return _stop(state, Decided(decision=Stop(reason=summary, rule="store"), failure=failure))
    reason = f"this node is cut off from {me.where}: no other node of the round says that it is away for all"
    within_s = max(0.0, state.fence_s - now_s)
    return _stop(state, RoundEnded(reason=reason, lost=(me.node,), stop_within_s=within_s))


def says_away_s(state: State, now_s: float) -> float:
    """Return when people are told next that the store is away: never where an error says it all just then."""
    if state.trouble is None or state.away_said or state.want in (Want.NOTHING, Want.LEAVE):
        return m.NEVER_S
    say_s = max(now_s, state.trouble.since_s + SAY_AFTER_S)
    if state.want is Want.JOIN and not state.ever_connected:
        error_s = state.began_s + state.me.connect_timeout_s
        return say_s if say_s + SAY_AFTER_S <= error_s else m.NEVER_S
    return say_s


def _away(state: State, now_s: float) -> Heeded:
    """Tell people that the store is away, and that it is back: one line each."""
    trouble, me = state.trouble, state.me
    if trouble is None:
        if not state.away_said:
            return state, _NOTHING
        return replace(state, away_said=False), (m.Said(text=f"store back: {me.where}"),)
    away_s = now_s - trouble.since_s
    told: tuple[Announcement, ...] = ()
    if now_s >= says_away_s(state, now_s):
        goes_on = "workers keep running" if state.want is Want.RUN else "trying again"
        told = (m.Said(text=f"store unreachable: {trouble.text}; {goes_on}"),)
        state = replace(state, away_said=True)
    if me.fail_on_loss and state.want is Want.RUN and away_s >= me.outage_grace_s:
        summary = f"{me.where} stayed away for {me.outage_grace_s:g} s: {trouble.text}"
        decision = Stop(reason="--on-store-loss is fail", rule="store")
        state, stop = _stop(state, Decided(decision=decision, failure=_store_failure(state, summary)))
        told += stop
    return state, told


# --- which run it is


def _meet(state: State, now_s: float) -> Heeded:
    """Find out whether the run in the store is this member's."""
    control = state.control
    if CONTROL_KEY not in state.fresh or control is None or state.begin or control.epoch == state.epoch:
        return state, _NOTHING
    if state.want in (Want.NOTHING, Want.LEAVE):
        return state, _NOTHING
    if state.epoch:
        return _meet_other(state, control)
    if control.verdict is not None and control.attempt == state.me.attempt:
        return _meet_verdict(state, control, control.verdict)
    if control.verdict is not None or control.attempt < state.me.attempt:
        return replace(state, begin=True), _NOTHING
    if control.attempt > state.me.attempt:
        return _superseded(state, control)
    return _compare(state, control)


def _meet_verdict(state: State, control: ControlDocument, verdict: Verdict) -> Heeded:
    """Give a latecomer the verdict; let a node that was there, or one that begins the run again, begin a new one."""
    if ROUND_KEY not in state.fresh:
        return state, _NOTHING
    round_ = state.round
    if (
        round_ is None
        or round_.epoch != control.epoch
        or any(given_id(entry.node) == state.me.node for entry in round_.roster)
    ):
        return replace(state, begin=True), _NOTHING
    return _closed(state, verdict)


def _closed(state: State, verdict: Verdict) -> Heeded:
    ended_how = "has ended well" if verdict.outcome == "done" else "has failed"
    hint = "" if verdict.outcome == "done" else "another --rdzv-id, or --rdzv-attempt, to begin it again"
    why = f"{verdict.failure.summary}; {verdict.reason}" if verdict.failure is not None else verdict.reason
    what = f"run {state.me.run_id!r} {ended_how}: {why}"
    failed = m.JoinFailed(kind="closed", what=what, hint=hint, exit_code=verdict.exit_code)
    return replace(state, want=Want.NOTHING, verdict_told=True), (failed,)


def _superseded(state: State, control: ControlDocument) -> Heeded:
    what = f"attempt {control.attempt} of run {state.me.run_id!r} has begun, and this node is of attempt"
    what = f"{what} {state.me.attempt}"
    if state.want is Want.RUN or state.awaiting:
        failure = replace(_store_failure(state, what), failure_class=FailureClass.RENDEZVOUS)
        return _stop(state, Decided(decision=Stop(reason=what, rule="attempt"), failure=failure))
    if state.want is not Want.JOIN:
        return state, _NOTHING
    hint = "a higher --rdzv-attempt, or leave the run to the others"
    return replace(state, want=Want.NOTHING), (m.JoinFailed(kind="refused", what=what, hint=hint),)


def _compare(state: State, control: ControlDocument) -> Heeded:
    me = state.me
    refusals, warnings = compare_fingerprints(me.fingerprint, control.fingerprint, me.allow_mismatch)
    if refusals:
        error = mismatch_error(me.run_id, me.where, refusals)
        failed = m.JoinFailed(kind="refused", what=error.what, hint=error.hint)
        return replace(state, want=Want.NOTHING), (failed,)
    told = (m.Said(text=mismatch_warning(me.run_id, warnings)),) if warnings else ()
    return replace(state, epoch=control.epoch, kept=control, kept_round=None), told


def _meet_other(state: State, control: ControlDocument) -> Heeded:
    """Decide between the run that this member is of and another one that stands in the store.

    One that has no round yet was begun after the store had lost ours: ours is put back (by `machine`).
    """
    if control.attempt > state.me.attempt:
        return _superseded(state, control)
    if ROUND_KEY not in state.fresh:
        return state, _NOTHING
    theirs = state.round is not None and state.round.epoch == control.epoch
    if puts_back(state) and not theirs:
        return state, _NOTHING
    told: tuple[Announcement, ...] = ()
    if state.want is Want.RUN or state.awaiting:
        change = RoundEnded(reason="the store lost this run, and another has begun", stop_within_s=0.0)
        state, told = _stop(state, change)
    return replace(state, epoch="", kept=None, kept_round=None), told


def puts_back(state: State) -> bool:
    """Return whether this member would put its copy of the control document in the place of another run's."""
    control = state.control
    return (
        state.kept is not None
        and state.kept_round is not None
        and state.want in (Want.RUN, Want.STOP)
        and (control is None or (control.verdict is None and control.attempt == state.me.attempt))
    )


# --- what was decided


def _control(state: State, now_s: float) -> Heeded:
    control = state.control
    if CONTROL_KEY not in state.fresh or control is None or not state.epoch or control.epoch != state.epoch:
        return state, _NOTHING
    state = _unsay(state, control)
    if control.verdict is not None:
        return _verdict(state, control.verdict)
    ending, mine = control.ending, state.mine
    if mine is None:
        return state, _NOTHING
    if ending is None or (ending.token, ending.nonce) != (mine.token, mine.nonce):
        return _ordered(state, control.stopping, now_s)
    if state.told >= ending.token or state.want not in (Want.RUN, Want.STOP):
        return state, _NOTHING
    return replace(state, told=ending.token, want=Want.STOP), (m.Changed(change=_change(ending)),)


def _unsay(state: State, control: ControlDocument) -> State:
    """Forget what this node was about to publish and others have said already: the first word stands."""
    post, order = state.post, state.order
    if post is not None and (control.verdict is not None or _is_over(control, post.token, post.nonce)):
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


def _is_over(control: ControlDocument, token: int, nonce: str) -> bool:
    ending = control.ending
    return ending is not None and (ending.token > token or (ending.token, ending.nonce) == (token, nonce))


def _ordered(state: State, stopping: StopOrder | None, now_s: float) -> Heeded:
    """Pass the order to stop on to the agent."""
    mine = state.mine
    assert mine is not None
    if stopping is None or (stopping.token, stopping.nonce) != (mine.token, mine.nonce):
        return _order_again(state), _NOTHING
    if state.want is not Want.RUN or state.stop_told >= stopping.token:
        return state, _NOTHING
    state = replace(state, want=Want.STOP, stop_told=stopping.token, stopped_s=now_s, stands=stopping)
    return state, (m.Changed(change=StopOrdered(reason=stopping.reason, by=stopping.by)),)


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
        return Decided(decision=decision, failure=ending.failure, evidence=ending.evidence)
    return RoundEnded(reason=ending.reason, lost=ending.lost, arrived=ending.arrived)


def _verdict(state: State, verdict: Verdict) -> Heeded:
    if state.verdict_told:
        return state, _NOTHING
    if state.want is Want.JOIN:
        return _closed(state, verdict)
    if state.want not in (Want.RUN, Want.STOP):
        return state, _NOTHING
    decision = Stop(reason=verdict.reason, outcome=verdict.outcome, rule=verdict.rule)
    failure = verdict.failure
    if failure is None and verdict.outcome == "failed":
        failure = replace(_store_failure(state, verdict.reason), failure_class=FailureClass.NODE_LOST)
        failure = replace(failure, node_id=verdict.by, exit_code=verdict.exit_code)
    state = replace(state, want=Want.STOP, verdict_told=True)
    return state, (m.Changed(change=Decided(decision=decision, failure=failure, evidence=verdict.evidence)),)


# --- the round


def _round(state: State, now_s: float) -> Heeded:
    round_, control = own_round(state), state.control
    if round_ is None or CONTROL_KEY not in state.fresh or control is None or control.epoch != state.epoch:
        return state, _NOTHING
    if state.kept_round is None or round_.token >= state.kept_round.token:
        state = replace(state, kept_round=round_)
    state = replace(state, seen=max(state.seen, round_.token))
    if state.post is not None and round_.token > state.post.token:
        # The run has gone on without it: what was decided here is about a round that is no more.
        state = replace(state, post=None)
        if state.want is Want.STOP:
            reason = "the others have formed a round without this node"
            return _stop(state, RoundEnded(reason=reason, lost=(state.me.node,), stop_within_s=0.0))
    if state.want is Want.RUN or state.awaiting:
        return _evicted(state, round_)
    if state.want is not Want.JOIN or control.verdict is not None:
        return state, _NOTHING
    if ended(control, round_):
        return (replace(state, spare=False, waiting_s=now_s), _NOTHING) if state.spare else (state, _NOTHING)
    rank = round_.rank_of(state.me.incarnation)
    last = state.mine.token if state.mine is not None else 0
    if rank is None or round_.token <= last:
        return _spare(state, round_, now_s)
    if state.seat is None or now_s - state.confirmed_s > state.me.ttl_s / 2:
        return replace(state, renew_s=now_s), _NOTHING  # not without a lease that lasts
    return _formed(state, round_, rank, control)


def _formed(state: State, round_: RoundDocument, rank: int, control: ControlDocument) -> Heeded:
    state = replace(
        state,
        want=Want.RUN,
        mine=round_,
        progress=m.Progress.RUNNING,
        spare=False,
        say_s=m.NEVER_S,
        fresh=state.fresh - {MEMBERS},
        members_read_s=m.LONG_AGO_S,  # what members said before the round says nothing about it
    )
    fenced = m.Fenced(until_s=state.fence_s)
    return state, (fenced, m.Formed(document=round_, rank=rank, history=control.history))


def _evicted(state: State, round_: RoundDocument) -> Heeded:
    mine = state.mine
    if mine is None or round_.token < mine.token or (round_.token, round_.nonce) == (mine.token, mine.nonce):
        return state, _NOTHING
    reason = "the others have formed a round without this node"
    return _stop(state, RoundEnded(reason=reason, lost=(state.me.node,), stop_within_s=0.0))


def _spare(state: State, round_: RoundDocument, now_s: float) -> Heeded:
    """Wait beside a round that runs: as long as it takes."""
    state = replace(state, spare=True, waiting_s=now_s)
    me = state.me
    if me.spares is not None and MEMBERS in state.fresh and state.seat is not None and _surplus(state, round_):
        size = nodes(len(round_.roster))
        what = f"run {me.run_id!r} is full ({size}, --spares {me.spares}): this node is not needed"
        failed = m.JoinFailed(kind="not needed", what=what, exit_code=0)
        return replace(state, want=Want.NOTHING), (failed,)
    if me.spares is not None and MEMBERS not in state.fresh:
        return state, _NOTHING  # who else waits decides whether this node is needed
    here = round_.rank_of(me.incarnation) is not None  # the others will notice that this node has left it
    if state.spare_said or here or len(round_.roster) < me.max_nodes:
        return state, _NOTHING
    text = f"run {me.run_id!r} is full ({nodes(len(round_.roster))}): waiting as a spare"
    return replace(state, spare_said=True, say_s=m.NEVER_S), (m.Said(text=text),)


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


# --- waiting


def knows_members(state: State, now_s: float) -> bool:
    """Return whether who is there is known well enough to be told."""
    return now_s - state.members_read_s <= 1.0 or state.live > NAMES_LIMIT


def _wait(state: State, now_s: float) -> Heeded:
    if state.want is not Want.JOIN:
        return state, _NOTHING
    me, trouble = state.me, state.trouble
    if trouble is not None and trouble.refused:
        failed = m.JoinFailed(kind="connection", what=f"run {me.run_id!r}: {trouble.text}", hint=trouble.hint)
        return replace(state, want=Want.NOTHING), (failed,)
    if not state.ever_connected:
        if now_s < state.began_s + me.connect_timeout_s or trouble is None:
            return state, _NOTHING
        what = f"run {me.run_id!r}: {me.where} could not be reached within {me.connect_timeout_s:g} s: {trouble.text}"
        hint = trouble.hint or "check --rdzv-endpoint, or raise --connect-timeout"
        return replace(state, want=Want.NOTHING), (m.JoinFailed(kind="connection", what=what, hint=hint),)
    if now_s >= misses_host_s(state):
        what = f"run {me.run_id!r}: {_host_lost(state)}"
        return replace(state, want=Want.NOTHING), (m.JoinFailed(kind="connection", what=what),)
    knows = trouble is not None or knows_members(state, now_s)
    if not state.spare and now_s >= state.waiting_s + me.join_timeout_s and knows:
        what = timed_out(state)
        return replace(state, want=Want.NOTHING), (m.JoinFailed(kind="timeout", what=what, hint=missing(state)),)
    if now_s >= state.say_s and knows:
        told = () if trouble is not None else (m.Said(text=waiting(state)),)
        return replace(state, say_s=now_s + SAY_EVERY_S), told
    return state, _NOTHING


_RULES: tuple[Callable[[State, float], Heeded], ...] = (
    _lease,
    _meet,
    _control,
    _round,
    _wait,  # before `_away`: whoever gives up says why
    _away,
    _alone_at_the_end,
    _undecided,
)
