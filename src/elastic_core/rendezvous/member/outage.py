"""The consequences of an unreachable store and of an ending lease for a member: rules of `announce`. Pure."""

from msgspec.structs import replace

from elastic_core import messages as m
from elastic_core.rendezvous.member import protocol
from elastic_core.rendezvous.member.state import CUT_SHARE, NEVER_S, Progress, State, Want
from elastic_core.rendezvous.member.texts import named
from elastic_core.types import Decided, Failure, FailureClass, RoundEnded, Stop, Undecided

LINE_AFTER_S = 1.0
"""Shorter outages of the store print no line, in seconds."""
SEAT_LINE_EVERY_S = 60.0
"""Seconds between lines about lost seats: a store that loses a seat once does so repeatedly."""

Announced = tuple[State, tuple[protocol.Announcement, ...]]
NOTHING: tuple[protocol.Announcement, ...] = ()


def stop(state: State, change: RoundEnded | Decided) -> Announced:
    """Return the order that this node's workers stop, with the reason."""
    end = replace(state.end, stop_token=0, order=None)
    return replace(state, want=Want.STOP, end=end), (m.RoundChanged(change=change),)


def store_failure(state: State, summary: str) -> Failure:
    """Return a failure of the store; no worker caused it."""
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
    """Return the text for the loss of the node that hosts the store."""
    return f"the node that hosts the rendezvous store, {state.me.where}, is lost or can't be reached"


def stayed_away(state: State) -> str:
    """Return the text for an outage of the store that is longer than the user allows."""
    trouble, me = state.trouble, state.me
    assert trouble is not None
    return f"{me.where} stayed away for {me.store_outage_grace_s:g} s: {trouble.text}"


def keep_lease(state: State, now_s: float) -> Announced:
    """Stop the workers in time if the lease no longer covers them."""
    if not needs_lease(state):
        return state, NOTHING
    cut_s = state.cut_s
    # If the trouble began after the cut, this node itself did not run: the host of the store may be well.
    stood_still = state.me.hosted and state.trouble is not None and state.trouble.since_s >= cut_s
    # The store was unreachable for too long: workers have until the fence to stop in order.
    if state.trouble is not None and now_s >= cut_s and not stood_still:
        return _cut_off(state, now_s)
    # The agent was suspended or got no CPU time: the guard may have killed the workers by now.
    if now_s >= state.fence_s or stood_still:
        silent_s = now_s - state.lease_s
        reason = f"this node gave no sign of life for {silent_s:.1f} s, longer than its lease allows"
        return stop(state, RoundEnded(reason=reason, lost=(state.me.node,), stop_within_s=0.0))
    return state, NOTHING


def needs_lease(state: State) -> bool:
    """Return whether this node needs its lease: it has workers, or a run with a hosted store."""
    return state.want is Want.RUN and (state.work.progress is not Progress.DONE or state.me.hosted)


def gives_up_joining_s(state: State) -> float:
    """Return when a node without a first seat gives up on a store that is unreachable or accepts no writes."""
    trouble, ever_connected = state.trouble, state.connection.ever_connected
    if state.want is not Want.JOIN or state.had_seat or (ever_connected and trouble is None):
        return NEVER_S
    since_s = trouble.since_s if ever_connected and trouble is not None else state.waiting.began_s
    return since_s + state.me.connect_timeout_s


def misses_host_s(state: State) -> float:
    """Return when a node that waits in a run with rounds gives up on the host of its store."""
    trouble, round_ = state.trouble, state.run.kept_round
    if not state.me.hosted or state.want is not Want.JOIN or trouble is None or round_ is None:
        return NEVER_S
    return max(trouble.since_s, state.waiting.began_s) + CUT_SHARE * state.ttl_s


def grant(state: State, now_s: float) -> State:
    """Give a grant if another member of the round needs it and this member can't reach the store either."""
    trouble, mine = state.trouble, state.mine
    # If a member hosts the store, its loss is final: grants could not replace the store.
    if trouble is None or trouble.own or state.me.hosted or mine is None or len(mine.roster) == 1:
        return state
    runs = state.want is Want.RUN or state.awaiting
    if not runs or now_s > state.peers.needed_s + state.grant_s:
        return state
    return replace(state, peers=replace(state.peers, granted_s=now_s))


def grant_ends_s(state: State) -> float:
    """Return until when this member takes part in no later round because of its grant."""
    return state.peers.granted_s + state.grant_s


def gives_up_s(state: State) -> float:
    """Return when a node with workers that all exited with 0 stops waiting for an unreachable store to publish that."""
    trouble, mine = state.trouble, state.mine
    if state.want is not Want.RUN or state.work.progress is not Progress.DONE or trouble is None or mine is None:
        return NEVER_S
    return trouble.since_s + (LINE_AFTER_S if len(mine.roster) == 1 else state.me.store_outage_grace_s)


def end_alone(state: State, now_s: float) -> Announced:
    """End this node with success, but without the run's verdict, if its workers are done and the store stays away."""
    if now_s < gives_up_s(state):
        return state, NOTHING
    reason = f"all workers of this node finished, and {state.me.where} is away"
    return stop(state, Decided(decision=Stop(reason=reason, outcome="done", rule="store")))


def undecided_s(state: State) -> float:
    """Return when a node of a stopped round gives up on an unreachable store."""
    trouble, mine, me = state.trouble, state.mine, state.me
    end = state.end
    gone = end.report is not None and end.report.final
    if not state.awaiting or end.alone or not gone or trouble is None or mine is None:
        return NEVER_S
    # A store that is lost with its host does not come back: there is no decision to wait for.
    if me.hosted:
        return state.cut_s
    alone = len(mine.roster) == 1
    return max(trouble.since_s + (LINE_AFTER_S if alone else me.store_outage_grace_s), end.stopped_s + LINE_AFTER_S)


def leave_to_agent(state: State, now_s: float) -> Announced:
    """Let this node's agent decide alone if the run's decision can't be read."""
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
    """Return the replies of the other nodes of the round as text."""
    trouble = state.trouble
    if trouble is None or not trouble.asked:
        return "no other node of the round was asked whether it is away for all"
    others = f"of {trouble.asked} other node{'s' * (trouble.asked != 1)}"
    if trouble.reaching:
        return f"{trouble.reaching} {others} reach{'es' * (trouble.reaching == 1)} it"
    answers = f"{trouble.granted or 'none'} {others} answered that it is away for all"
    return f"{answers}{', and all are needed' * bool(trouble.granted)} (asked over UDP: --agent-port)"


def outage_line_s(state: State, now_s: float) -> float:
    """Return when to print that the store is unreachable; never if an error reports it at the same time."""
    if state.trouble is None or state.printed.outage or state.want in (Want.NOTHING, Want.LEAVE):
        return NEVER_S
    line_s = max(now_s, state.trouble.since_s + LINE_AFTER_S)
    return line_s if line_s + LINE_AFTER_S <= gives_up_joining_s(state) else NEVER_S


def announce_outage(state: State, now_s: float) -> Announced:
    """Print one line when the store is unreachable, and one when it is back."""
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
    # With `--on-store-loss fail`, the run ends instead of workers running without a rendezvous.
    if me.on_store_loss == "fail" and state.want is Want.RUN and away_s >= me.store_outage_grace_s:
        summary = stayed_away(state)
        decision = Stop(reason="--on-store-loss is fail", rule="store")
        state, ended = stop(state, Decided(decision=decision, failure=store_failure(state, summary)))
        announcements += ended
    return state, announcements


def grace_line_s(state: State) -> float:
    """Return when to print that other nodes may begin another round because the store is unreachable for so long."""
    trouble, mine = state.trouble, state.mine
    if trouble is None or mine is None or state.printed.grace or state.want is not Want.RUN or len(mine.roster) == 1:
        return NEVER_S
    keeps = state.me.on_store_loss != "fail" and not state.me.hosted
    return trouble.since_s + mine.grace_s if keeps else NEVER_S


def announce_grace(state: State, now_s: float) -> Announced:
    """Print that another round may run beside this one, because this node can no longer exclude that."""
    if state.trouble is None and state.printed.grace:
        return replace(state, printed=replace(state.printed, grace=False)), NOTHING
    if state.trouble is None or state.mine is None or now_s < grace_line_s(state):
        return state, NOTHING
    away = f"{state.me.where} has been away for {state.mine.grace_s:g} s (--store-outage-grace)"
    text = f"{away}: workers keep running, and nodes that can reach it may begin another round from now on"
    return replace(state, printed=replace(state.printed, grace=True)), (m.PrintLine(text=text),)


def announce_unreachable(state: State, now_s: float) -> Announced:
    """Print once a round that some members did not reply to datagrams, which an outage of the store requires."""
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
    """Print once that silent members may still train without the store, and that the next round waits for them."""
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
    """Print that the store lost this node's seat: the other nodes can only report that this node was lost."""
    age_s, me = state.lease.unseated_s, state.me
    if age_s is None:
        return state, NOTHING
    state = replace(state, lease=replace(state.lease, unseated_s=None))
    # A store that evicts keys loses seats repeatedly: the line would fill the log.
    if now_s < state.printed.lost_seat_s + SEAT_LINE_EVERY_S:
        return state, NOTHING
    lease = f"{age_s:.1f} s after its lease of {state.last_lease_s:g} s was renewed"
    text = f"this node's seat in {me.where} was gone {lease}: the store has lost it, or ends leases early"
    return replace(state, printed=replace(state.printed, lost_seat_s=now_s)), (m.PrintLine(text=text),)
