"""The cause of a hang in collectives, from the evidence of all nodes. Pure.

In each group, the lowest last number that a member has entered counts. A member beyond it waits there if its main
thread is in a collective, and its last operation has not completed. A member at it is missing. A culprit is missing in
a group in which others wait, and can wait nowhere itself: its main thread is in its own code, and all that it has
entered has completed. Ranks on which the evidence is incomplete are never culprits.
"""

from collections.abc import Collection, Iterable, Sequence
from typing import Final

from elastic_core.api.tools import rank_ranges
from elastic_watch.collectives import calls
from elastic_watch.collectives.evidence import (
    Attribution,
    Cause,
    GroupState,
    NodeEvidence,
    Operation,
    RankEvidence,
    Status,
)
from elastic_watch.collectives.mismatches import mismatch_of

MOST_NAMED: Final = 16
MOST_DETAILS: Final = 8


def attribute(nodes: Sequence[NodeEvidence]) -> Attribution:
    """Return the cause of the hang, as far as the evidence of all nodes shows it."""
    run = _Run(nodes)
    for rule in (_missing, _mismatch, _different_order, _all_entered, _ended, _no_response, _only_one):
        found = rule(run)
        if found is not None:
            return found
    return _unknown(run)


class _Group:
    """A group whose operations some members have entered."""

    def __init__(self, members: tuple[int, ...]) -> None:
        self.members = members
        self.states: dict[int, GroupState] = {}
        self.low = 0
        self.waiting: tuple[int, ...] = ()
        """Ranks in an operation that has not completed."""
        self.beyond: tuple[int, ...] = ()
        """Those of them that have entered more than the lowest member."""
        self.missing: tuple[int, ...] = ()
        """Members at the lowest number, if ranks beyond it wait."""
        self.behind: tuple[int, ...] = ()
        """Members that have entered less than a rank that waits: `missing`, and those that have returned early."""

    def settle(self, waits: "_Run") -> None:
        """Find the lowest number, and the members that wait or are missing."""
        self.low = min(state.enqueued for state in self.states.values())
        self.waiting = tuple(
            sorted(rank for rank, state in self.states.items() if waits.waits_in(waits.ranks[rank], state))
        )
        self.beyond = tuple(rank for rank in self.waiting if self.states[rank].enqueued > self.low)
        if self.beyond:
            top = max(self.states[rank].enqueued for rank in self.beyond)
            self.behind = tuple(sorted(rank for rank, state in self.states.items() if state.enqueued < top))
            self.missing = tuple(rank for rank in self.behind if self.states[rank].enqueued == self.low)

    @property
    def order(self) -> tuple[tuple[int, ...], str]:
        """Return a key to sort by, whatever the order of nodes."""
        return self.members, next(iter(self.states.values())).group

    @property
    def name(self) -> str:
        """Return the group's name for people."""
        state = next(iter(self.states.values()))
        return state.description or state.group

    def operation(self, seq: int) -> Operation:
        """Return the operation of that number, as the most members entered it. Its name is empty if not known."""
        found: dict[Operation, int] = {}
        for state in self.states.values():
            for each in state.last:
                if each.seq == seq:
                    found[each] = found.get(each, 0) + 1
        return max(found, key=lambda each: found[each], default=Operation(seq=seq, name=""))


class _Run:
    """The evidence of all nodes, by rank and by group."""

    def __init__(self, nodes: Sequence[NodeEvidence]) -> None:
        self.ranks: dict[int, RankEvidence] = {}
        self.node_of: dict[int, str] = {}
        self.twice: set[int] = set()
        for node in nodes:
            for rank in node.ranks:
                if rank.global_rank in self.ranks:
                    self.twice.add(rank.global_rank)
                self.ranks[rank.global_rank] = rank
                self.node_of[rank.global_rank] = node.node_id
        for each in self.twice:  # the answer of an earlier round, or of a copy of the run: either may be the wrong one
            del self.ranks[each], self.node_of[each]
        self.groups = self._groups()
        world_size = max((node.world_size for node in nodes), default=0)
        self.world = set(range(world_size)) | self.ranks.keys() | self.twice
        for group in self.groups:
            self.world.update(group.members)
        self.world_known = world_size > 0 or bool(self.groups)
        self.open = {rank for rank in self.ranks if self._open(self.ranks[rank])}

    def _groups(self) -> list[_Group]:
        found: dict[tuple[str, tuple[int, ...]], _Group] = {}
        by_object: dict[tuple[str, int], _Group] = {}  # a tuple of a thousand members is hashed once
        nameless: list[tuple[int, GroupState]] = []
        for number, rank in self.ranks.items():
            if rank.status != Status.ANSWERED or not rank.recorder:
                continue
            for state in rank.groups:
                if not state.members:
                    nameless.append((number, state))
                    continue
                group = by_object.get((state.group, id(state.members)))
                if group is None:
                    group = found.setdefault((state.group, state.members), _Group(state.members))
                    by_object[state.group, id(state.members)] = group
                group.states[number] = state
        for group in found.values():
            strange = group.states.keys() - set(group.members)
            for number in strange:  # of an earlier round
                del group.states[number]
        by_name: dict[str, list[_Group]] = {}
        for (name, _), group in found.items():
            by_name.setdefault(name, []).append(group)
        for number, state in nameless:
            fits = [group for group in by_name.get(state.group, ()) if number in group.members]
            if len(fits) == 1:
                fits[0].states.setdefault(number, state)
        groups = sorted((group for group in found.values() if group.states), key=lambda each: each.order)
        for group in groups:
            group.settle(self)
        return groups

    def waits_in(self, rank: RankEvidence, state: GroupState) -> bool:
        """Return whether a rank waits in its last operation of this group."""
        if not rank.stable or state.completed >= state.enqueued:
            return False
        if state.started is not None or state.backend == "nccl":
            return True  # the device waits, whatever the main thread does
        return rank.stack and (calls.in_collective(rank.call) or calls.in_backward(rank.call))

    @staticmethod
    def _open(rank: RankEvidence) -> bool:
        """Return whether a rank may wait somewhere, or makes progress. Others are stuck in their own code."""
        return (
            rank.status != Status.ANSWERED
            or not rank.stable
            or not rank.recorder
            or not rank.stack
            or calls.may_wait(rank.call)
            or rank.groups_dropped > 0
            or any(state.completed < state.enqueued or state.unfinished_p2p for state in rank.groups)
        )

    def with_status(self, status: Status) -> list[int]:
        """Return the ranks of that status."""
        return sorted(number for number, rank in self.ranks.items() if rank.status == status)

    @property
    def absent(self) -> list[int]:
        """Return the ranks on which there is no evidence."""
        return sorted(self.world - self.ranks.keys())

    def in_calls(self, but: Collection[int]) -> bool:
        """Return whether all ranks of the run, other than `but`, are certainly in torch.distributed."""
        return self.world_known and all(
            number in self.ranks
            and self.ranks[number].stable
            and self.ranks[number].status == Status.ANSWERED
            and self.ranks[number].stack
            and (calls.certain(self.ranks[number].call) or self.waits_somewhere(number))
            for number in self.world
            if number not in but
        )

    def waits_somewhere(self, number: int) -> bool:
        """Return whether a rank waits in a recorded operation."""
        rank = self.ranks[number]
        return any(self.waits_in(rank, state) for state in rank.groups)


def _missing(run: _Run) -> Attribution | None:
    """Return the ranks which others wait for, and which wait nowhere."""
    by_group = [(group, [rank for rank in group.behind if rank not in run.open]) for group in run.groups]
    found = [(group, ranks) for group, ranks in by_group if ranks]
    if not found:
        return None
    culprits = sorted({rank for _, ranks in found for rank in ranks})
    waiting = _waiting_for(run, culprits)
    if len(culprits) > len(waiting):  # the few that wait may be the ones at a wrong place
        return None
    group, missing = max(found, key=lambda each: (len(each[1]), len(each[0].beyond)))
    others = [(other, [rank for rank in ranks if rank not in missing]) for other, ranks in found]
    lines = [*_places(run, culprits), *(_missing_line(other, ranks) for other, ranks in others if ranks)]
    return _of(
        run,
        Cause.MISSING,
        group=group,
        seq=max(group.states[rank].enqueued for rank in missing) + 1,
        culprits=[*missing, *(rank for rank in culprits if rank not in missing)],
        elsewhere=len(culprits) - len(missing),
        waiting=waiting,
        details=lines,
    )


def _mismatch(run: _Run) -> Attribution | None:
    """Return the ranks that have entered another operation than most others."""
    for group in run.groups:
        if not group.waiting:
            continue
        first = max(0, min(group.states[rank].completed for rank in group.waiting)) + 1
        found = mismatch_of(group.states, group.members, first=first)
        if found is not None:
            return _of(
                run,
                Cause.MISMATCH,
                group=group,
                seq=found.seq,
                culprits=found.odd,
                waiting=[rank for rank in group.waiting if rank not in found.odd],
                details=found.lines,
            )
    return None


def _different_order(run: _Run) -> Attribution | None:
    """Return a cycle: ranks wait in a group for ranks that wait in another one for them."""
    cycle = _cycle(run)
    if not cycle:
        return None
    lines = [
        f"{_ranks(each.beyond).capitalize()} {_verb(each.beyond, 'wait')} in {_what(each, each.low + 1)} "
        f"for {_ranks(each.missing)}."
        for each in cycle
    ]
    waiting = sorted({rank for group in cycle for rank in group.beyond})
    return _of(run, Cause.DIFFERENT_ORDER, group=cycle[0], seq=cycle[0].low + 1, waiting=waiting, details=lines)


def _all_entered(run: _Run) -> Attribution | None:
    """Return an operation that all members have entered, and which does not complete."""
    if any(group.missing for group in run.groups):
        return None
    for group in run.groups:
        if len(group.states) < len(group.members) or not all(run.ranks[rank].stable for rank in group.members):
            continue
        stuck = [rank for rank in group.waiting if group.states[rank].completed < group.low]
        if stuck:
            return _of(run, Cause.ALL_ENTERED, group=group, seq=group.low, waiting=stuck)
    return None


def _ended(run: _Run) -> Attribution | None:
    """Return the only member that has ended, of a group in which all others have entered an operation and wait."""
    ended = run.with_status(Status.ENDED)
    if not ended:
        return None
    return _without(run, ended, Cause.ENDED, alone=True) or _ended_before_creation(run, ended)


def _ended_before_creation(run: _Run, ended: Sequence[int]) -> Attribution | None:
    """Return the only rank that has ended, if all other ranks of the run wait in the creation of a group."""
    others = sorted(run.world - set(ended))
    entered = {run.ranks[rank].call for rank in others if rank in run.ranks}
    if len(ended) > 1 or len(entered) != 1 or not calls.creates_group(*entered) or not run.in_calls(but=ended):
        return None
    lines = [f"{_ranks(others).capitalize()} {_verb(others, 'be')} in {', '.join(entered)}."]
    return _of(run, Cause.ENDED, culprits=ended, waiting=others, details=lines)


def _no_response(run: _Run) -> Attribution | None:
    """Return the rank, or all ranks of one node, without a response, if all other ranks of the run wait."""
    silent = [rank for rank in run.with_status(Status.SILENT) if not calls.may_wait(run.ranks[rank].call)]
    nodes = {run.node_of[rank] for rank in silent}
    whole = len(nodes) == 1 and set(silent) == {rank for rank, node in run.node_of.items() if node in nodes}
    if not silent or not (len(silent) == 1 or whole) or not run.in_calls(but=silent):
        return None
    return _without(run, silent, Cause.NO_RESPONSE, alone=False)


def _without(run: _Run, suspects: Sequence[int], cause: Cause, *, alone: bool) -> Attribution | None:
    """Return suspects without a known state, for which all other members of a group wait."""
    if any(group.missing for group in run.groups):
        return None
    for group in run.groups:
        named = [rank for rank in suspects if rank in group.members]
        if not named or not group.waiting or len(group.states) + len(named) < len(group.members):
            continue
        seq = min(group.states[rank].completed for rank in group.waiting) + 1
        if group.low >= seq and not (alone and len(named) > 1):
            return _of(run, cause, group=group, seq=seq, culprits=named, waiting=group.waiting)
    return None


def _only_one(run: _Run) -> Attribution | None:
    """Return the only rank in its own code, if all others are in calls that the recorder does not record."""
    alone = [rank for rank in run.ranks if rank not in run.open]
    if len(alone) != 1 or len(run.world) < 2 or not run.in_calls(but=alone):
        return None
    others = sorted(run.world - set(alone))
    if len(others) > 1 and any(
        calls.waits_for_one(run.ranks[rank].call) and not run.waits_somewhere(rank) for rank in others
    ):  # they may wait for each other
        return None
    names = sorted({run.ranks[rank].call for rank in others if calls.certain(run.ranks[rank].call)})
    lines = [*_places(run, alone), f"{_ranks(others).capitalize()} {_verb(others, 'be')} in {', '.join(names)}."]
    return _of(run, Cause.MISSING, culprits=alone, waiting=others, details=lines)


def _unknown(run: _Run) -> Attribution:
    """Return what is known without a cause."""
    lines: list[str] = []
    group = max(run.groups, key=lambda each: len(each.beyond), default=None)
    if group is None or not group.beyond:
        group = max(run.groups, key=lambda each: len(each.waiting), default=None)
    waiting: Sequence[int] = ()
    seq = 0
    if group is not None and group.waiting:
        waiting, seq = group.beyond or group.waiting, group.low + bool(group.beyond)
        if group.missing:
            lines.append(_missing_line(group, group.missing))
            lines += [line for rank in group.missing[:2] if (line := _why_not(run, rank))]
    else:
        group = None
    silent, absent = run.with_status(Status.SILENT), run.absent
    cause = Cause.NO_RESPONSE if (silent or absent) and waiting else Cause.UNKNOWN
    return _of(run, cause, group=group, seq=seq, waiting=waiting, details=lines)


# --- parts


def _of(
    run: _Run,
    cause: Cause,
    *,
    group: _Group | None = None,
    seq: int = 0,
    culprits: Sequence[int] = (),
    elsewhere: int = 0,
    waiting: Sequence[int] = (),
    details: Iterable[str] = (),
) -> Attribution:
    named = tuple(culprits[:MOST_NAMED])
    lines = [*details, *_general(run, named if cause in {Cause.ENDED, Cause.NO_RESPONSE} else ())]
    if len(culprits) > MOST_NAMED:
        lines.insert(0, f"These are the first {MOST_NAMED} of {len(culprits)} ranks.")
    return Attribution(
        cause=cause,
        culprits=named,
        nodes=tuple(run.node_of.get(rank, "") for rank in named),
        elsewhere=max(0, elsewhere - (len(culprits) - len(named))),
        group=group.name if group else "",
        operation=group.operation(seq) if group and seq else None,
        waiting=tuple(sorted(waiting)[:MOST_NAMED]),
        waiting_count=len(waiting),
        details=tuple(lines[:MOST_DETAILS]),
        evidence=_kinds(run),
    )


def _kinds(run: _Run) -> tuple[str, ...]:
    ranks = run.ranks.values()
    kinds = {
        "recorder": any(rank.recorder for rank in ranks),
        "stacks": any(rank.stack for rank in ranks),
        "steps": any(rank.step is not None for rank in ranks),
    }
    return tuple(kind for kind, known in kinds.items() if known)


def _waiting_for(run: _Run, culprits: Iterable[int]) -> list[int]:
    """Return the ranks that wait for the culprits, directly or through other ranks."""
    reached, found = set(culprits), set[int]()
    groups = [group for group in run.groups if group.beyond]
    while True:
        next_groups = [group for group in groups if not reached.isdisjoint(group.behind)]
        if not next_groups:
            return sorted(found - set(culprits))
        groups = [group for group in groups if reached.isdisjoint(group.behind)]
        new = {rank for group in next_groups for rank in group.beyond}
        found |= new
        reached |= new


def _cycle(run: _Run) -> list[_Group]:
    """Return groups of which each has a missing member that waits in the next one, and the last in the first."""
    groups = [group for group in run.groups if group.missing]
    waits: dict[int, list[_Group]] = {}
    for group in groups:
        for rank in group.beyond:
            waits.setdefault(rank, []).append(group)
    done: set[int] = set()
    for start in groups:
        path: list[_Group] = []
        stack = [(start, 0)]
        while stack:
            group, depth = stack.pop()
            if any(group is each for each in path[:depth]):
                first = next(index for index, each in enumerate(path) if each is group)
                return path[first:depth]
            if id(group) in done and group is not start:
                continue
            done.add(id(group))
            path = [*path[:depth], group]
            after = {id(each): each for rank in group.missing for each in waits.get(rank, ())}
            stack += [(each, depth + 1) for each in after.values()]
    return []


def _general(run: _Run, named: Collection[int]) -> list[str]:
    """Return sentences on ranks of which little is known."""
    ranks = run.ranks.values()
    answered = [rank for rank in ranks if rank.status == Status.ANSWERED]
    found = [
        (run.with_status(Status.ENDED), "have ended", "has ended"),
        (run.with_status(Status.SILENT), "did not respond", "did not respond"),
        (run.absent, "are not in the evidence: no response of their nodes", "is not in the evidence: no response"),
        (sorted(rank.global_rank for rank in answered if not rank.stable), "make progress", "makes progress"),
        (sorted(rank.global_rank for rank in answered if not rank.stack), "have no stack", "has no stack"),
        (sorted(rank.global_rank for rank in answered if not rank.recorder), "have no recorder", "has no recorder"),
    ]
    return [
        f"{_ranks(numbers).capitalize()} {plural if len(numbers) > 1 else single}."
        for numbers, plural, single in found
        if numbers and not set(numbers) <= set(named)
    ]


def _places(run: _Run, culprits: Sequence[int]) -> list[str]:
    by_place: dict[str, list[int]] = {}
    for rank in culprits:
        by_place.setdefault(run.ranks[rank].place, []).append(rank)
    return [
        f"{_ranks(ranks).capitalize()} {_verb(ranks, 'be')} in {place}." for place, ranks in by_place.items() if place
    ]


def _why_not(run: _Run, number: int) -> str:
    """Return why a missing rank is not named."""
    rank = run.ranks[number]
    if calls.certain(rank.call):
        return f"Rank {number} is in {rank.call}: it waits for other ranks."
    if calls.may_wait(rank.call) or any(state.completed < state.enqueued for state in rank.groups):
        return f"Rank {number} may wait for other ranks, too."
    return ""


def _missing_line(group: _Group, missing: Sequence[int]) -> str:
    seq = max(group.states[rank].enqueued for rank in missing) + 1
    return f"{_ranks(missing).capitalize()} {_verb(missing, 'have')} not entered {_what(group, seq)}."


def _what(group: _Group, seq: int) -> str:
    operation = group.operation(seq)
    return f"{operation.name or 'operation'} #{operation.seq} of group {group.name}"


_FORMS: Final = {"be": ("is", "are"), "have": ("has", "have"), "wait": ("waits", "wait")}


def _verb(ranks: Sequence[int], verb: str) -> str:
    return _FORMS[verb][len(ranks) != 1]


def _ranks(ranks: Sequence[int]) -> str:
    return f"rank{'s' if len(ranks) != 1 else ''} {rank_ranges(sorted(ranks))}"
