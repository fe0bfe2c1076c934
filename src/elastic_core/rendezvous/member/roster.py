"""The roster of a round: which nodes take part, and with which ranks. Pure.

Nodes that stay keep their order, and their rank if the new size allows it. A node that returns gets its old rank if
that is free. New nodes fill the free ranks in order of arrival; those with a hint (`--node-rank`) come first.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from elastic_core.rendezvous.address import is_loopback
from elastic_core.rendezvous.member.documents import DEFAULT_ROLE, MemberRecord, RosterEntry
from elastic_core.types import Record


class Candidate(Record, frozen=True, kw_only=True):
    """A member that can take part in a round."""

    seat: int
    incarnation: str
    record: MemberRecord


def choose(candidates: Sequence[Candidate], last: Sequence[RosterEntry], limit: int) -> list[Candidate]:
    """Return at most `limit` of the candidates: members of the last round first, in rank order, then by arrival."""
    rank = {entry.incarnation: index for index, entry in enumerate(last)}
    behind = len(last)
    ordered = sorted(candidates, key=lambda c: (rank.get(c.incarnation, behind), c.seat))
    return ordered[:limit]


def assign(chosen: Sequence[Candidate], last: Sequence[RosterEntry], left: Mapping[str, int]) -> list[Candidate]:
    """Return the chosen candidates in rank order.

    Args:
        chosen: The candidates that take part.
        last: The last round's roster.
        left: The last rank of nodes that are no longer in a roster, by node id.
    """
    size = len(chosen)
    slots: list[Candidate | None] = [None] * size
    rank = {entry.incarnation: index for index, entry in enumerate(last)}
    stayed = sorted((c for c in chosen if c.incarnation in rank), key=lambda c: rank[c.incarnation])
    before = -1
    for index, candidate in enumerate(stayed):
        # As close to its old rank as possible, with enough ranks left for the nodes behind it.
        before = max(before + 1, min(rank[candidate.incarnation], size - len(stayed) + index))
        slots[before] = candidate
    old = {entry.node: index for index, entry in enumerate(last)} | dict(left)
    others = sorted((c for c in chosen if c.incarnation not in rank), key=lambda c: c.seat)
    others = _seat_wishes(slots, others, lambda c: old.get(c.record.node))
    others = _seat_wishes(slots, others, lambda c: c.record.rank_hint)
    waiting = iter(others)
    return [slot if slot is not None else next(waiting) for slot in slots]


def _seat_wishes(
    slots: list[Candidate | None], candidates: list[Candidate], wish: Callable[[Candidate], int | None]
) -> list[Candidate]:
    """Put each candidate into the slot that it wishes, if that is free; return the other candidates."""
    rest = []
    for candidate in candidates:
        slot = wish(candidate)
        if slot is not None and 0 <= slot < len(slots) and slots[slot] is None:
            slots[slot] = candidate
        else:
            rest.append(candidate)
    return rest


def entries(ranked: Sequence[Candidate]) -> tuple[RosterEntry, ...]:
    """Return the roster of a round.

    A loopback address means this host, so it is used only if all nodes are known to be on one host. If agents of one
    host have the same id, the beginning of their incarnations distinguishes them.
    """
    boots = {candidate.record.boot for candidate in ranked}
    one_host = len(ranked) == 1 or (len(boots) == 1 and "" not in boots)
    count = Counter(candidate.record.node for candidate in ranked)
    return tuple(_entry(candidate, one_host=one_host, alone=count[candidate.record.node] == 1) for candidate in ranked)


def given_id(node: str) -> str:
    """Return a node's id without the suffix that distinguishes it from other nodes with that id."""
    return node.partition("#")[0]


def _entry(candidate: Candidate, *, one_host: bool, alone: bool) -> RosterEntry:
    record = candidate.record
    address = record.address
    if not one_host and is_loopback(address):
        address = record.alternative or address
    return RosterEntry(
        incarnation=candidate.incarnation,
        node=record.node if alone else f"{record.node}#{candidate.incarnation[:4]}",
        address="" if alone and record.node.rpartition("@")[2] == address else address,
        agent_port=record.agent_port,
        nproc=record.nproc,
        named_role="" if record.role == DEFAULT_ROLE else record.role,
    )
