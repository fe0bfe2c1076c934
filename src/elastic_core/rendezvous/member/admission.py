"""Admission of a new node: it joins the run in the store, waits, or begins a new run. Pure; a rule of `announce`.

A new node watches the run in the store until it can decide. If that run has a verdict, late nodes get it. If not, the
run continues while a member is alive. The run is over when no member was alive for its lease plus its last call. The
new node counts that time from its first read of the store, because leases may have ended while the store was away.
"""

import math

from msgspec.structs import replace

from elastic_core import messages as m
from elastic_core.errors import RendezvousClosedError
from elastic_core.rendezvous.identity import compare_fingerprints, mismatch_error, mismatch_warning
from elastic_core.rendezvous.member import protocol
from elastic_core.rendezvous.member.documents import ControlDocument, Verdict
from elastic_core.rendezvous.member.outage import NOTHING, Announced, stop, store_failure
from elastic_core.rendezvous.member.roster import given_id
from elastic_core.rendezvous.member.state import LONG_AGO_S, Me, State, Want
from elastic_core.rendezvous.member.texts import named
from elastic_core.rendezvous.store import CONTROL_KEY, ROUND_KEY
from elastic_core.types import Decided, FailureClass, RoundEnded, Stop

ANSWER_S = 60.0
"""How long a verdict applies to late nodes, in seconds, if no attempt number was given."""
KEEP_DONE_S = 24 * 3600.0
"""How long a successful verdict is kept, and applies to nodes with the same given attempt, in seconds."""
KEEP_FAILED_S = 600.0
"""How long a verdict after a failure is kept, in seconds."""


def meet(state: State, now_s: float) -> Announced:
    """Decide whether the run in the store is this member's run."""
    control, run = state.seen.control, state.run
    if CONTROL_KEY not in state.seen.fresh or control is None or run.begin or control.epoch == run.epoch:
        return state, NOTHING
    if state.want in (Want.NOTHING, Want.LEAVE):
        return state, NOTHING
    if run.epoch:
        return _meet_other(state, control, now_s)
    if control.verdict is not None:
        return _meet_verdict(state, control, control.verdict, now_s)
    return _meet_standing(state, control, now_s)


def _later(control: ControlDocument, me: Me) -> int:
    """Return by how much a run's attempt is later than this member's; 0 for two jobs, which have no order."""
    return control.attempt - me.attempt if not _other_job(control, me) else 0


def _other_job(control: ControlDocument, me: Me) -> bool:
    return bool(control.job and me.job) and control.job != me.job


def _has_round(state: State, control: ControlDocument) -> bool:
    return state.seen.round is not None and state.seen.round.epoch == control.epoch


def _meet_verdict(state: State, control: ControlDocument, verdict: Verdict, now_s: float) -> Announced:
    """Give a late node the verdict; a node of that run, or one that comes much later, begins a new run."""
    if ROUND_KEY not in state.seen.fresh:
        return state, NOTHING
    me, round_ = state.me, state.seen.round
    came_again = round_ is not None and any(given_id(entry.node) == me.node for entry in round_.roster)
    # That run had no round, or this node was in its last round and was restarted, or attempt or job differ: its
    # verdict does not apply to this node.
    if not _has_round(state, control) or came_again or control.attempt != me.attempt or _other_job(control, me):
        return replace(state, run=replace(state.run, begin=True)), NOTHING
    ended = state.run.ended
    if ended is None or ended.epoch != control.epoch:
        return state, NOTHING  # the time of the end is read with the document
    if now_s - ended.at_s >= _answers_s(control, verdict, me):
        return replace(state, run=replace(state.run, begin=True)), NOTHING
    # The store does not know the verdict's age and no attempt was given: the run may be an earlier one. This node waits
    # until it has seen the verdict for ANSWER_S.
    if ended.known or _given(control, me) or _is_alive(state, control):
        return closed(state, verdict, now_s)
    ended_how = _how(verdict)
    text = f"run {me.run_id!r} {ended_how}, and {me.where} can't say when: a new run begins in {ANSWER_S:g} s"
    return _show_once(state, text)


def _given(control: ControlDocument, me: Me) -> bool:
    return control.given and me.attempt_given


def _answers_s(control: ControlDocument, verdict: Verdict, me: Me) -> float:
    """Return for how long after the run's end its verdict applies to this member, in seconds."""
    if not _given(control, me):
        return ANSWER_S
    return KEEP_DONE_S if verdict.decision.outcome == "done" else KEEP_FAILED_S


def closed(state: State, verdict: Verdict, now_s: float) -> Announced:
    """Report to a joining node how the run ended, and that no worker was started."""
    me, control, ended = state.me, state.seen.control, state.run.ended
    ended_how = _how(verdict)
    reason = verdict.decision.reason
    why = f"{verdict.failure.summary}; {reason}" if verdict.failure is not None else reason
    again = "another --rdzv-id or --rdzv-attempt begins a new run"
    if ended is not None and control is not None and ended.epoch == control.epoch and ended.known:
        ended_how += f" {_ago(now_s - ended.at_s)} ago"
        if not _given(control, me):
            left_s = max(1, math.ceil(ended.at_s + ANSWER_S - now_s))
            again += f", and so does the same line in {left_s} s"
    nothing = "; nothing was started on this node" if state.mine is None else ""
    what = f"run {me.run_id!r} {ended_how}: {why}{nothing}"
    failed = protocol.JoinFailed(error=RendezvousClosedError, what=what, hint=again, exit_code=verdict.exit_code)
    return replace(state, want=Want.NOTHING, end=replace(state.end, verdict_announced=True)), (failed,)


def _how(verdict: Verdict) -> str:
    if verdict.from_outside:
        return "was stopped"
    return "has ended well" if verdict.decision.outcome == "done" else "has failed"


def _ago(age_s: float) -> str:
    """Return an age for people: 12 s, 5 min, 3 h."""
    if age_s < 120:
        return f"{age_s:.0f} s"
    return f"{age_s / 60:.0f} min" if age_s < 7200 else f"{age_s / 3600:.0f} h"


def _show_once(state: State, text: str) -> Announced:
    if state.printed.newcomer:
        return state, NOTHING
    return replace(state, printed=replace(state.printed, newcomer=True)), (m.PrintLine(text=text),)


# --- a run without a verdict


def _meet_standing(state: State, control: ControlDocument, now_s: float) -> Announced:
    """Join the run, begin a new one in its place, or wait until it is clear which."""
    me, later = state.me, _later(control, state.me)
    # This node's attempt is later: the scheduler has replaced the nodes of that run.
    if later < 0:
        return replace(state, run=replace(state.run, begin=True)), NOTHING
    if ROUND_KEY not in state.seen.fresh:
        return state, NOTHING
    fits = not later and not compare_fingerprints(me.fingerprint, control.fingerprint, me.allow_mismatch)[0]
    # A run without a round has done no work yet, so 1,000 nodes that start together need not survey each other.
    if _is_alive(state, control) or (fits and not _has_round(state, control)):
        return _superseded(state, control) if later else _compare(state, control)
    # All leases of that run have ended, and its last call has passed: a new run begins in its place.
    if is_over(state, control):
        return replace(state, run=replace(state.run, begin=True)), NOTHING
    if not _has_round(state, control) or not _is_empty(state, control):
        return state, NOTHING
    wait = f"a new run begins in {_over_s(state, control):g} s unless one comes back"
    text = f"run {me.run_id!r} has no live node: {wait}"
    liveness, round_ = state.run.liveness, state.seen.round
    if liveness is not None and liveness.silent and round_ is not None:
        names = named([entry.node for entry in round_.roster])
        text = f"run {me.run_id!r} has no live node, and {names} may train on without the store: {wait}"
        text += f". {_TRY_ATTEMPT} {me.attempt + 1}"
    return _show_once(state, text)


_TRY_ATTEMPT = "Try, where they are known to be dead: --rdzv-attempt"


def _over_s(state: State, control: ControlDocument) -> float:
    """Return how long all members must have been without a lease; longer if they may still train."""
    over_s, liveness, round_ = control.over_s or state.me.over_s, state.run.liveness, state.seen.round
    if liveness is None or not liveness.silent or round_ is None:
        return over_s
    return max(over_s, round_.lease_s + state.me.last_call_s) + round_.grace_s


def _is_alive(state: State, control: ControlDocument) -> bool:
    liveness = state.run.liveness
    return liveness is not None and liveness.epoch == control.epoch and liveness.alive


def _is_empty(state: State, control: ControlDocument) -> bool:
    liveness = state.run.liveness
    return liveness is not None and liveness.epoch == control.epoch and not liveness.alive


def is_over(state: State, control: ControlDocument) -> bool:
    """Return whether no member was alive for so long that the run is over, by surveys since then."""
    liveness = state.run.liveness
    if (
        liveness is None
        or not _is_empty(state, control)
        or liveness.looked_s < liveness.empty_s + _over_s(state, control)
    ):
        return False
    # Members without a lease may still train if they can't reach the store: a recent reply from one keeps the run
    # alive.
    return not liveness.silent or liveness.looked_s >= state.peers.silent_s + state.me.ttl_s


def looks_again_s(state: State, control: ControlDocument) -> float:
    """Return when a new node next surveys which members are alive."""
    liveness = state.run.liveness
    if liveness is None or liveness.epoch != control.epoch:
        return LONG_AGO_S
    next_s = liveness.looked_s + state.period_s
    over_s = liveness.empty_s + _over_s(state, control)
    # The survey that finds the run over must take place at that moment, not up to a period later.
    return min(next_s, over_s) if not liveness.alive and liveness.looked_s < over_s else next_s


def _superseded(state: State, control: ControlDocument) -> Announced:
    me = state.me
    what = f"attempt {control.attempt} of run {me.run_id!r} has begun, and this node is of attempt {me.attempt}"
    if state.want is Want.RUN or state.awaiting:
        failure = replace(store_failure(state, what), failure_class=FailureClass.RENDEZVOUS)
        return stop(state, Decided(decision=Stop(reason=what, rule="attempt"), failure=failure))
    if state.want is not Want.JOIN:
        return state, NOTHING
    hint = "a higher --rdzv-attempt, or leave the run to the others"
    return replace(state, want=Want.NOTHING), (protocol.JoinFailed(what=what, hint=hint),)


def _compare(state: State, control: ControlDocument) -> Announced:
    me = state.me
    refusals, warnings = compare_fingerprints(me.fingerprint, control.fingerprint, me.allow_mismatch)
    if refusals:
        error = mismatch_error(me.run_id, me.where, refusals)
        failed = protocol.JoinFailed(what=error.what, hint=error.hint)
        return replace(state, want=Want.NOTHING), (failed,)
    announcements = (m.PrintLine(text=mismatch_warning(me.run_id, warnings)),) if warnings else ()
    run = replace(state.run, epoch=control.epoch, kept_control=control, kept_round=None, liveness=None)
    return replace(state, run=run), announcements


def _meet_other(state: State, control: ControlDocument, now_s: float) -> Announced:
    """Decide between this member's run and another run that is in the store.

    Another run without a round began after the store had lost this member's run: `machine` writes this run back.
    """
    if _later(control, state.me) > 0:
        return _superseded(state, control)
    if ROUND_KEY not in state.seen.fresh:
        return state, NOTHING
    # `machine` writes this run's document over that one.
    if puts_back(state) and not _has_round(state, control):
        return state, NOTHING
    announcements: tuple[protocol.Announcement, ...] = ()
    if state.want is Want.RUN or state.awaiting:
        change = RoundEnded(reason="the store lost this run, and another has begun", stop_within_s=0.0)
        state, announcements = stop(state, change)
    state = replace(state, run=state.run.none())
    # A waiting node changes to the other run immediately: its leader must learn in time which tokens the node has seen.
    return meet(state, now_s) if state.want is Want.JOIN else (state, announcements)


def puts_back(state: State) -> bool:
    """Return whether this member would replace another run's control document by its own copy."""
    control = state.seen.control
    return (
        state.run.kept_control is not None
        and state.run.kept_round is not None
        and state.want in (Want.RUN, Want.STOP)
        and (control is None or (control.verdict is None and control.attempt == state.me.attempt))
    )
