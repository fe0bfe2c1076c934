"""Transitions while workers run, until one of them fails."""

from msgspec.structs import replace

from elastic_core import messages as m
from elastic_core.agent.machine import states as s
from elastic_core.types import WorkerExit


def worker_ended(state: s.Running, event: m.WorkerExited, now_s: float) -> s.Step:
    """Record an exit with 0, or begin to examine a failure."""
    rank = event.exit.local_rank
    running, exits = without(state, (), event.exit)
    if exits:
        return examine(running, exits)
    if running.alive:
        return s.Step(state=running, commands=report_finishing(state, running), reason=f"local rank {rank} finished")
    return finished(running)


def hang_found(state: s.Running, event: m.HangFound, now_s: float) -> s.Step:
    """Request the policy's decision about a hang; the workers run on until then."""
    ask = m.AskPolicy(failure=event.failure, history=state.ledger.history)
    # There is no delay and no examination: the failure comes with its evidence, and no worker has ended.
    deciding = s.Deciding(ledger=state.ledger, running=state, round=state.round)
    return s.Step(state=deciding, commands=(ask,), reason=event.failure.summary)


def stop_running(state: s.Running, event: m.StopRequested, now_s: float) -> s.Step:
    """Drain: pass the agent's signal to the workers."""
    finished = not state.alive
    return s.drain(
        state.ledger, state.round, event.signum, now_s, finished=finished, grace_s=event.grace_s, planned=True
    )


def restart_asked(state: s.Running, event: m.RestartRequested, now_s: float) -> s.Step:
    """Begin the next round, with all nodes; no failure is recorded, and no restart is counted."""
    if not state.alive:  # this node has finished, and waits for the others
        return s.Step(state=state, reason="no worker of this node runs")
    ask = (m.RequestRestart(reason=event.reason),) if state.ledger.control else ()
    notice = m.PrintLine(text=f"round {state.round.index} is over: {event.reason}")
    return s.stop(state.ledger, state.round, s.Rejoin(), event.reason, first=(*ask, notice), planned=True)


def forward(state: s.AgentState, event: m.SignalForwarded, now_s: float) -> s.Step:
    """Forward a user signal to the workers, or to the workers that are started next."""
    # During a restart the signal is kept for the next round's workers; after the last round there are none.
    if isinstance(state, s.Stopping) and isinstance(state.then, s.End):
        return s.Step(state=state, reason="the workers are being stopped")
    send = m.ForwardSignal(signum=event.signum)
    return s.Step(state=state, commands=(send,), reason=f"signal {event.signum} passed on")


def without(
    running: s.Running, exits: tuple[WorkerExit, ...], exit: WorkerExit
) -> tuple[s.Running, tuple[WorkerExit, ...]]:
    """Return `running` without a worker that has ended, and `exits` with its exit if that was a failure."""
    alive = running.alive - {exit.local_rank}
    if exit.code == 0:
        return replace(running, alive=alive, done=running.done | {exit.local_rank}), exits
    if exit.local_rank in running.ignored:  # it hung, and the policy chose to continue without it
        return replace(running, alive=alive), exits
    return replace(running, alive=alive), (*exits, exit)


def examine(running: s.Running, exits: tuple[WorkerExit, ...]) -> s.Step:
    """Examine a failure, as soon as no other worker can have failed before."""
    deciding = s.Deciding(ledger=running.ledger, running=running, round=running.round, exits=exits)
    return s.Step(state=deciding, commands=(m.Examine(),), reason=f"local rank {exits[0].local_rank} failed")


def report_finishing(before: s.Running, running: s.Running) -> tuple[m.AgentCommand, ...]:
    """Report that the first worker of this node has finished, if it is this one: new nodes can't begin a round then."""
    first = running.ledger.control and running.done and not before.done
    return (m.ReportFinishing(),) if first else ()


def finished(running: s.Running, first: tuple[m.AgentCommand, ...] = ()) -> s.Step:
    """Report that all workers exited with 0 if the run decides; otherwise end."""
    if running.ledger.control:
        # The run has not ended yet: if another node fails, this node's workers are needed again.
        return s.Step(state=running, commands=(m.ReportDone(), *first), reason="all workers of this node finished")
    outcome = s.Outcome(ending=s.AgentEnd.SUCCEEDED, exit_code=0, reason="all workers finished")
    return s.stop(running.ledger, running.round, s.End(outcome=outcome), outcome.reason)
