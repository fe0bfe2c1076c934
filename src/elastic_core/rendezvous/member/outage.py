"""What follows for a member from a store that is away, and from a lease that runs out: rules of `announce`. Pure."""

from msgspec.structs import replace

from elastic_core import messages as m
from elastic_core.rendezvous.member import protocol
from elastic_core.rendezvous.member.state import CUT_SHARE, NEVER_S, Progress, State, Want
from elastic_core.rendezvous.member.texts import named
from elastic_core.types import Decided, Failure, FailureClass, RoundEnded, Stop, Undecided

LINE_AFTER_S = 1.0
"""A store that is away for less is not worth a line."""
SEAT_LINE_EVERY_S = 60.0
"""A store that loses a seat once does so again and again: one line in so long."""

Announced = tuple[State, tuple[protocol.Announcement, ...]]
NOTHING: tuple[protocol.Announcement, ...] = ()


def stop(state: State, change: RoundEnded | Decided) -> Announced:
    """Return that this node's workers must stop, and why."""
    end = replace(state.end, stop_token=0, order=None)
    return replace(state, want=Want.STOP, end=end), (m.RoundChanged(change=change),)


def store_failure(state: State, summary: str) -> Failure:
    """Return a failure that is no worker's."""
    return Failure(
        failure_class=FailureClass.STORE,
        summary=summary,
        node_id=state.me.node,
        node_count=len(state.mine.roster) if state.mine is not None else None,
        round_index=state.mine.index if state.mine is not None else -1,
        at_s=0.0,
        uptime_s=0.0,
        exit_code=4,
        message=summary,
    )


def host_lost(state: State) -> str:
    """Return in words that the store has gone with the node that hosted it."""
    return f"the node that hosts the rendezvous store, {state.me.where}, is lost or can't be reached"


def stayed_away(state: State) -> str:
    """Return in words that the store was away for longer than the user allows."""
    trouble, me = state.trouble, state.me
    assert trouble is not None
    return f"{me.where} stayed away for {me.store_outage_grace_s:g} s: {trouble.text}"


def keep_lease(state: State, now_s: float) -> Announced:
    """Stop in time what a lease no longer covers."""
    if not needs_lease(state):
        return state, NOTHING
    cut_s = state.cut_s
    # Trouble that began later says nothing about the host of the store: this node itself stood still.
    stood_still = state.me.hosted and state.trouble is not None and state.trouble.since_s >= cut_s
    # The store is away for too long: workers have until the fence to stop in order.
    if state.trouble is not None and now_s >= cut_s and not stood_still:
        return _cut_off(state, now_s)
    # The agent was suspended or starved: the guard may have killed the workers by now.
    if now_s >= state.fence_s or stood_still:
        silent_s = now_s - state.lease_s
        reason = f"this node gave no sign of life for {silent_s:.1f} s, longer than its lease allows"
        return stop(state, RoundEnded(reason=reason, lost=(state.me.node,), stop_within_s=0.0))
    return state, NOTHING


def needs_lease(state: State) -> bool:
    """Return whether this node has something to lose with its lease: workers, or the store that went with its host."""
    return state.want is Want.RUN and (state.work.progress is not Progress.DONE or state.me.hosted)


def gives_up_joining_s(state: State) -> float:
    """Return when a node that has never had a seat no longer waits for a store that is away, or takes no write."""
    trouble, ever_connected = state.trouble, state.connection.ever_connected
    if state.want is not Want.JOIN or state.had_seat or (ever_connected and trouble is None):
        return NEVER_S
    since_s = trouble.since_s if ever_connected and trouble is not None else state.waiting.began_s
    return since_s + state.me.connect_timeout_s


def misses_host_s(state: State) -> float:
    """Return when a node that waits in a run with rounds no longer waits for the host of its store."""
    trouble, round_ = state.trouble, state.run.kept_round
    if not state.me.hosted or state.want is not Want.JOIN or trouble is None or round_ is None:
        return NEVER_S
    return max(trouble.since_s, state.waiting.began_s) + CUT_SHARE * state.ttl_s


def grant(state: State, now_s: float) -> State:
    """Give a grant where another member of the round needs it, and the store does not answer this one either."""
    trouble, mine = state.trouble, state.mine
    # A store that a member hosts is lost with it: grants could not make up for its loss.
    if trouble is None or trouble.own or state.me.hosted or mine is None or len(mine.roster) == 1:
        return state
    runs = state.want is Want.RUN or state.awaiting
    if not runs or now_s > state.peers.needed_s + state.grant_s:
        return state
    return replace(state, peers=replace(state.peers, granted_s=now_s))


def grant_ends_s(state: State) -> float:
    """Return until when this member takes part in no later round."""
    return state.peers.granted_s + state.grant_s


def gives_up_s(state: State) -> float:
    """Return when a node whose workers have all ended well no longer waits for a store that is away to say so."""
    trouble, mine = state.trouble, state.mine
    if state.want is not Want.RUN or state.work.progress is not Progress.DONE or trouble is None or mine is None:
        return NEVER_S
    return trouble.since_s + (LINE_AFTER_S if len(mine.roster) == 1 else state.me.store_outage_grace_s)


def end_alone(state: State, now_s: float) -> Announced:
    """End well without the run's word, where nobody can give it: all that was to be done here is done."""
    if now_s < gives_up_s(state):
        return state, NOTHING
    reason = f"all workers of this node finished, and {state.me.where} is away"
    return stop(state, Decided(decision=Stop(reason=reason, outcome="done", rule="store")))


def undecided_s(state: State) -> float:
    """Return when a node whose round was stopped no longer waits for a store that is away."""
    trouble, mine, me = state.trouble, state.mine, state.me
    end = state.end
    gone = end.report is not None and end.report.final
    if not state.awaiting or end.alone or not gone or trouble is None or mine is None:
        return NEVER_S
    # With its host the store is gone for good: there is no decision to wait for.
    if me.hosted:
        return state.cut_s
    alone = len(mine.roster) == 1
    return max(trouble.since_s + (LINE_AFTER_S if alone else me.store_outage_grace_s), end.stopped_s + LINE_AFTER_S)


def leave_to_agent(state: State, now_s: float) -> Announced:
    """Have this node decide for itself, where nobody can say what the run has decided."""
    if now_s < undecided_s(state):
        return state, NOTHING
    hosted = state.me.hosted
    why = host_lost(state) if hosted else f"{state.me.where} is away, so that the run can't decide"
    change = Undecided(reason=why, final=hosted)
    return replace(state, end=replace(state.end, alone=True)), (m.RoundChanged(change=change),)


def _cut_off(state: State, now_s: float) -> Announced:
    me = state.me
    if me.hosted:
        summary = host_lost(state)
        failure = store_failure(state, summary)
        return stop(state, Decided(decision=Stop(reason=summary, rule="store"), failure=failure))
    reason = f"this node is cut off from {me.where}: {_evidence(state)}"
    within_s = max(0.0, state.fence_s - now_s)
    return stop(state, RoundEnded(reason=reason, lost=(me.node,), stop_within_s=within_s))


def _evidence(state: State) -> str:
    """Return in words what the nodes that were asked let us know."""
    trouble = state.trouble
    if trouble is None or not trouble.asked:
        return "no other node of the round was asked whether it is away for all"
    others = f"of {trouble.asked} other node{'s' * (trouble.asked != 1)}"
    if trouble.reaching:
        return f"{trouble.reaching} {others} reach{'es' * (trouble.reaching == 1)} it"
    answers = f"{trouble.granted or 'none'} {others} answered that it is away for all"
    return f"{answers}{', and all are needed' * bool(trouble.granted)} (asked over UDP: --agent-port)"


def outage_line_s(state: State, now_s: float) -> float:
    """Return when people are told next that the store is away: never where an error says it all just then."""
    if state.trouble is None or state.printed.outage or state.want in (Want.NOTHING, Want.LEAVE):
        return NEVER_S
    line_s = max(now_s, state.trouble.since_s + LINE_AFTER_S)
    return line_s if line_s + LINE_AFTER_S <= gives_up_joining_s(state) else NEVER_S


def announce_outage(state: State, now_s: float) -> Announced:
    """Tell people that the store is away, and that it is back: one line each."""
    trouble, me, printed = state.trouble, state.me, state.printed
    if trouble is None:
        if not printed.outage:
            return state, NOTHING
        back = m.PrintLine(text=f"store back: {me.where}", store_reachable=True)
        return replace(state, printed=replace(printed, outage=False)), (back,)
    away_s = now_s - trouble.since_s
    announcements: tuple[protocol.Announcement, ...] = ()
    if now_s >= outage_line_s(state, now_s):
        goes_on = "workers keep running" if state.want is Want.RUN else "trying again"
        away = f"store unreachable: {trouble.text}; {goes_on}"
        announcements = (m.PrintLine(text=away, store_reachable=False),)
        state = replace(state, printed=replace(printed, outage=True))
    # The user prefers the end of the run to workers without a rendezvous.
    if me.on_store_loss == "fail" and state.want is Want.RUN and away_s >= me.store_outage_grace_s:
        summary = stayed_away(state)
        decision = Stop(reason="--on-store-loss is fail", rule="store")
        state, ended = stop(state, Decided(decision=decision, failure=store_failure(state, summary)))
        announcements += ended
    return state, announcements


def grace_line_s(state: State) -> float:
    """Return when people are told that others may begin another round, since the store is away for so long."""
    trouble, mine = state.trouble, state.mine
    if trouble is None or mine is None or state.printed.grace or state.want is not Want.RUN or len(mine.roster) == 1:
        return NEVER_S
    keeps = state.me.on_store_loss != "fail" and not state.me.hosted
    return trouble.since_s + mine.grace_s if keeps else NEVER_S


def announce_grace(state: State, now_s: float) -> Announced:
    """Tell people that this round no longer has the run for itself, for all that anybody here can know."""
    if state.trouble is None and not state.printed.grace:
        return state, NOTHING
    if state.trouble is None:
        return replace(state, printed=replace(state.printed, grace=False)), NOTHING
    if state.mine is None or now_s < grace_line_s(state):
        return state, NOTHING
    away = f"{state.me.where} has been away for {state.mine.grace_s:g} s (--store-outage-grace)"
    text = f"{away}: workers keep running, and nodes that can reach it may begin another round from now on"
    return replace(state, printed=replace(state.printed, grace=True)), (m.PrintLine(text=text),)


def announce_unreachable(state: State, now_s: float) -> Announced:
    """Tell people once a round that members could not be asked if the store went away."""
    mine, ranks = state.mine, state.peers.unreachable
    if mine is None or not ranks or state.printed.unreachable_of == mine.nonce or state.want is not Want.RUN:
        return state, NOTHING
    names = named([entry.node for rank, entry in enumerate(mine.roster) if rank in ranks])
    verb = "does" if len(ranks) == 1 else "do"
    text = (
        f"{names} {verb} not answer this node's datagrams: if {state.me.where} goes away for all, workers stop here "
        f"after {state.ttl_s:g} s. Try: open the nodes' UDP ports for each other (--agent-port, --local-addr)"
    )
    return replace(state, printed=replace(state.printed, unreachable_of=mine.nonce)), (m.PrintLine(text=text),)


def announce_silence(state: State, now_s: float) -> Announced:
    """Tell people once that members which the store does not hear of may train on, and are waited for."""
    round_, since_s = state.seen.round, state.duty.memory.silent_s
    if since_s is None or round_ is None or state.printed.silence_of == round_.nonce:
        return state, NOTHING
    names = named([entry.node for entry in round_.roster])
    text = (
        f"no node of round {round_.index} ({names}) has a live lease, and their workers may train on without "
        f"{state.me.where}: the next round waits for them, at most {round_.lease_s + round_.grace_s:g} s. Try: "
        f"--rdzv-attempt {state.me.attempt + 1}, if those nodes are known to be dead"
    )
    return replace(state, printed=replace(state.printed, silence_of=round_.nonce)), (m.PrintLine(text=text),)


def announce_lost_seat(state: State, now_s: float) -> Announced:
    """Say that it is the store which took this node's seat away: the others can only say that this node was lost."""
    age_s, me = state.lease.unseated_s, state.me
    if age_s is None:
        return state, NOTHING
    state = replace(state, lease=replace(state.lease, unseated_s=None))
    # A store that evicts keys loses seats again and again: the line would fill the log.
    if now_s < state.printed.lost_seat_s + SEAT_LINE_EVERY_S:
        return state, NOTHING
    lease = f"{age_s:.1f} s after its lease of {state.last_lease_s:g} s was renewed"
    text = f"this node's seat in {me.where} was gone {lease}: the store has lost it, or ends leases early"
    return replace(state, printed=replace(state.printed, lost_seat_s=now_s)), (m.PrintLine(text=text),)
