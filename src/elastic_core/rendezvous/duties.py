"""What the leader owes the run: forming rounds, ending them, the verdict. Pure.

Every member can compute it from what it read; the one with the lowest seat acts on it, the next one when it stays
undone. The documents' compare-and-swap keeps two of them from doing harm.

The one rule that everything rests on: a round is formed only when no live member has workers of another. A member that
is gone has none: its lease ended, and its guard ended them before that.
"""

from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from elastic_core.rendezvous.documents import (
    ControlDocument,
    Ending,
    MemberRecord,
    RosterEntry,
    RoundDocument,
    StopOrder,
    Verdict,
)
from elastic_core.rendezvous.left_out import carried, needed, out_until, still_out
from elastic_core.rendezvous.roster import Candidate, assign, choose, entries
from elastic_core.rendezvous.steps_of_all import GATHER_STEPS_S, answers, merged, standing
from elastic_core.types import Failure, FailureClass, NodeReport, Record, RunSteps

PARK_S = (0.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0)
"""How long a node that left without a word waits as a spare when it is back, by how often it did so."""
GATHER_S = 2.0
"""How long nodes that stop their workers are waited for before it is decided without their word."""
LOSS_MARGIN_S = 1.5
"""How much later than its lease ends a lost node is missed by all, at the longest."""
MEMORY_LIMIT = 64
"""How many nodes that are gone a round document remembers."""


class View(Record, frozen=True, kw_only=True):
    """What a decision is made from: documents and members as read, and this host's monotonic clock."""

    now_s: float
    node: str
    nonce: str
    incarnation: str = ""
    min_nodes: int
    max_nodes: int
    first_call_s: float
    last_call_s: float
    max_changes: int | None
    control: ControlDocument
    round: RoundDocument | None
    members: Sequence[Candidate]
    ttl_s: float = 5.0
    run_s: float = 0.0
    """The run's age."""

    @property
    def current(self) -> RoundDocument | None:
        """Return the run's last round; None: it has had none."""
        return self.round if self.round is not None and self.round.epoch == self.control.epoch else None


class Notes(Record, frozen=True, kw_only=True):
    """What a member remembers from one look to the next. Times are of its own clock.

    `hold_until_s`: after trouble with the store nobody is taken for lost, and no round formed, before all who were
    alive can have been heard again. `steps`: the serial of the last question about steps, and when it saw that first.
    `stopping_s`: when it first saw that the round was stopped; `ending_s`: that the
    one before it had ended with `ending`.
    """

    token: int = -1
    ending: tuple[int, str] = (-1, "")
    ending_s: float = 0.0
    stopping_s: float | None = None
    enough_s: float | None = None
    back_s: Mapping[str, float] = {}
    steps: tuple[int, float] = (0, 0.0)
    done: frozenset[str] = frozenset()
    clean: frozenset[str] = frozenset()
    hold_until_s: float = float("-inf")


class FormRound(Record, frozen=True, kw_only=True):
    """Write this round."""

    document: RoundDocument


class EndRound(Record, frozen=True, kw_only=True):
    """Publish that the round is over."""

    ending: Ending


class GiveVerdict(Record, frozen=True, kw_only=True):
    """Publish that the run is over."""

    verdict: Verdict


class NoteDone(Record, frozen=True, kw_only=True):
    """Write down whose workers have ended well, for the leader's successor: its own have. Of nobody but the leader."""

    nonce: str
    done: tuple[str, ...]


class AskDecision(Record, frozen=True, kw_only=True):
    """Have the failure policy decide about a stopped round."""

    token: int
    nonce: str
    reports: tuple[NodeReport, ...]


class TellSteps(Record, frozen=True, kw_only=True):
    """Put together for all what the nodes have answered about their workers' steps."""

    seen: RunSteps


Duty = FormRound | EndRound | GiveVerdict | NoteDone | TellSteps | AskDecision


class Judgement(Record, frozen=True, kw_only=True):
    """What is to be done; else why not, and when to look again even if nothing changes (None: need not)."""

    notes: Notes
    duty: Duty | None = None
    look_s: float | None = None
    why: str = ""


def judge(view: View, notes: Notes) -> Judgement:
    """Return what the leader must do now."""
    if view.control.verdict is not None:
        return Judgement(notes=notes, why="the run is over")
    current = view.current
    token = current.token if current else 0
    if notes.token != token:
        notes = replace(
            notes, token=token, steps=(0, 0.0), stopping_s=None, enough_s=None, done=frozenset(), clean=frozenset()
        )
    ending = view.control.ending
    if ending is not None and notes.ending != (ending.token, ending.nonce):
        notes = replace(notes, ending=(ending.token, ending.nonce), ending_s=view.now_s)
    if current is None or ended(view.control, current):
        return _form(view, notes)
    order = view.control.stopping
    if order is not None and (order.token, order.nonce) == (current.token, current.nonce):
        return _gather(view, notes, current, order)
    return _keep(view, notes, current)


def ended(control: ControlDocument, round_: RoundDocument) -> bool:
    """Return whether a round was declared over."""
    ending = control.ending
    return ending is not None and (ending.token, ending.nonce) == (round_.token, round_.nonce)


def leads(view: View, seat: int) -> int:
    """Return how many members would lead before the one with this seat; 0: it leads."""
    exclude = excluded(view)
    return sum(
        1
        for member in view.members
        if member.seat < seat
        and member.record.epoch == view.control.epoch
        and member.record.state != "leaving"
        and member.record.node not in exclude
    )


# --- while a round runs


def _keep(view: View, notes: Notes, current: RoundDocument) -> Judgement:
    live = {member.incarnation: member.record for member in view.members if member.record.epoch == current.epoch}
    if any(record.seen > current.token for record in live.values()):
        return Judgement(notes=notes, why="somebody has seen a later round: the store lost a write")
    noted = frozenset(view.control.done) if view.control.done_of == current.nonce else frozenset()
    notes = _note(replace(notes, done=notes.done | noted), current, live)
    if current.incarnations <= notes.done:
        return Judgement(notes=notes, duty=_all_done(view, current))
    if view.incarnation in notes.done - noted:
        duty = NoteDone(nonce=current.nonce, done=tuple(sorted(notes.done & current.incarnations)))
        return Judgement(notes=notes, duty=duty)
    lost = [entry for entry in current.roster if entry.incarnation not in notes.done and _gone(entry, live, current)]
    if lost:
        silent = all(entry.incarnation not in live for entry in lost)
        if silent and view.now_s < notes.hold_until_s:
            return Judgement(notes=notes, look_s=notes.hold_until_s, why="waiting for members to be heard again")
        return Judgement(notes=notes, duty=_change(view, notes, current, lost, 0))
    judgement = _newcomers(view, notes, current, live)
    return judgement if judgement.duty is not None else _with_steps(view, judgement, current, live)


def _with_steps(
    view: View, judgement: Judgement, current: RoundDocument, live: Mapping[str, MemberRecord]
) -> Judgement:
    """Tell how far everybody's workers are, if that was asked and all have answered, or have had the time to."""
    order, notes = standing(view.control, current), judgement.notes
    if order is None or order.seen is not None:
        return judgement
    serial, since_s = notes.steps
    if serial != order.serial:
        serial, since_s = order.serial, view.now_s
    told, complete = answers(order, current, live)
    notes = replace(notes, steps=(serial, since_s))
    if complete or view.now_s >= since_s + GATHER_STEPS_S:
        return replace(judgement, notes=notes, duty=TellSteps(seen=merged(order.serial, told)))
    look_s = min(since_s + GATHER_STEPS_S, judgement.look_s if judgement.look_s is not None else float("inf"))
    return replace(judgement, notes=notes, look_s=look_s, why="nodes say how far their workers are")


def _note(notes: Notes, current: RoundDocument, live: Mapping[str, MemberRecord]) -> Notes:
    roster = current.incarnations
    mine = {inc: record for inc, record in live.items() if inc in roster and _of(record, current)}
    done = frozenset(inc for inc, record in mine.items() if record.state == "done")
    clean = frozenset(inc for inc, record in mine.items() if record.state == "leaving")
    return replace(notes, done=notes.done | done, clean=notes.clean | clean)


def _of(record: MemberRecord, current: RoundDocument) -> bool:
    return (record.token, record.nonce) == (current.token, current.nonce)


def _gone(entry: RosterEntry, live: Mapping[str, MemberRecord], current: RoundDocument) -> bool:
    record = live.get(entry.incarnation)
    if record is None or record.state == "leaving":
        return True
    return record.state == "ready" and record.seen >= current.token  # it has left the round by itself


def _all_done(view: View, current: RoundDocument) -> GiveVerdict:
    return GiveVerdict(
        verdict=Verdict(outcome="done", exit_code=0, reason="all workers finished", by=view.node, token=current.token)
    )


# --- while a round is stopped


def _gather(view: View, notes: Notes, current: RoundDocument, order: StopOrder) -> Judgement:
    """Wait for what the nodes have seen, then have it decided; a lost node alone is no failure of the run's.

    Workers that merely lost a peer say nothing of why: then a node that says nothing at all is waited for until its
    lease is over, and it is known that it was the reason.
    """
    live = {member.incarnation: member.record for member in view.members if member.record.epoch == current.epoch}
    if any(record.seen > current.token for record in live.values()):
        return Judgement(notes=notes, why="somebody has seen a later round: the store lost a write")
    began_s = view.now_s if notes.stopping_s is None else notes.stopping_s
    noted = frozenset(view.control.done) if view.control.done_of == current.nonce else frozenset()
    notes = _note(replace(notes, stopping_s=began_s, done=notes.done | noted), current, live)
    reports = _reports(current, live, order, notes.done)
    asked = [entry for entry in current.roster if entry.incarnation not in notes.done]
    lost = [entry for entry in asked if _gone(entry, live, current)]
    pending = [entry for entry in asked if entry not in lost and not _answered(reports.get(entry.incarnation))]
    if pending and view.now_s < began_s + GATHER_S:
        return Judgement(notes=notes, look_s=began_s + GATHER_S, why="nodes are stopping their workers")
    if not any(report.failure is not None and not report.collateral for report in reports.values()):
        if lost:
            silent = all(entry.incarnation not in live for entry in lost)
            if silent and view.now_s < notes.hold_until_s:
                return Judgement(notes=notes, look_s=notes.hold_until_s, why="waiting for members to be heard again")
            return Judgement(notes=notes, duty=_change(view, notes, current, lost, 0))
        end_s = began_s + view.ttl_s + LOSS_MARGIN_S
        if any(entry.incarnation not in reports for entry in pending) and view.now_s < end_s:
            return Judgement(notes=notes, look_s=end_s, why="a node that says nothing may be why the others failed")
    return Judgement(
        notes=notes, duty=AskDecision(token=current.token, nonce=current.nonce, reports=tuple(reports.values()))
    )


def _reports(
    current: RoundDocument, live: Mapping[str, MemberRecord], order: StopOrder, done: frozenset[str]
) -> dict[str, NodeReport]:
    """Return what each node has said, by incarnation; of the one that ordered the stop at least what it said then."""
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


def _newcomers(view: View, notes: Notes, current: RoundDocument, live: Mapping[str, MemberRecord]) -> Judgement:
    roster = current.incarnations
    finishing = any(record.state in ("finishing", "done") for inc, record in live.items() if inc in roster)
    if finishing or notes.done:  # some who were done may have gone
        return Judgement(notes=notes, why="workers have begun to finish")
    if len(current.roster) >= view.max_nodes:
        return Judgement(notes=notes, why="the round is full")
    out, back_s = still_out(view.control.ending, current, notes.ending_s, view.now_s)
    ready = [
        member
        for member in view.members
        if member.incarnation not in roster
        and member.record.epoch == current.epoch
        and member.record.state == "ready"
        and member.record.node not in out
    ]
    notes, free, look_s = _unpark(view, notes, ready, current)
    if free:
        return Judgement(notes=notes, duty=_change(view, notes, current, [], len(free)))
    look_s = min((s for s in (look_s, back_s) if s is not None), default=None)
    return Judgement(notes=notes, look_s=look_s, why="the round runs")


def _change(
    view: View, notes: Notes, current: RoundDocument, lost: Sequence[RosterEntry], arrived: int
) -> EndRound | GiveVerdict:
    names = tuple(entry.node for entry in lost)
    unclean = tuple(entry.node for entry in lost if entry.incarnation not in notes.clean)
    reason = _told(lost, unclean, arrived)
    if view.max_changes is not None and current.changes >= view.max_changes:
        return GiveVerdict(verdict=_too_many_changes(view, current, names, unclean, reason))
    exclude, exclude_s = carried(view.control.ending, current, notes.ending_s, view.now_s)
    ending = Ending(
        token=current.token,
        nonce=current.nonce,
        kind="regroup",
        exclude=exclude,
        exclude_s=exclude_s,
        reason=reason,
        by=view.node,
        lost=names,
        unclean=unclean,
        arrived=arrived,
    )
    return EndRound(ending=ending)


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
        outcome="failed",
        exit_code=failure.exit_code,
        reason=what,
        by=view.node,
        token=current.token,
        rule="max-membership-changes",
        failure=failure if names else None,
    )


def _told(lost: Sequence[RosterEntry], unclean: Sequence[str], arrived: int) -> str:
    left = [entry.node for entry in lost if entry.node not in unclean]
    parts = []
    for names, what in ((unclean, "lost"), (left, "left")):
        if names:
            shown = ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")
            parts.append(f"{shown} {what}")
    if arrived:
        parts.append("1 node joined" if arrived == 1 else f"{arrived} nodes joined")
    return "; ".join(parts)


# --- while a round forms


def excluded(view: View) -> frozenset[str]:
    """Return the nodes that the last decision leaves out, if there are enough others."""
    if view.current is None:
        return frozenset()
    names = out_until(view.control.ending, view.current, view.now_s)
    others = sum(
        1
        for member in view.members
        if member.record.epoch == view.control.epoch
        and member.record.state != "leaving"
        and member.record.node not in names
    )
    return needed(names, others, view.min_nodes)


def _form(view: View, notes: Notes) -> Judgement:
    current = view.current
    roster = current.incarnations if current is not None else frozenset()
    blocker = next((member for member in view.members if _has_workers(member, view, current, roster)), None)
    if blocker is not None:
        return Judgement(notes=notes, why=f"{blocker.record.node} has workers still")
    ready = [member for member in view.members if member.record.epoch == view.control.epoch]
    notes, free, look_s = _unpark(view, notes, ready, current)
    exclude = excluded(view)
    kept = [member for member in free if member.record.node not in exclude]
    candidates = kept if len(kept) >= view.min_nodes else free
    if len(candidates) < view.min_nodes:
        notes = replace(notes, enough_s=None)
        return Judgement(notes=notes, look_s=look_s, why=f"{len(candidates)} of at least {view.min_nodes} nodes")
    if view.now_s < notes.hold_until_s:
        return Judgement(notes=notes, look_s=notes.hold_until_s, why="waiting for members to be heard again")
    called_s, notes = _last_call(view, notes, candidates, current)
    if view.now_s < called_s:
        return Judgement(notes=notes, look_s=called_s, why="last call")
    return Judgement(notes=notes, duty=FormRound(document=_document(view, candidates, current)))


def _has_workers(member: Candidate, view: View, current: RoundDocument | None, roster: frozenset[str]) -> bool:
    """Return whether a member has workers, or may be about to start some: it has not seen yet that its round ended."""
    record = member.record
    if record.state != "ready":
        return True
    unaware = current is not None and record.seen < current.token and member.incarnation in roster
    return unaware and record.epoch == view.control.epoch


def _last_call(
    view: View, notes: Notes, candidates: Sequence[Candidate], current: RoundDocument | None
) -> tuple[float, Notes]:
    """Return until when to wait for more nodes than enough.

    Later rounds wait for nobody: whoever was in the last one is back or gone when no member has workers any more.
    """
    if len(candidates) >= view.max_nodes:
        return view.now_s, notes
    roster = current.incarnations if current is not None else frozenset()
    back = any(member.incarnation in roster for member in candidates)
    if back:
        return view.now_s, notes
    enough_s = view.now_s if notes.enough_s is None else notes.enough_s
    call_s = view.first_call_s if current is None else view.last_call_s
    return enough_s + call_s, replace(notes, enough_s=enough_s)


def _unpark(
    view: View, notes: Notes, ready: Sequence[Candidate], current: RoundDocument | None
) -> tuple[Notes, list[Candidate], float | None]:
    """Return those who need not wait as spares (any more), and when the next one is free."""
    strikes = _strikes(view, current)
    stayed = current.incarnations if current is not None else frozenset()
    back_s = {m.incarnation: notes.back_s.get(m.incarnation, view.now_s) for m in ready if m.record.node in strikes}
    free, look_s = [], None
    for member in ready:
        count = strikes.get(member.record.node, 0)
        until_s = view.now_s
        if count and member.incarnation not in stayed:
            until_s = back_s[member.incarnation] + PARK_S[min(count, len(PARK_S)) - 1]
        if until_s <= view.now_s:
            free.append(member)
        else:
            look_s = until_s if look_s is None else min(look_s, until_s)
    return replace(notes, back_s=back_s), free, look_s


def _lost(view: View) -> tuple[str, ...]:
    return view.control.ending.unclean if view.control.ending is not None else ()


def _strikes(view: View, current: RoundDocument | None) -> dict[str, int]:
    """Return how often each node has left without a word, the ending of the current round included."""
    if current is None:
        return {}
    strikes = dict(current.strikes)
    if ended(view.control, current):
        for node in _lost(view):
            strikes[node] = strikes.get(node, 0) + 1
    return strikes


def _document(view: View, candidates: Sequence[Candidate], current: RoundDocument | None) -> RoundDocument:
    last = current.roster if current is not None else ()
    left = dict(current.left) if current is not None else {}
    ranked = assign(choose(candidates, last, view.max_nodes), last, left)
    roster = entries(ranked)
    here = {entry.node for entry in roster}
    left |= {entry.node: rank for rank, entry in enumerate(last)}
    ending = view.control.ending if current is not None else None
    seen = max((member.record.seen for member in view.members), default=0)
    return RoundDocument(
        epoch=view.control.epoch,
        token=1 + max(seen, view.round.token if view.round is not None else 0),
        nonce=view.nonce,
        index=current.index + 1 if current is not None else 0,
        restarts=_count(current.restarts, ending, "restart") if current is not None else 0,
        changes=_count(current.changes, ending, "regroup") if current is not None else 0,
        at_s=round(view.run_s, 3),
        master_addr=ranked[0].record.master or roster[0].host,
        master_port=ranked[0].record.master_port,
        roster=roster,
        left=_recent({node: rank for node, rank in left.items() if node not in here}),
        strikes=_recent(_strikes(view, current)),
    )


def _count(before: int, ending: Ending | None, kind: str) -> int:
    return before + (1 if ending is not None and ending.kind == kind else 0)


def _recent(memory: Mapping[str, int]) -> dict[str, int]:
    return dict(list(memory.items())[-MEMORY_LIMIT:])
