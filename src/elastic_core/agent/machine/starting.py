"""Transitions from the first event to running workers: joining, preparing, starting, waiting while a hook refuses."""

from msgspec.structs import replace

from elastic_core import messages as m
from elastic_core import moments
from elastic_core.agent.machine import round_changed
from elastic_core.agent.machine import states as s
from elastic_core.reports import Absence
from elastic_core.system.clock import duration_text
from elastic_core.types import Decided, Failure, FailureClass, Round, Stop

FIRST_PAUSE_S = 2.0
LONGEST_PAUSE_S = 60.0
"""The longest pause after a hook's refusal. Pauses double each time, minus up to a third, different on each node."""
SHORTEST_WISH_S = 1.0
LONGEST_WISH_S = 3600.0
"""The upper limit of a pause that a hook requests, in seconds."""


def begin(state: s.Created, event: m.StartRequested, now_s: float) -> s.Step:
    """Request the hooks' permission, then join."""
    gathers = event.control and event.gathers  # evidence of all nodes is not needed if each node decides alone
    gates = replace(
        state.ledger.gates, aside=event.stands_aside, join_timeout_s=event.join_timeout_s, spread=event.spread
    )
    ledger = replace(state.ledger, control=event.control, gathers=gathers, stop_signals=event.stop_signals, gates=gates)
    return s.gate(ledger, "the agent was started")


def never_began(state: s.Created, event: m.StopRequested, now_s: float) -> s.Step:
    """End before anything began."""
    return s.end(state.ledger, s.stopped_by(event.signum))


def join(state: s.Gating, event: m.JoinAllowed, now_s: float) -> s.Step:
    """Join the rendezvous."""
    gates = state.ledger.gates
    commands: tuple[m.AgentCommand, ...] = (m.JoinRendezvous(),)
    if gates.count:
        text = f"no hook refuses any more, after {duration_text(round(now_s - gates.since_s))}: this node joins"
        commands = (m.PrintLine(text=text), *commands)
    return s.Step(state=s.Joining(ledger=state.ledger), commands=commands, reason="joining")


def join_refused(state: s.Gating, event: m.JoinRefused, now_s: float) -> s.Step:
    """Stay out of the next round until the hook is called again."""
    return _stay_out(state.ledger, state.refused, event, now_s)


def stop_before_start(state: s.Gating | s.Joining | s.Preparing, event: m.StopRequested, now_s: float) -> s.Step:
    """Leave without a round, or without workers in it."""
    return s.leave_on_stop(state.ledger, event.signum, now_s, m.CancelRendezvous())


def formed(state: s.Joining, event: m.RoundFormed, now_s: float) -> s.Step:
    """Request the hooks' permission before workers start."""
    ledger = replace(state.ledger, rounds=event.round.index + 1)
    # The run's history replaces this node's own. A new node's history is empty, and a policy that counted by it would
    # exceed the run's restart budget.
    restarts, changes = event.round.restart_count, event.round.membership_changes
    if restarts is not None and changes is not None:
        ledger = replace(ledger, restart_count=restarts, membership_changes=changes, history=event.round.history)
    ask = m.AskToStart(round=event.round, restart_count=ledger.restart_count)
    # Watched from now on: the round may be over before the hooks have replied.
    joined = moments.RoundJoined(round=event.round, members=event.members)
    commands = (m.NotifyHooks(moment=joined), ask, *s.watch_on(ledger))
    return s.Step(state=s.Preparing(ledger=ledger, round=event.round), commands=commands, reason="a round was formed")


def no_round(state: s.Gating | s.Refused | s.Joining, event: m.RendezvousFailed, now_s: float) -> s.Step:
    """End, because there is nothing to run without a round; an unneeded node ends successfully."""
    first = (m.CancelTimer(name=s.GATE),) if isinstance(state, s.Refused) else ()
    # A spare node that the run never needed: other nodes have finished the job.
    if event.exit_code == 0:
        outcome = s.Outcome(ending=s.AgentEnd.SUCCEEDED, exit_code=0, reason=event.summary)
        return s.leave(state.ledger, outcome, (*first, m.PrintLine(text=event.summary)))
    decided = event.decided
    if decided is not None and decided.failure is not None:
        return _failed_elsewhere(state.ledger, event, decided, decided.failure, first)
    kind = FailureClass.HEALTH_CHECK if event.refused else FailureClass.RENDEZVOUS
    failure = replace(s.without_workers(event.summary, kind), exit_code=event.exit_code)
    return _without_round(state.ledger, failure, "no round was formed", first)


def _without_round(ledger: s.Ledger, failure: Failure, reason: str, first: tuple[m.AgentCommand, ...] = ()) -> s.Step:
    record = m.RecordIncident(failure=failure, decision=Stop(reason=reason, rule="rendezvous"))
    outcome = s.Outcome(ending=s.AgentEnd.FAILED, exit_code=failure.exit_code, reason=failure.summary)
    return s.leave(ledger, outcome, (*first, record))


def _failed_elsewhere(
    ledger: s.Ledger,
    event: m.RendezvousFailed,
    decided: Decided,
    failure: Failure,
    first: tuple[m.AgentCommand, ...],
) -> s.Step:
    """End with the run's failure, like the nodes that have a place."""
    record = m.RecordIncident(failure=failure, decision=decided.decision, evidence=decided.evidence)
    outcome = s.Outcome(ending=s.AgentEnd.FAILED, exit_code=event.exit_code, reason=event.summary)
    return s.leave(ledger, outcome, (*first, record))


def start(state: s.Preparing, event: m.StartAllowed, now_s: float) -> s.Step:
    """Start the workers, unless the round is over already."""
    ledger = state.ledger
    if state.over is not None:  # its workers would have no peers
        return round_changed.without_start(ledger, state.round, state.over)
    spawn = m.SpawnWorkers(
        round=state.round,
        restart_count=ledger.restart_count,
        membership_changes=ledger.membership_changes,
        changes=event.changes,
    )
    return s.Step(state=s.Starting(ledger=ledger, round=state.round), commands=(spawn,), reason="starting workers")


def start_refused(state: s.Preparing, event: m.StartRefused, now_s: float) -> s.Step:
    """Leave the round and stay out until the hook is called again, unless the round is over already."""
    if state.over is not None:
        return round_changed.without_start(state.ledger, state.round, state.over)
    return _stay_out(state.ledger, state.round, event, now_s)


# --- while a hook refuses


def _stay_out(ledger: s.Ledger, refused: Round | None, event: m.JoinRefused | m.StartRefused, now_s: float) -> s.Step:
    """Wait until the hook is called again; at most the join timeout, unless this node can wait beside other rounds."""
    gates = ledger.gates
    gates = replace(gates, count=gates.count + 1, since_s=gates.since_s if gates.count else now_s)
    pause_s = _pause_s(gates, event.again_s)
    left_s = gates.since_s + gates.join_timeout_s - now_s
    # One node, or `static`: the run can't continue without this node, so its nodes wait as long as for a missing node.
    if not gates.aside:
        if left_s <= 0:
            return _give_up(replace(ledger, gates=gates), refused, event)
        pause_s = min(pause_s, left_s)
    absence = Absence(by=event.hook, reason=event.reason, for_s=round(pause_s, 1))
    first: tuple[m.AgentCommand, ...] = (m.StandAside(absence=absence),) if gates.aside else ()
    if absence.text != gates.shown:  # refusals repeat: only a new reason is printed
        often = "and so on" if event.again_s is not None else "then less and less often"
        text = f"this node stays out: {absence.text}; it is asked again in {duration_text(pause_s)}, {often}"
        first = (*first, m.PrintLine(text=text))
        gates = replace(gates, shown=absence.text)
    state = s.Refused(ledger=replace(ledger, gates=gates), absence=absence, round=refused)
    return s.Step(state=state, commands=(*first, m.SetTimer(name=s.GATE, delay_s=pause_s)), reason=absence.text)


def _pause_s(gates: s.Gates, wanted_s: float | None) -> float:
    """Return the pause before the hook is called again, in seconds: the hook's own wish, or longer each time."""
    if wanted_s is not None:
        return min(max(wanted_s, SHORTEST_WISH_S), LONGEST_WISH_S)
    # The exponent is limited because 2.0 ** 1024 overflows: a hook that refuses once a minute gets there within a day.
    return min(FIRST_PAUSE_S * 2.0 ** min(gates.count - 1, 30), LONGEST_PAUSE_S) * (1 - gates.spread / 3)


def _give_up(ledger: s.Ledger, refused: Round | None, event: m.JoinRefused | m.StartRefused) -> s.Step:
    """End with a failure, because the run can't continue without this node."""
    asked = f"asked {ledger.gates.count} times in {ledger.gates.join_timeout_s:g} s (--join-timeout)"
    index = -1 if refused is None else refused.index
    failure = s.without_workers(f"{event.hook} refused: {event.reason}", FailureClass.HEALTH_CHECK, index)
    return _without_round(ledger, failure, asked)


def ask_again(state: s.Refused, event: m.TimerFired, now_s: float) -> s.Step:
    """Call the hooks again: about the same start if its round continues, otherwise before joining the next round."""
    ledger, round_ = state.ledger, state.round
    if event.name != s.GATE:
        return s.Step(state=state, reason="a timer of an earlier state")
    if round_ is None or ledger.gates.aside:
        return s.gate(ledger, "the hooks are asked again", refused=round_)
    # This node still has its place in the round, and the workers of the other nodes wait for its own: joining again
    # would end the round for all.
    ask = m.AskToStart(round=round_, restart_count=ledger.restart_count)
    return s.Step(state=s.Preparing(ledger=ledger, round=round_), commands=(ask,), reason="the hooks are asked again")


def stop_refused(state: s.Refused, event: m.StopRequested, now_s: float) -> s.Step:
    """Leave instead of waiting."""
    return s.leave_on_stop(state.ledger, event.signum, now_s, m.CancelTimer(name=s.GATE), m.CancelRendezvous())


# --- the workers' start


def spawned(state: s.Starting, event: m.WorkersSpawned, now_s: float) -> s.Step:
    """Begin to watch the workers, or stop them if the round is over already."""
    everyone = frozenset(range(state.round.local_world_size))
    # Not reset when a hook allows the join: a hook that then refuses each start would be called every 2 s, in each
    # round.
    ledger = replace(state.ledger, gates=replace(state.ledger.gates, count=0, shown=""))
    running = s.Running(ledger=ledger, round=state.round, alive=everyone)
    if state.over is not None:
        return round_changed.follow(running, state.over)
    return s.Step(state=running, commands=(m.WatchRound(),), reason="workers run")


def spawn_failed(state: s.Starting, event: m.SpawnFailed, now_s: float) -> s.Step:
    """Request the policy's decision about a failed start, unless the round is over already."""
    # The workers that were started before the failed one run: they are stopped first, whatever the decision.
    running = s.Running(ledger=state.ledger, round=state.round, alive=event.alive)
    if state.over is not None:
        return round_changed.follow(running, state.over)
    ask = m.AskPolicy(failure=event.failure, history=state.ledger.history)
    deciding = s.Deciding(ledger=state.ledger, running=running, round=state.round)
    return s.Step(state=deciding, commands=(ask,), reason=event.failure.summary)


def stop_starting(state: s.Starting, event: m.StopRequested, now_s: float) -> s.Step:
    """Stop the workers that were started."""
    return s.drain(state.ledger, state.round, event.signum, now_s, grace_s=event.grace_s)
