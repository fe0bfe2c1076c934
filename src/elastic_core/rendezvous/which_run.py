"""Whether the run in the store is a member's own, and what it does about another one: a rule of `heeding`. Pure."""

from msgspec.structs import replace

from elastic_core.rendezvous import member_messages as m
from elastic_core.rendezvous.documents import ControlDocument, Verdict
from elastic_core.rendezvous.identity import compare_fingerprints, mismatch_error, mismatch_warning
from elastic_core.rendezvous.membership import State, Want
from elastic_core.rendezvous.outage import NOTHING, Heeded, stop, store_failure
from elastic_core.rendezvous.roster import given_id
from elastic_core.rendezvous.store import CONTROL_KEY, ROUND_KEY
from elastic_core.types import Decided, FailureClass, RoundEnded, Stop


def meet(state: State, now_s: float) -> Heeded:
    """Find out whether the run in the store is this member's."""
    control = state.control
    if CONTROL_KEY not in state.fresh or control is None or state.begin or control.epoch == state.epoch:
        return state, NOTHING
    if state.want in (Want.NOTHING, Want.LEAVE):
        return state, NOTHING
    if state.epoch:
        return _meet_other(state, control, now_s)
    if control.verdict is not None and control.attempt == state.me.attempt:
        return _meet_verdict(state, control, control.verdict)
    if control.verdict is not None or control.attempt < state.me.attempt:
        return replace(state, begin=True), NOTHING
    if control.attempt > state.me.attempt:
        return _superseded(state, control)
    return _compare(state, control)


def _meet_verdict(state: State, control: ControlDocument, verdict: Verdict) -> Heeded:
    """Give a latecomer the verdict; let a node that was there, or one that begins the run again, begin a new one."""
    if ROUND_KEY not in state.fresh:
        return state, NOTHING
    round_ = state.round
    if (
        round_ is None
        or round_.epoch != control.epoch
        or any(given_id(entry.node) == state.me.node for entry in round_.roster)
    ):
        return replace(state, begin=True), NOTHING
    return closed(state, verdict)


def closed(state: State, verdict: Verdict) -> Heeded:
    """Tell a node that would join how the run has ended."""
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
        failure = replace(store_failure(state, what), failure_class=FailureClass.RENDEZVOUS)
        return stop(state, Decided(decision=Stop(reason=what, rule="attempt"), failure=failure))
    if state.want is not Want.JOIN:
        return state, NOTHING
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


def _meet_other(state: State, control: ControlDocument, now_s: float) -> Heeded:
    """Decide between the run that this member is of and another one that stands in the store.

    One that has no round yet was begun after the store had lost ours: ours is put back (by `machine`).
    """
    if control.attempt > state.me.attempt:
        return _superseded(state, control)
    if ROUND_KEY not in state.fresh:
        return state, NOTHING
    theirs = state.round is not None and state.round.epoch == control.epoch
    if puts_back(state) and not theirs:
        return state, NOTHING
    told: tuple[m.Announcement, ...] = ()
    if state.want is Want.RUN or state.awaiting:
        change = RoundEnded(reason="the store lost this run, and another has begun", stop_within_s=0.0)
        state, told = stop(state, change)
    state = replace(state, epoch="", kept=None, kept_round=None)
    # A node that waits goes over at once: whoever leads there must hear in time which tokens it has seen.
    return meet(state, now_s) if state.want is Want.JOIN else (state, told)


def puts_back(state: State) -> bool:
    """Return whether this member would put its copy of the control document in the place of another run's."""
    control = state.control
    return (
        state.kept is not None
        and state.kept_round is not None
        and state.want in (Want.RUN, Want.STOP)
        and (control is None or (control.verdict is None and control.attempt == state.me.attempt))
    )
