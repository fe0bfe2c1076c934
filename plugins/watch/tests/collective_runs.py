"""A small simulator of ranks that enter collectives, for property tests: programs, faults, and their evidence."""

from dataclasses import dataclass, field

from elastic_watch.collectives.evidence import GroupState, NodeEvidence, Operation, RankEvidence, Status

NEEDS_ALL = ("all_reduce", "all_gather", "barrier")


@dataclass
class Op:
    """One operation of the script. `kind`: a collective's name, `p2p`, or `wait` for an earlier one."""

    kind: str
    members: tuple[int, ...]  # of a point-to-point operation: source and destination
    group: str = ""
    root: int = 0
    later: bool = False  # asynchronous
    target: int = -1  # of `wait`: the index of the operation
    size: int = 4


@dataclass
class Rank:
    """One rank: its place in its program, and what it has entered."""

    number: int
    program: list[tuple[int, Op]]
    fault_at: int | None = None
    at: int = 0
    entered: dict[int, int] = field(default_factory=dict)  # operation -> its number in its group
    counts: dict[str, int] = field(default_factory=dict)
    sizes: dict[int, int] = field(default_factory=dict)

    @property
    def stopped(self):
        return self.fault_at is not None and self.at >= self.fault_at

    @property
    def finished(self):
        return self.at >= len(self.program)


class Run:
    """Ranks that run programs until no rank can continue, or for a number of turns."""

    def __init__(self, world, script, faults, orders=None):
        self.world, self.script = world, script
        self.ranks = []
        self.by_number = {}  # (group, number) -> rank -> operation
        for number in range(world):
            program = [(index, op) for index, op in enumerate(script) if number in op.members]
            swap = (orders or {}).get(number)
            if swap is not None and swap + 1 < len(program):
                program[swap], program[swap + 1] = program[swap + 1], program[swap]
            self.ranks.append(Rank(number, program, faults.get(number)))

    def run(self, choices):
        """Let ranks go on in the order of `choices`, each to its next operation; then all until none can."""
        for choice in choices:
            self.step(self.ranks[choice % self.world])

    def settle(self):
        while any(self.step(rank) for rank in self.ranks):
            pass

    def step(self, rank):
        """Enter the rank's operation, or leave it if it is complete. Return whether the rank went on."""
        if rank.stopped or rank.finished:
            return False
        index, op = rank.program[rank.at]
        if op.kind == "wait":
            if not self.complete(rank, op.target):
                return False
        elif index not in rank.entered:
            number = 0
            if op.kind != "p2p":
                number = rank.counts[op.group] = rank.counts.get(op.group, 0) + 1
                self.by_number.setdefault((op.group, number), {})[rank.number] = index
            rank.entered[index] = number
            if op.later:
                rank.at += 1
            return True
        elif not self.complete(rank, index):
            return False
        rank.at += 1
        return True

    def can_go_on(self, rank):
        if rank.stopped or rank.finished:
            return False
        index, op = rank.program[rank.at]
        if op.kind == "wait":
            return self.complete(rank, op.target)
        return index not in rank.entered or self.complete(rank, index)

    def complete(self, rank, index):
        """Return whether an operation that the rank has entered has completed on it."""
        op = self.script[index]
        if index not in rank.entered:
            return op.kind == "wait"
        if op.kind == "p2p":
            return rank.number == op.members[0] or index in self.ranks[op.members[0]].entered
        entered = self.by_number[op.group, rank.entered[index]]  # others may have entered another operation
        if any(self.script[each].kind != op.kind for each in entered.values()):
            return False
        if op.kind in NEEDS_ALL:
            return len(entered) == len(op.members)
        if op.kind == "broadcast":
            return rank.number == op.root or op.root in entered
        return rank.number != op.root or len(entered) == len(op.members)  # reduce

    def evidence(self, *, hidden_waits=False, ends=False, silent=(), nodes=2, backward=()):
        """Return what the nodes see."""
        ranks = [
            self.rank_evidence(rank, hidden_waits=hidden_waits, ends=ends, silent=silent, backward=backward)
            for rank in self.ranks
        ]
        return [
            NodeEvidence(node_id=f"node-{node}", ranks=tuple(ranks[node::nodes]), world_size=self.world)
            for node in range(nodes)
        ]

    def rank_evidence(self, rank, *, hidden_waits, ends, silent, backward):
        if rank.number in silent and rank.stopped:
            return RankEvidence(global_rank=rank.number, status=Status.SILENT)
        if ends and rank.finished:
            return RankEvidence(global_rank=rank.number, status=Status.ENDED)
        call = ""
        if not rank.stopped and not rank.finished:
            index, op = rank.program[rank.at]
            if op.kind == "wait":
                call = "unknown" if hidden_waits else "wait"
            elif index in rank.entered:
                call = ("send", "recv")[rank.number == op.members[1]] if op.kind == "p2p" else op.kind
                if rank.number in backward and op.kind in NEEDS_ALL:
                    call = "backward"
        return RankEvidence(
            global_rank=rank.number,
            status=Status.ANSWERED,
            recorder=True,
            stable=not self.can_go_on(rank),
            groups=tuple(self.group_states(rank)),
            stack=True,
            call=call,
            place="train.py:1",
        )

    def group_states(self, rank):
        groups = {op.group: op.members for op in self.script if op.group and rank.number in op.members}
        for name, members in groups.items():
            mine = {number: index for index, number in rank.entered.items() if self.script[index].group == name}
            done = [number for number, index in mine.items() if self.complete(rank, index)]
            yield GroupState(
                group=name,
                backend="gloo",
                members=members,
                enqueued=max(mine, default=0),
                completed=max(done, default=0),
                last=tuple(
                    Operation(
                        seq=number,
                        name=self.script[index].kind,
                        signature=f"Float[{rank.sizes.get(index, self.script[index].size)}]",
                    )
                    for number, index in sorted(mine.items())[-8:]
                ),
            )
