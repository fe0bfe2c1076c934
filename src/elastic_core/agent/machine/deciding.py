"""Transitions while a failure is examined: the policy's decision, and its execution on this node."""

from msgspec.structs import replace

from elastic_core import messages as m
from elastic_core.agent.machine import states as s
from elastic_core.agent.machine.running import examine, finished, report_finishing, without
from elastic_core.errors import IllegalEventError
from elastic_core.types import Failure, FailureClass, Ignore, Restart, Stop


def ended_while_deciding(state: s.Deciding, event: m.WorkerExited, now_s: float) -> s.Step:
    """Add the exit of another worker while the policy decides."""
    if state.running is None:
        raise IllegalEventError("a worker ended where none had been started")
    running, exits = without(state.running, state.exits, event.exit)
    return s.Step(
        state=replace(state, running=running, exits=exits),
        commands=report_finishing(state.running, running),
        reason=f"local rank {event.exit.local_rank} ended too",
    )


def examined(state: s.Deciding, event: m.Examined, now_s: float) -> s.Step:
    """Request the policy's decision about the first cause."""
    ask = m.AskPolicy(failure=event.failure, history=state.ledger.history)
    return s.Step(state=state, commands=(ask,), reason=event.failure.summary)


def decided(state: s.Deciding, event: m.DecisionMade, now_s: float) -> s.Step:
    """Carry out the policy's decision."""
    # If all nodes' evidence counts, this node's policy only decides that its round is over; the next step is decided
    # once for the run. A node that followed its own decision could restart while the other nodes end the run.
    gathers = state.ledger.gathers and not state.alone
    match event.decision:
        case Restart() | Stop() if gathers:
            # In a round with one node, its policy decides for the run, too.
            return _order_stop(state, event.failure, ends_run=isinstance(event.decision, Stop))
        case Restart():
            return _restart(state, event.failure, event.decision)
        case Stop():
            return _give_up(state, event.failure, event.decision)
        case Ignore():
            return _ignore(state, event.failure, event.decision)


def _order_stop(state: s.Deciding, failure: Failure, *, ends_run: bool = False) -> s.Step:
    """Stop all nodes; the run decides the next step when all nodes have reported."""
    order = (m.OrderStop(failure=failure),)
    # The other nodes come first: their workers wait for this node's in collectives, and would fail with other errors.
    if state.running is not None:
        return s.stop_and_wait(state.ledger, state.round, failure.summary, order, ends_run=ends_run)
    return s.wait_for_run(state.ledger, state.round, failure.summary, order)


def _restart(state: s.Deciding, failure: Failure, decision: Restart) -> s.Step:
    ledger = s.noted(state.ledger, failure, decision, restarts=1)
    return _carry_out(
        state,
        ledger,
        s.Rejoin(delay_s=decision.delay_s),
        failure,
        decision,
        f"restart {ledger.restart_count}: {failure.summary}",
    )


def _give_up(state: s.Deciding, failure: Failure, decision: Stop) -> s.Step:
    ledger = s.noted(state.ledger, failure, decision, restarts=0)
    # A policy may end the job as done after a failure, for example in a search that has found enough.
    if decision.outcome == "done":
        outcome = s.Outcome(ending=s.AgentEnd.SUCCEEDED, exit_code=0, reason=decision.reason)
    else:
        outcome = s.Outcome(ending=s.AgentEnd.FAILED, exit_code=failure.exit_code, reason=failure.summary)
    reason = f"{failure.summary}; {decision.reason}"
    return _carry_out(state, ledger, s.End(outcome=outcome), failure, decision, reason)


def _carry_out(
    state: s.Deciding, ledger: s.Ledger, then: s.Rejoin | s.End, failure: Failure, decision: Restart | Stop, reason: str
) -> s.Step:
    # The run gets the decision before this node acts, so that all nodes stop their workers at the same time.
    first = (m.PublishDecision(failure=failure, decision=decision),) if state.ledger.control else ()
    incident = m.RecordIncident(failure=failure, decision=decision)
    if state.running is not None:
        return s.stop(ledger, state.running.round, then, reason, first=first, incident=incident)
    step = s.after_stop(ledger, then, incident, None)
    return replace(step, commands=(*first, *step.commands))


def _ignore(state: s.Deciding, failure: Failure, decision: Ignore) -> s.Step:
    rank, slow = failure.local_rank, failure.failure_class is FailureClass.STRAGGLER
    if state.running is None or (rank is None and not slow):
        # A failed start, or a hook's report about the whole node: there is no single worker to ignore.
        if state.ledger.gathers and not state.alone:
            return _order_stop(state, failure)
        return _give_up(state, failure, Stop(reason="there is no worker to go on with", rule=decision.rule))
    ledger = s.noted(state.ledger, failure, decision, restarts=0)
    ignored = state.running.ignored
    if rank is not None and not slow:  # a straggler runs on, and its exit counts
        ignored |= {rank}
    running = replace(state.running, ledger=ledger, ignored=ignored)
    others = tuple(e for e in state.exits if e.local_rank not in running.ignored)
    if others:
        return examine(running, others)
    if not running.alive:
        return finished(running, s.watch_on(ledger))
    return s.Step(state=running, commands=(m.WatchRound(),), reason=f"going on without local rank {rank}")


def stop_deciding(state: s.Deciding, event: m.StopRequested, now_s: float) -> s.Step:
    """Stop the workers without waiting for the policy."""
    if state.running is None:
        return s.leave_on_stop(state.ledger, event.signum, now_s)
    return s.drain(state.ledger, state.running.round, event.signum, now_s, grace_s=event.grace_s)
