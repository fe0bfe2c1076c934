"""The duties of a run's leader: to form rounds, to end them, and to publish the verdict. Pure.

Every member can compute them from what it read. The member with the lowest seat acts; if it does not, the next one
acts. Compare-and-swap of the documents makes it safe that two members act at the same time.

All duties keep one rule: a round is formed only when no live member has workers of another round. A member that is gone
has no workers: its lease ended, and its guard ended the workers before that.
"""

from collections.abc import Iterator, Mapping, Sequence

from msgspec.structs import replace

from elastic_core.messages import AnswersGathered, DecisionAsked
from elastic_core.rendezvous.member import forming, protocol
from elastic_core.rendezvous.member.admission import KEEP_DONE_S, KEEP_FAILED_S
from elastic_core.rendezvous.member.agreement import due
from elastic_core.rendezvous.member.documents import (
    ControlDocument,
    Ending,
    MemberRecord,
    RosterEntry,
    RoundDocument,
    StopOrder,
    Verdict,
)
from elastic_core.rendezvous.member.duty import Judgement, LeaderMemory, Publish, View, ended
from elastic_core.rendezvous.member.observe import MEMBERS
from elastic_core.rendezvous.member.protocol import Operation
from elastic_core.rendezvous.member.questions import gathered
from elastic_core.rendezvous.member.state import LONG_AGO_S, NEVER_S, State, question_about
from elastic_core.rendezvous.member.texts import named, nodes
from elastic_core.rendezvous.store import CONTROL_KEY, ROUND_KEY
from elastic_core.reports import NodeReport
from elastic_core.types import Failure, FailureClass, Stop

STORE_KEEP_S = 25 * 3600.0
"""How long a run's content is kept after its last call. It differs from the times after the run's end, so that stores
can determine when the run ended."""
DEPUTIES = 2
"""The number of members after the leader that check its duties."""
DUTY_PERIODS = 2
"""After this many renewal periods, the next deputy does a duty that is still outstanding."""
ANSWER_S = 5.0
"""How long the agent may take to decide before the request is repeated, in seconds."""

GATHER_S = 2.0
"""How long to wait for reports of nodes that stop their workers, in seconds; then the decision is made without them."""
LOSS_MARGIN_S = 1.5
"""The longest time between the end of a lost node's lease and the moment when all nodes notice it, in seconds."""

Planned = tuple[State, Operation | None]


def judge(view: View, memory: LeaderMemory) -> Judgement:
    """Return the leader's current duty, or why there is none."""
    current = view.current
    # Also after the end of the run, for example if the store ends with its node: workers may still have to save.
    if current is not None and not _awaits_members(view, memory, current):
        agreement = due(view.control, current, tuple(view.members))
        if agreement is not None:
            name = f"agree {agreement.nonce} {len(agreement.values)}"
            document = replace(view.control, agreement=agreement)
            return Judgement(memory=memory, duty=Publish(name=name, document=document))
    if view.control.verdict is not None:
        return Judgement(memory=memory, why="the run is over")
    token = current.token if current else 0
    # The memory of members belongs to one round; times across rounds are kept.
    if memory.token != token:
        memory = LeaderMemory(
            token=token,
            ending=memory.ending,
            ending_s=memory.ending_s,
            losses_from_s=memory.losses_from_s,
            back_s=memory.back_s,
        )
    ending = view.control.ending
    if ending is not None and memory.ending != (ending.token, ending.nonce):
        memory = replace(memory, ending=(ending.token, ending.nonce), ending_s=view.now_s)
    memory = forming.watch(view, memory)
    if current is not None and memory.silent_s is not None:
        until_s = forming.silent_until_s(view, memory, current)
        if view.now_s < until_s:
            # The next leader, or a new node, must know that members without a lease may still train.
            noted = view.control.silent_of == current.nonce
            document = replace(view.control, silent_of=current.nonce)
            duty = None if noted else Publish(name=f"silent {current.nonce}", document=document)
            return Judgement(memory=memory, duty=duty, look_s=until_s, why=forming.SILENT)
    if current is None or ended(view.control, current):
        # A run that was stopped from outside gets no further round; the first node that leaves publishes its verdict.
        if view.control.stop_order is not None:
            return Judgement(memory=memory, why="the run is being stopped")
        return forming.form(view, memory)
    return _in_round(view, memory, current)


def _awaits_members(view: View, memory: LeaderMemory, current: RoundDocument) -> bool:
    """Return whether members of a round may still return after trouble with the store: all of them must be counted."""
    present = {member.incarnation for member in view.members if member.record.epoch == current.epoch}
    return view.now_s < memory.losses_from_s and not current.incarnations <= present


def leads(view: View, seat: int) -> int:
    """Return how many members come before the one with this seat as leader; 0 means that it leads."""
    exclude = forming.excluded(view)
    return sum(
        1
        for member in view.members
        if member.seat < seat
        and member.record.epoch == view.control.epoch
        and member.record.state not in ("leaving", "gone")
        and member.record.node not in exclude
    )


# --- while a round runs


def _in_round(view: View, memory: LeaderMemory, current: RoundDocument) -> Judgement:
    live = {member.incarnation: member.record for member in view.members if member.record.epoch == current.epoch}
    # A failover to a replica that missed the last writes: a member that has the later round writes it again.
    if any(record.seen > current.token for record in live.values()):
        return Judgement(memory=memory, why="a member has seen a later round: the store lost a write")
    noted = frozenset(view.control.done) if view.control.done_of == current.nonce else frozenset()
    memory = _remember(replace(memory, done=memory.done | noted), current, live)
    order = view.control.stopping
    if order is not None and (order.token, order.nonce) == (current.token, current.nonce):
        return _gather(view, memory, current, order, live)
    if current.incarnations <= memory.done:
        return Judgement(memory=memory, duty=_all_done(view, current))
    # The leader's own workers are done, and it may leave before the other nodes: its successor needs this list.
    if view.incarnation in memory.done - noted:
        done = tuple(sorted(memory.done & current.incarnations))
        document = replace(view.control, done_of=current.nonce, done=done)
        return Judgement(memory=memory, duty=Publish(name=f"done {current.nonce} {len(done)}", document=document))
    lost = [entry for entry in current.roster if entry.incarnation not in memory.done and _gone(entry, live, current)]
    if lost:
        silent = all(entry.incarnation not in live for entry in lost)
        # After an outage of the store, members have the length of one lease to return before they count as lost.
        if silent and view.now_s < memory.losses_from_s:
            return Judgement(memory=memory, look_s=memory.losses_from_s, why="waiting for silent members to renew")
        return Judgement(memory=memory, duty=_change(view, memory, current, lost, 0))
    judgement = _newcomers(view, memory, current, live)
    return judgement if judgement.duty is not None else gathered(view, judgement, current, live)


def _remember(memory: LeaderMemory, current: RoundDocument, live: Mapping[str, MemberRecord]) -> LeaderMemory:
    roster = current.incarnations
    mine = {inc: record for inc, record in live.items() if inc in roster and _of(record, current)}
    done = frozenset(inc for inc, record in mine.items() if record.state == "done")
    clean = frozenset(inc for inc, record in mine.items() if record.state in ("leaving", "ready", "out"))
    return replace(memory, done=memory.done | done, clean=memory.clean | clean)


def _of(record: MemberRecord, current: RoundDocument) -> bool:
    return (record.token, record.nonce) == (current.token, current.nonce)


def _gone(entry: RosterEntry, live: Mapping[str, MemberRecord], current: RoundDocument) -> bool:
    record = live.get(entry.incarnation)
    if record is None or record.state in ("leaving", "gone"):
        return True
    return record.state in ("ready", "out") and record.seen >= current.token  # it left the round on its own


def _all_done(view: View, current: RoundDocument) -> Publish:
    decision = Stop(reason="all workers finished", outcome="done")
    return _with_verdict(view, Verdict(decision=decision, exit_code=0, by=view.node, token=current.token))


def _with_verdict(view: View, verdict: Verdict) -> Publish:
    document = replace(view.control, verdict=verdict, stopping=None)
    return Publish(name=f"verdict {verdict.token} {verdict.decision.outcome}", document=document)


# --- while a round is stopped


def _gather(
    view: View, memory: LeaderMemory, current: RoundDocument, order: StopOrder, live: Mapping[str, MemberRecord]
) -> Judgement:
    """Collect the nodes' reports, then request a decision; a lost node alone is no failure of the run.

    Workers that only lost a peer report no cause. The leader then waits for a node without a report until its lease is
    over, because that node may be the cause.
    """
    began_s = view.now_s if memory.stopping_s is None else memory.stopping_s
    memory = replace(memory, stopping_s=began_s)
    reports = _reports(current, live, order, memory.done)
    asked = [entry for entry in current.roster if entry.incarnation not in memory.done]
    lost = [entry for entry in asked if _gone(entry, live, current)]
    pending = [entry for entry in asked if entry not in lost and not _answered(reports.get(entry.incarnation))]
    # A report of a node that still stops its workers may contain the first cause.
    if pending and view.now_s < began_s + GATHER_S:
        return Judgement(memory=memory, look_s=began_s + GATHER_S, why="nodes are stopping their workers")
    if not any(report.failure is not None and not report.collateral for report in reports.values()):
        if lost:
            silent = all(entry.incarnation not in live for entry in lost)
            if silent and view.now_s < memory.losses_from_s:
                return Judgement(memory=memory, look_s=memory.losses_from_s, why="waiting for silent members to renew")
            return Judgement(memory=memory, duty=_change(view, memory, current, lost, 0))
        quiet = [entry for entry in pending if entry.incarnation not in reports]
        # Before a node takes its place in a round, it may have the previous round's lease: at most twice as long.
        inside = all(_of(live[entry.incarnation], current) for entry in quiet)
        end_s = began_s + view.ttl_s * (1 if inside else 2) + LOSS_MARGIN_S
        if quiet and view.now_s < end_s:
            return Judgement(memory=memory, look_s=end_s, why="a node that says nothing may be why the others failed")
    question = DecisionAsked(
        reports=tuple(reports.values()),
        history=view.control.history,
        question=question_about(current.token, current.nonce),
    )
    return Judgement(memory=memory, duty=question)


def _reports(
    current: RoundDocument, live: Mapping[str, MemberRecord], order: StopOrder, done: frozenset[str]
) -> dict[str, NodeReport]:
    """Return each node's report, by incarnation; for the node that ordered the stop, at least the order's report."""
    found: dict[str, NodeReport] = {}
    for entry in current.roster:
        record = live.get(entry.incarnation)
        if record is not None and record.report is not None and _of(record, current):
            found[entry.incarnation] = record.report
        elif entry.incarnation == order.incarnation:
            found[entry.incarnation] = order.report
        elif entry.incarnation in done:
            found[entry.incarnation] = NodeReport(node_id=entry.node, finished_count=entry.nproc, final=True)
    return found


def _answered(report: NodeReport | None) -> bool:
    return report is not None and report.final


def _newcomers(view: View, memory: LeaderMemory, current: RoundDocument, live: Mapping[str, MemberRecord]) -> Judgement:
    roster = current.incarnations
    finishing = any(record.state in ("finishing", "done") for inc, record in live.items() if inc in roster)
    if finishing or memory.done:  # some done nodes may have left
        return Judgement(memory=memory, why="workers have begun to finish")
    if len(current.roster) >= view.max_nodes:
        return Judgement(memory=memory, why="the round is full")
    out, back_s = forming.still_out(view.control.ending, current, memory.ending_s, view.now_s)
    ready = [
        member
        for member in view.members
        if member.incarnation not in roster
        and member.record.epoch == current.epoch
        and member.record.state == "ready"
        and member.record.node not in out
    ]
    memory, free, look_s = forming.unpark(view, memory, ready, current)
    if free:
        return Judgement(memory=memory, duty=_change(view, memory, current, [], len(free)))
    look_s = min((s for s in (look_s, back_s) if s is not None), default=None)
    return Judgement(memory=memory, look_s=look_s, why="the round runs")


def _change(
    view: View, memory: LeaderMemory, current: RoundDocument, lost: Sequence[RosterEntry], arrived: int
) -> Publish:
    names = tuple(entry.node for entry in lost)
    unclean = tuple(entry.node for entry in lost if entry.incarnation not in memory.clean)
    refused = _refused(view, lost)
    left = tuple(node for node in names if node not in unclean and node not in refused)
    reason = _reason_of(unclean, left, refused, arrived)
    # If the other nodes are too few without it, they wait for it: it may return immediately.
    goes_on = len(current.roster) - len(lost) >= view.min_nodes
    back = not arrived and _are_back(view, lost)
    if back:
        reason = f"{named(names)} stopped while the store was away"
    # Members that only stopped their workers while the store was away do not count as a membership change.
    if not back and view.max_changes is not None and current.changes >= view.max_changes:
        return _with_verdict(view, _too_many_changes(view, current, names, unclean, reason))
    rest = forming.carried(view.control.ending, current, memory.ending_s, view.now_s)
    ending = Ending(
        token=current.token,
        nonce=current.nonce,
        kind="outage" if back else "regroup",
        decision=rest,
        policy=view.control.ending.policy if rest.exclude_nodes and view.control.ending is not None else "",
        reason=f"{reason}; {_what_follows(view, current, lost, arrived)}",
        by=view.node,
        lost=names,
        unclean=unclean,
        left=() if back else left,
        out=tuple(refused) if goes_on else (),
        arrived=arrived,
        age_s=_age_s(view, current),
    )
    return Publish(name=f"end {ending.token} {ending.nonce}", document=view.control.after(ending))


def _are_back(view: View, lost: Sequence[RosterEntry]) -> bool:
    """Return whether all lost nodes are back, so that they only stopped their workers while the store was away."""
    states = {member.incarnation: member.record.state for member in view.members}
    return all(states.get(entry.incarnation) == "ready" for entry in lost)


def _age_s(view: View, current: RoundDocument) -> float:
    return round(max(0.0, view.run_s - current.at_s), 3)


def _too_many_changes(
    view: View, current: RoundDocument, names: Sequence[str], unclean: Sequence[str], reason: str
) -> Verdict:
    what = f"{reason}, and --max-membership-changes is {view.max_changes}"
    failure = Failure(
        failure_class=FailureClass.NODE_LOST if unclean else FailureClass.PREEMPTED,
        summary=what,
        node_id=next(iter((*unclean, *names)), view.node),
        round_index=current.index,
        node_count=len(current.roster),
        at_s=round(view.run_s, 3),
        uptime_s=0.0,
        exit_code=4,
        message=what,
    )
    return Verdict(
        decision=Stop(reason=what, rule="max-membership-changes"),
        exit_code=failure.exit_code,
        by=view.node,
        token=current.token,
        failure=failure if names else None,
    )


def _what_follows(view: View, current: RoundDocument, lost: Sequence[RosterEntry], arrived: int) -> str:
    """Return the end of the line: which nodes continue, or how many are missing."""
    left = [entry for entry in current.roster if entry not in lost]
    count = min(len(left) + arrived, view.max_nodes)
    if arrived:
        return f"{nodes(count)} go on"
    waiting = sum(
        1
        for member in view.members
        if member.record.state == "ready" and member.incarnation not in current.incarnations
    )
    short = view.min_nodes - count
    if short > waiting:
        return f"{nodes(count)} left of at least {view.min_nodes}: waiting for {short - waiting} more"
    workers = sum(entry.nproc for entry in left)
    here = f"{nodes(count)} with {workers} worker{'' if workers == 1 else 's'}"
    verb = "goes on" if count == 1 else "go on"
    return f"{here} {verb}" + (f", and {waiting} more that waited" if waiting else "")


def _refused(view: View, lost: Sequence[RosterEntry]) -> dict[str, str]:
    """Return the lost nodes with hooks that refused to start their workers, each with the reason."""
    records = {member.incarnation: member.record for member in view.members}
    absences = ((entry.node, getattr(records.get(entry.incarnation), "absence", None)) for entry in lost)
    return {node: absence.text for node, absence in absences if absence is not None}


def _reason_of(unclean: Sequence[str], left: Sequence[str], refused: Mapping[str, str], arrived: int) -> str:
    parts = [f"{node} stays out: {reason}" for node, reason in refused.items()]
    for names, what in ((unclean, "lost"), (left, "left")):
        if names:
            parts.append(f"{named(names)} {what}")
    if arrived:
        parts.append("1 node joined" if arrived == 1 else f"{arrived} nodes joined")
    return "; ".join(parts)


# --- doing a duty, when it is a member's turn


def do_duty(state: State, now_s: float) -> Planned:
    """Return the operation of the outstanding duty: immediately for the leader, after a delay for a deputy."""
    seat, ahead = state.lease.seat, state.lease.ahead
    # The leader acts only on a current list of members; a deputy acts on its last read (below).
    if seat is None or ahead > DEPUTIES or (ahead == 0 and MEMBERS not in state.seen.fresh):
        return state, None
    view = _view(state, now_s)
    if view is None or state.seen.members_read_s == LONG_AGO_S:
        return state, None
    behind = leads(view, seat.number)
    judgement = judge(view, state.duty.memory)
    look_s = min(state.duty.look_s, judgement.look_s if judgement.look_s is not None else NEVER_S)
    duty = replace(state.duty, memory=judgement.memory, look_s=look_s, obstacle=judgement.why)
    if judgement.duty is None:
        return replace(state, duty=replace(duty, outstanding="")), None
    # This node is left out of the next round, so a node that takes part decides.
    if state.me.node in forming.excluded(view):
        return replace(state, duty=duty), None
    wanted = judgement.duty
    about = wanted.question if isinstance(wanted, DecisionAsked) else getattr(wanted, "serial", "")
    outstanding = wanted.name if isinstance(wanted, Publish) else f"{type(wanted).__name__} {about}"
    if duty.outstanding != outstanding:
        duty = replace(duty, outstanding=outstanding, outstanding_s=now_s)
    due_s = duty.outstanding_s + behind * DUTY_PERIODS * state.period_s
    if now_s < due_s:
        return replace(state, duty=replace(duty, look_s=min(look_s, due_s))), None
    state = replace(state, duty=duty)
    if behind and state.seen.members_read_s < due_s - state.period_s:
        return state, None  # a deputy acts on a recent read; it reads again within a period
    if isinstance(wanted, AnswersGathered):
        memory = replace(judgement.memory, gathered=wanted.serial)
        return replace(state, duty=replace(duty, memory=memory, outstanding="")), wanted
    if isinstance(wanted, DecisionAsked):
        assert view.current is not None
        return _ask(state, wanted, view.current, now_s)
    state = replace(state, duty=replace(duty, serial=duty.serial + 1))
    document = wanted.document
    return swap_round(state, document) if isinstance(document, RoundDocument) else swap_control(state, document)


def _view(state: State, now_s: float) -> View | None:
    me, seen = state.me, state.seen
    if seen.control is None or ROUND_KEY not in seen.fresh or CONTROL_KEY not in seen.fresh:
        return None
    return View(
        now_s=now_s,
        node=me.node,
        nonce=f"{me.incarnation}.{state.duty.serial}",
        incarnation=me.incarnation if state.lease.ahead == 0 else "",
        min_nodes=me.min_nodes,
        max_nodes=me.max_nodes,
        first_call_s=me.first_call_s,
        last_call_s=me.last_call_s,
        max_changes=me.max_membership_changes,
        control=seen.control,
        round=seen.round,
        members=seen.members,
        ttl_s=state.ttl_s,
        shortest_ttl_s=me.ttl_s,
        grace_s=me.store_outage_grace_s,
        run_s=state.run_s(now_s),
        still_runs_s=state.peers.silent_s,
    )


def _ask(state: State, question: DecisionAsked, current: RoundDocument, now_s: float) -> Planned:
    """Request a decision from the agent; repeat the request after a while, because the agent may be busy or leaving."""
    asked, before = (current.token, current.nonce), state.duty
    again_s = before.asked_s + ANSWER_S
    if before.asked == asked and now_s < again_s:
        return replace(state, duty=replace(before, look_s=min(before.look_s, again_s))), None
    question = replace(question, reports=(*question.reports, *_left_out(state, now_s)))
    return replace(state, duty=replace(before, asked=asked, asked_s=now_s)), question


def _left_out(state: State, now_s: float) -> Iterator[NodeReport]:
    """Yield a report for each node that is left out: by which policy or hook, why and for how long."""
    ending = state.seen.control.ending if state.seen.control is not None else None
    until_s = forming.out_until(ending, state.seen.round, state.duty.memory.ending_s)
    for member in state.seen.members:
        node, absence = member.record.node, member.record.absence
        if absence is not None and not absence.refused and absence.for_s is not None and node in until_s:
            absence = replace(absence, for_s=max(0.0, round(until_s[node] - now_s, 3)))
        if absence is not None:
            yield NodeReport(node_id=node, absence=absence)


def swap_round(state: State, document: RoundDocument) -> Planned:
    """Return the swap that replaces the round document that was read with `document`."""
    return state, protocol.Swap(key=ROUND_KEY, document=document, expect=state.seen.round_version, keep_s=STORE_KEEP_S)


def swap_control(state: State, document: ControlDocument) -> Planned:
    """Return the swap that replaces the control document that was read with `document`."""
    keep_s = STORE_KEEP_S
    if document.verdict is not None:
        keep_s = KEEP_DONE_S if document.verdict.decision.outcome == "done" else KEEP_FAILED_S
    swap = protocol.Swap(key=CONTROL_KEY, document=document, expect=state.seen.control_version, keep_s=keep_s)
    return state, swap
