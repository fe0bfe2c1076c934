"""The nodes of the next round, and when it is formed: the leader's work between two rounds. Pure."""

from collections.abc import Mapping, Sequence
from typing import Final

from msgspec.structs import replace

from elastic_core.rendezvous.member.documents import Ending, MemberRecord, RoundDocument
from elastic_core.rendezvous.member.duty import LAST_CALL, Judgement, LeaderMemory, Publish, View, ended
from elastic_core.rendezvous.member.roster import Candidate, assign, choose, entries
from elastic_core.types import Restart

SILENT: Final = "members of the last round may train on without the store"
_RESTED: Final = ("ready", "out", "done", "stopped", "gone")
_FOR_GOOD: Final = float("inf")
PARK_S = (0.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0)
"""Seconds for which a node that left without notice and is back waits as a spare, by the number of such exits."""
STARTING_LEASES = 12
"""For this many leases after a round was formed, a lost node counts as lost while workers start."""
LONGEST_LEASE_S = 40.0
"""The longest lease, in seconds, after nodes were lost while workers started."""
MEMORY_LIMIT = 64
"""The most absent nodes that a round document remembers."""


def excluded(view: View) -> frozenset[str]:
    """Return the nodes that the last decision leaves out, if there are enough other nodes."""
    if view.current is None:
        return frozenset()
    names = out_until(view.control.ending, view.current, view.now_s)
    others = sum(
        1
        for member in view.members
        if member.record.epoch == view.control.epoch
        and member.record.state not in ("leaving", "gone", "out")
        and member.record.node not in names
    )
    return frozenset(names) if others >= view.min_nodes else frozenset()


def form(view: View, memory: LeaderMemory) -> Judgement:
    """Form the next round if enough nodes are ready and no member has workers of another round."""
    current = view.current
    roster = current.incarnations if current is not None else frozenset()
    # Workers of two rounds at the same time would write the same checkpoint.
    blocker = next((member for member in view.members if _has_workers(member, view, current, roster)), None)
    if blocker is not None:
        unaware = blocker.record.state == "ready"
        what = "has not seen yet that its round is over" if unaware else "has workers still"
        return Judgement(memory=memory, why=f"{blocker.record.node} {what}")
    ready = [m for m in view.members if m.record.epoch == view.control.epoch and m.record.state == "ready"]
    memory, free, look_s = unpark(view, memory, ready, current)
    exclude = excluded(view)
    kept = [member for member in free if member.record.node not in exclude]
    # Nodes that a policy left out take part anyway if the other nodes are too few for a round.
    candidates = kept if len(kept) >= view.min_nodes else free
    if len(candidates) < view.min_nodes:
        memory = replace(memory, enough_s=None)
        return Judgement(memory=memory, look_s=look_s, why=_too_few(view, ready, candidates, look_s))
    if view.now_s < memory.losses_from_s:
        return Judgement(memory=memory, look_s=memory.losses_from_s, why="waiting for silent members to renew")
    called_s, memory = _last_call(view, memory, candidates, current)
    if view.now_s < called_s:
        return Judgement(memory=memory, look_s=called_s, why=LAST_CALL)
    document = _document(view, candidates, current)
    return Judgement(memory=memory, duty=Publish(name=f"form {document.index}", document=document))


def _too_few(view: View, ready: Sequence[Candidate], free: Sequence[Candidate], look_s: float | None) -> str:
    if look_s is None or len(ready) < view.min_nodes:
        return f"{len(free)} of at least {view.min_nodes} nodes"
    names = ", ".join(member.record.node for member in ready if member not in free)
    return f"{names} left without a word before, and stays a spare for {max(0.0, look_s - view.now_s):.0f} s more"


def _has_workers(member: Candidate, view: View, current: RoundDocument | None, roster: frozenset[str]) -> bool:
    """Return whether a member has workers, or may start some because it has not yet seen that its round ended."""
    record = member.record
    if record.state not in ("ready", "out", "gone"):
        return True
    unaware = current is not None and record.seen < current.token and member.incarnation in roster
    return unaware and record.epoch == view.control.epoch


def _last_call(
    view: View, memory: LeaderMemory, candidates: Sequence[Candidate], current: RoundDocument | None
) -> tuple[float, LeaderMemory]:
    """Return until when to wait for more nodes than the minimum.

    There is no wait if nodes of the last round are ready: when no member has workers, each of them is back or gone.
    """
    if len(candidates) >= view.max_nodes:
        return view.now_s, memory
    roster = current.incarnations if current is not None else frozenset()
    back = any(member.incarnation in roster for member in candidates)
    if back:
        return view.now_s, memory
    enough_s = view.now_s if memory.enough_s is None else memory.enough_s
    call_s = view.first_call_s if current is None else view.last_call_s
    return enough_s + call_s, replace(memory, enough_s=enough_s)


def unpark(
    view: View, memory: LeaderMemory, ready: Sequence[Candidate], current: RoundDocument | None
) -> tuple[LeaderMemory, list[Candidate], float | None]:
    """Return the members that need not wait as spares any more, and when the next one's wait ends."""
    exits = _unplanned_exits(view, current)
    stayed = current.incarnations if current is not None else frozenset()
    back_s = {m.incarnation: memory.back_s.get(m.incarnation, view.now_s) for m in ready if m.record.node in exits}
    free, look_s = [], None
    for member in ready:
        count = exits.get(member.record.node, 0)
        until_s = view.now_s
        # An incarnation of the last round has not left; a restarted one has.
        if count and member.incarnation not in stayed:
            until_s = back_s[member.incarnation] + PARK_S[min(count, len(PARK_S)) - 1]
        if until_s <= view.now_s:
            free.append(member)
        else:
            look_s = until_s if look_s is None else min(look_s, until_s)
    return replace(memory, back_s=back_s), free, look_s


def _unplanned_exits(view: View, current: RoundDocument | None) -> dict[str, int]:
    """Return how often each node left a round without notice, or refused to start its workers in it."""
    if current is None:
        return {}
    exits, ending = dict(current.strikes), view.control.ending
    if ending is not None and ended(view.control, current):
        for node in (*ending.unclean, *ending.out):
            exits[node] = exits.get(node, 0) + 1
    return exits


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
        # If the store lost rounds, a token that a member has seen must not be used again.
        token=1 + max(seen, view.round.token if view.round is not None else 0),
        nonce=view.nonce,
        index=current.index + 1 if current is not None else 0,
        restarts=_count(current.restarts, ending, "restart") if current is not None else 0,
        changes=_count(current.changes, ending, "regroup") if current is not None else 0,
        at_s=round(view.run_s, 3),
        lease_s=_lease_s(view, current, ending),
        grace_s=view.grace_s,
        master_addr=ranked[0].record.master or roster[0].host,
        master_port=ranked[0].record.master_port,
        roster=roster,
        left=_recent({node: rank for node, rank in left.items() if node not in here}),
        strikes=_recent(_unplanned_exits(view, current)),
    )


def _lease_s(view: View, current: RoundDocument | None, ending: Ending | None) -> float:
    """Return the lease of the next round: longer if the last one lost nodes while their workers started.

    Starting workers can use all processors for so long that agents get no CPU time; another round would not help. After
    a round that ran for a while, the lease returns to the configured length in steps.
    """
    shortest_s = view.shortest_ttl_s
    if current is None or ending is None:
        return shortest_s
    lost = bool(ending.unclean) or ending.kind == "outage"
    # Nodes lost while workers start probably lacked CPU time and did not die.
    starved = lost and ending.age_s < STARTING_LEASES * current.lease_s
    longer_s = current.lease_s * (2.0 if starved else 0.5)
    return min(max(longer_s, shortest_s), max(LONGEST_LEASE_S, shortest_s))


def _count(before: int, ending: Ending | None, kind: str) -> int:
    return before + (1 if ending is not None and ending.kind == kind else 0)


def _recent(memory: Mapping[str, int]) -> dict[str, int]:
    return dict(list(memory.items())[-MEMORY_LIMIT:])


# --- nodes that a decision left out
#
# Each member measures the time for itself, from when it first saw the decision: clocks of other hosts are not used.


def out_until(ending: Ending | None, current: RoundDocument | None, seen_s: float) -> dict[str, float]:
    """Return the nodes that are left out, and until when.

    Args:
        ending: The last ending of the run, of the current round or of the one before.
        current: The last round; its nodes are not left out.
        seen_s: When this node first saw the ending.
    """
    if ending is None:
        return {}
    over = current is not None and (ending.token, ending.nonce) == (current.token, current.nonce)
    here = {entry.node for entry in current.roster} if current is not None and not over else frozenset()
    names, times = ending.decision.exclude_nodes, ending.decision.exclude_s
    times = (*times, *(_FOR_GOOD for _ in names[len(times) :]))
    return {node: seen_s + for_s for node, for_s in zip(names, times, strict=False) if node not in here}


def still_out(
    ending: Ending | None, current: RoundDocument, seen_s: float, now_s: float
) -> tuple[frozenset[str], float | None]:
    """Return the nodes that don't count as new, and when the next one will; `None` means not before a decision."""
    until = {node: end_s for node, end_s in out_until(ending, current, seen_s).items() if end_s > now_s}
    next_s = min(until.values(), default=_FOR_GOOD)
    return frozenset(until), None if next_s == _FOR_GOOD else next_s


def carried(ending: Ending | None, current: RoundDocument, seen_s: float, now_s: float) -> Restart:
    """Return the remaining exclusions of the last decision, for a round that ends without a failure."""
    left = {node: end_s - now_s for node, end_s in out_until(ending, current, seen_s).items() if end_s > now_s}
    names = sorted(left, key=lambda node: (left[node], node))  # permanent exclusions come last, without a time
    times = tuple(left[node] for node in names if left[node] != _FOR_GOOD)
    return Restart(exclude_nodes=tuple(names), exclude_s=times)


# --- a round of which nobody is alive
#
# A member that loses its lease has stopped its workers, unless each other member of its round has given it a grant. In
# that case the store sees none of them alive, or a live one publishes `running` until its grant has ended. So if one
# member is alive and publishes that it has no workers, no other member has any. If none is alive, all may be cut off
# together and hold each other's grants, for as long as the round's outage grace.


def watch(view: View, memory: LeaderMemory) -> LeaderMemory:
    """Return the memory with the members that have no workers of the last round, and since when no member is alive."""
    current = view.current
    if current is None:
        return replace(memory, silent_s=None)
    roster = current.incarnations
    records = {member.incarnation: member.record for member in view.members if member.incarnation in roster}
    done = memory.done | (frozenset(view.control.done) if view.control.done_of == current.nonce else frozenset())
    rested = memory.rested | done | {name for name, record in records.items() if _rests(record, current)}
    alive = any(record.state != "gone" for record in records.values())
    if alive and memory.silent_s is not None:  # the other members of the round get the same time to renew
        memory = replace(memory, losses_from_s=max(memory.losses_from_s, view.now_s + current.lease_s))
    if alive or roster <= rested:
        return replace(memory, rested=rested, silent_s=None)
    return replace(memory, rested=rested, silent_s=view.now_s if memory.silent_s is None else memory.silent_s)


def _rests(record: MemberRecord, current: RoundDocument) -> bool:
    """Return whether a member took part in the round and has no workers of it any more."""
    return record.state in _RESTED and (record.token, record.nonce) == (current.token, current.nonce)


def silent_until_s(view: View, memory: LeaderMemory, current: RoundDocument) -> float:
    """Return until when to wait for silent members, since they were first missed and since their last reply."""
    if memory.silent_s is None:
        return view.now_s
    return max(memory.silent_s + current.lease_s + current.grace_s, view.still_runs_s + current.lease_s)
