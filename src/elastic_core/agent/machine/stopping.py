"""Transitions from the stop sequence to the end: the next step once no worker exists."""

from msgspec.structs import replace

from elastic_core import messages as m
from elastic_core.agent.machine import states as s


def workers_gone(state: s.Stopping, event: m.WorkersStopped, now_s: float) -> s.Step:
    """Record the incident, then begin the next round, wait, or leave; or wait for the run's decision."""
    if isinstance(state.then, s.Await):
        forget = (m.CancelTimer(name=s.REPORT),)
        return s.wait_for_run(state.ledger, state.round, "the workers are gone: what follows is decided", forget)
    return s.after_stop(state.ledger, state.then, state.incident, state.stop_asked_s)


def report_due(state: s.Stopping, event: m.TimerFired, now_s: float) -> s.Step:
    """Report the evidence so far if the workers are slow to stop and the run has not decided yet."""
    # A worker that ignores SIGTERM uses the whole grace period; the other nodes need not wait for it to decide.
    if not isinstance(state.then, s.Await):
        return s.Step(state=state, reason="it is decided already")
    report = m.ReportEvidence(round=state.round, final=False)
    return s.Step(state=state, commands=(report,), reason="the workers take long to stop")


def stop_awaiting(state: s.Awaiting, event: m.StopRequested, now_s: float) -> s.Step:
    """Leave without waiting for the run's decision."""
    return s.leave_on_stop(state.ledger, event.signum, now_s, *s.depart(state.ledger))


def stop_again(state: s.Stopping, event: m.StopRequested, now_s: float) -> s.Step:
    """End at the first stop signal in place of a restart; at a second one, kill the workers or shorten their time."""
    # One Ctrl-C can arrive twice: only a signal that comes later than `URGE_S` is a second one.
    urged = state.stop_asked_s is not None and now_s - state.stop_asked_s >= s.URGE_S
    then = state.then if isinstance(state.then, s.End) else s.End(outcome=s.stopped_by(event.signum))
    stopping = replace(state, then=then, stop_asked_s=now_s if state.stop_asked_s is None else state.stop_asked_s)
    # A second stop with a deadline (a hook's drain) shortens the time, and kills nothing: workers may be saving.
    hurry: tuple[m.AgentCommand, ...] = () if isinstance(state.then, s.End) else (m.NoneMayLeave(),)
    if event.grace_s is not None:
        hurry = (*hurry, m.ShortenGrace(grace_s=event.grace_s))
    if urged and not hurry:
        return s.Step(state=stopping, commands=(m.KillWorkers(),), reason="second stop signal: killing the workers")
    # The other nodes must not wait for a leaving node; in a run that has succeeded, no node waits.
    succeeds = isinstance(state.then, s.End) and state.then.outcome.ending is s.AgentEnd.SUCCEEDED
    if state.stop_asked_s is None and not succeeds:
        gone = () if isinstance(state.then, s.End) else s.depart(state.ledger)
        announce = m.AnnounceDrain(signum=event.signum)
        return s.Step(
            state=stopping, commands=(*gone, *hurry, announce), reason="already stopping; a stop was requested"
        )
    return s.Step(state=stopping, commands=hurry, reason="already stopping")


def backoff_over(state: s.Waiting, event: m.TimerFired, now_s: float) -> s.Step:
    """Begin the next round."""
    return s.gate(state.ledger, "the delay is over")


def stop_waiting(state: s.Waiting, event: m.StopRequested, now_s: float) -> s.Step:
    """Leave instead of restarting."""
    return s.leave_on_stop(state.ledger, event.signum, now_s, m.CancelTimer(name=s.BACKOFF))


def left(state: s.Leaving, event: m.RendezvousLeft, now_s: float) -> s.Step:
    """End after the rendezvous has been left."""
    return replace(s.end(state.ledger, state.outcome), commands=(m.CancelTimer(name=s.LEAVE),))


def left_anyway(state: s.Leaving, event: m.TimerFired, now_s: float) -> s.Step:
    """End, because leaving took too long."""
    return s.end(state.ledger, state.outcome)


def stop_leaving(state: s.Leaving, event: m.StopRequested, now_s: float) -> s.Step:
    """End immediately at a second signal."""
    if state.stop_asked_s is not None and now_s - state.stop_asked_s >= s.URGE_S:
        return s.end(state.ledger, state.outcome)
    asked_s = now_s if state.stop_asked_s is None else state.stop_asked_s
    return s.Step(state=replace(state, stop_asked_s=asked_s), reason="already leaving")
