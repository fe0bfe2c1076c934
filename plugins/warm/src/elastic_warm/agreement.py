"""The agreement of all ranks on the state with which a round begins, as a pure function of their reports.

Every rank gathers the same reports and computes the same plan, so no rank decides for the others.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final, NamedTuple

from elastic_warm.state_errors import StateError

_AFRESH: Final = "a Checkpointer or `load=` for State, so that all ranks can go on from a checkpoint"


class Key(NamedTuple):
    """Identity of one commit. Keys are ordered: of two commits, the newer one has the greater key."""

    generation: int
    """The number of agreements before it. A commit of a later generation wins, as it stems from a later agreement."""
    serial: int
    """The number of commits up to this one, since the first agreement."""
    step: int
    """The script's step. It makes commits differ whose ranks have counted differently."""


@dataclass(frozen=True, slots=True)
class Copy:
    """A whole copy of a commit in the memory of a rank: its own, or one that it keeps for another rank."""

    key: Key
    owner: int
    """The rank whose own part it contains, in the group in which the commit was made."""
    world_size: int
    """The size of that group."""
    has_common: bool
    """Whether it has the part that is the same on all ranks. A copy for another rank has only that rank's own part."""
    own_needed: bool
    """Whether a state without each rank's own part is incomplete: it is sharded, in contrast to random state only."""
    digest: str = ""
    """Digest of the structure of the common part. Empty without it."""
    sizes: tuple[int, int, int, int] = (0, 0, 0, 0)
    """Bytes of the common part's head and tensors, and of the own part's head and tensors."""
    share: int = -1
    """The lowest rank of that group that has the same own tensors as the owner."""
    share_count: int = 0
    """How many different own parts that group has. 0: they are no parts of global tensors, so none can be divided."""
    fits: bool = True
    """Whether the objects of the rank that reports it are divided as the commit is."""
    obstacle: str = ""
    """Why the commit can't be divided anew for the objects of the rank that reports it. Empty: it can."""


@dataclass(frozen=True, slots=True)
class Report:
    """What one rank of the new group has."""

    rank: int
    generation: int = 0
    """The greatest generation that it has taken part in."""
    pristine: bool = True
    """Whether its objects are as the script has made them, so that training can begin from them."""
    can_load: bool = False
    """Whether it can load a checkpoint."""
    node: int = 0
    """Number of its node."""
    outline: str = ""
    """Digest of the names, kinds and shapes of its state."""
    layout: str = ""
    """Digest of how its objects are divided among ranks. Empty: none is."""
    copies: tuple[Copy, ...] = ()


class Source(StrEnum):
    """The origin of the state with which a round begins."""

    MEMORY = "memory"
    """A commit of which every needed part is alive."""
    CHECKPOINT = "checkpoint"
    """The script's checkpoint, if there is one."""
    START = "start"
    """The state as the script has made it, that of rank 0."""


class Move(NamedTuple):
    """One rank's own part travels from the rank that has it to the rank that continues with it."""

    holder: int
    receiver: int
    owner: int
    """The part's rank in the old group, equal to `receiver`."""


@dataclass(frozen=True, slots=True)
class Plan:
    """How all ranks get the same state."""

    source: Source
    generation: int
    """The generation that begins."""
    key: Key | None = None
    """The commit, if the source is memory."""
    sender: int = 0
    """The rank that broadcasts the common part, or for `START` its state."""
    receivers: tuple[int, ...] = ()
    """The ranks that lack the common part. If there are none, there is no broadcast."""
    moves: tuple[Move, ...] = ()
    lost: tuple[int, ...] = ()
    """Ranks of the old group, still there in the new one, whose own part is lost, though it is not needed."""
    anew: bool = False
    """Whether sharded tensors are divided anew. `moves` and `lost` are then those of random state alone."""
    notes: tuple[str, ...] = ()
    """Why newer commits are not used: a line for each."""


def agree(reports: Sequence[Report]) -> Plan:
    """Return the plan for the newest commit of which every needed part is alive, else for a checkpoint or the start.

    If a rank's own part of that commit is lost, though the state is complete without it, the commit just before it is
    used if all own parts of that one are alive. One step is done again, and no random state is lost.

    Args:
        reports: One report of each rank of the new group, in the order of ranks.

    Raises:
        StateError: two ranks have copies of one commit that differ in structure; or no commit is complete, there is no
            checkpoint to load, and some rank's objects are no longer as the script has made them.
    """
    # A worker that was started anew knows of no generation, and may have the commits of one before in its files.
    known = [copy.key.generation for report in reports for copy in report.copies]
    generation = 1 + max([*(report.generation for report in reports), *known])
    notes: list[str] = []
    newest: Plan | None = None
    for key in sorted({copy.key for report in reports for copy in report.copies}, reverse=True):
        if newest is not None and newest.key is not None and key.serial < newest.key.serial - 1:
            break
        plan = _plan_of(key, reports, generation)
        if isinstance(plan, str):
            notes.append(plan)
        elif not plan.lost:
            return _with_notes(plan, notes)
        elif newest is None:
            newest = _with_notes(plan, notes)
    if newest is not None:
        return newest
    if all(report.can_load for report in reports):
        return _with_notes(Plan(Source.CHECKPOINT, generation), notes)
    if all(report.pristine for report in reports):
        return _with_notes(_start(reports, generation), notes)
    raise StateError("; ".join(notes) or "no rank has a copy of the state, and training has changed it", hint=_AFRESH)


def start_of(reports: Sequence[Report], plan: Plan) -> Plan:
    """Return the plan after there was no checkpoint to load.

    Raises:
        StateError: some rank's objects are no longer as the script has made them.
    """
    if all(report.pristine for report in reports):
        return _start(reports, plan.generation)
    what = "; ".join(plan.notes) or "no rank has a copy of the state"
    raise StateError(f"{what}; there is no checkpoint, either", hint="a checkpoint before the first restart")


def _start(reports: Sequence[Report], generation: int) -> Plan:
    others = tuple(report.rank for report in reports if report.rank != 0)
    return Plan(Source.START, generation, sender=0, receivers=others)


def _with_notes(plan: Plan, notes: list[str]) -> Plan:
    return replace(plan, notes=tuple(notes))


def _plan_of(key: Key, reports: Sequence[Report], generation: int) -> Plan | str:
    """Return the plan for one commit, or why it can't be used."""
    held = [(report.rank, copy) for report in reports for copy in report.copies if copy.key == key]
    _check_alike(key, held)
    commons = sorted({rank for rank, copy in held if copy.has_common})
    if not commons:
        return f"step {key.step}: no rank has the part that is the same on all ranks"
    old_size = max(copy.world_size for _, copy in held)
    anew = False
    if any(copy.own_needed for _, copy in held):
        owners = {copy.owner for _, copy in held}
        missing = [rank for rank in range(old_size) if rank not in owners]
        fits = old_size == len(reports) and all(copy.fits for _, copy in held if copy.has_common)
        anew = bool(missing) or not fits
        refusal = _refusal([copy for _, copy in held], reports, missing) if anew else ""
        if refusal:
            return f"step {key.step}: {refusal}"
    moves = []
    lost = []
    for report in reports:
        holders = [rank for rank, copy in held if copy.owner == report.rank]
        if not holders:
            if report.rank < old_size:
                lost.append(report.rank)
        elif report.rank not in holders:
            moves.append(Move(min(holders), report.rank, report.rank))
    return Plan(
        Source.MEMORY,
        generation,
        key,
        sender=commons[0],
        receivers=tuple(report.rank for report in reports if report.rank not in commons),
        moves=tuple(moves),
        lost=tuple(lost),
        anew=anew,
    )


def _refusal(copies: Sequence[Copy], reports: Sequence[Report], missing: Sequence[int]) -> str:
    """Return why the shards of a commit can't be divided anew. Empty if they can."""
    counts = {copy.share_count for copy in copies}
    divisible = counts == {max(counts)} and 0 not in counts
    if missing and not (divisible and len({copy.share for copy in copies}) == max(counts)):
        return f"no rank has the shard of {_named(missing)}"
    old_size = copies[0].world_size
    what = f"its shards are those of {old_size} ranks, and now there are {len(reports)}"
    if old_size == len(reports):
        what = "its shards are divided in another way than now"
    if not divisible:
        return f"{what}; only sharded tensors over all ranks can be divided anew"
    obstacles = [copy.obstacle for copy in copies if copy.obstacle]
    if obstacles:
        return f"{what}; {obstacles[0]}"
    if any(report.layout != reports[0].layout for report in reports):
        return f"{what}; ranks differ in how they divide the state now"
    return ""


def _check_alike(key: Key, held: Iterable[tuple[int, Copy]]) -> None:
    """Check that all copies of a commit are of one structure, and with shards of one group."""
    first: tuple[int, Copy] | None = None
    for rank, copy in held:
        if not copy.has_common:
            continue
        if first is None:
            first = rank, copy
        elif copy.digest != first[1].digest or (copy.own_needed and copy.world_size != first[1].world_size):
            raise StateError(
                f"rank {rank} has another structure of the state of step {key.step} than rank {first[0]}",
                hint="the same State(…) on all ranks, with the same objects, committed at the same step",
            )


def _named(ranks: Sequence[int]) -> str:
    return f"rank {ranks[0]}" if len(ranks) == 1 else "ranks " + ", ".join(map(str, ranks))


def partners_of(nodes: Sequence[int]) -> tuple[int, ...]:
    """Return for each rank the rank that keeps a copy of its own part: a permutation.

    The partner is on another node, if no node has more than half of all ranks; else as many as possible are. With one
    node it is a neighbour. A rank that is alone is its own partner.

    Args:
        nodes: The number of each rank's node.
    """
    order = sorted(range(len(nodes)), key=lambda rank: (nodes[rank], rank))
    largest = max(nodes.count(node) for node in set(nodes))
    shift = largest if largest < len(nodes) else 1
    partners = [0] * len(nodes)
    for place, rank in enumerate(order):
        partners[rank] = order[(place + shift) % len(nodes)]
    return tuple(partners)
