"""The records of a hang in collectives: what a worker, a node and the run know, and what follows. Data only."""

import enum

from elastic_core.api import Record


class Operation(Record, frozen=True, kw_only=True, omit_defaults=True):
    """One collective that a rank has entered."""

    seq: int
    """Its number in its group, from 1: all members must enter the same operation under the same number."""
    name: str
    """Its name without the backend, such as `all_reduce`."""
    signature: str = ""
    """Types and sizes of its tensors, such as `Float[10] -> Float[10]`; empty if not known."""


class GroupState(Record, frozen=True, kw_only=True, omit_defaults=True):
    """The state of one rank in one process group."""

    group: str
    """Torch's name of the group. Together with the members it is unique among a round's groups."""
    description: str = ""
    """The script's name for the group (`group_desc`), such as `dp`; empty if torch has none."""
    backend: str = ""
    """Such as `gloo` or `nccl`; empty if not known."""
    members: tuple[int, ...] = ()
    """The global ranks of all members, sorted. Empty if not known."""
    enqueued: int = 0
    """The number of the last operation that the rank has entered; 0 means none."""
    completed: int = 0
    """The number of the last operation that has completed on this rank; 0 means none."""
    last: tuple[Operation, ...] = ()
    """The last operations that the rank has entered, oldest first, at most 8."""
    started: bool | None = None
    """Whether its last operation runs on the device. `None` means not known: gloo does not record it."""
    unfinished_p2p: int = 0
    """The number of its point-to-point operations that have not completed; 0 if the backend records none."""


class Arrival(Record, frozen=True, kw_only=True):
    """The time at which a rank entered one collective."""

    group: str
    """As in `GroupState`."""
    seq: int
    entered_ns: int
    """In nanoseconds of this node's CLOCK_MONOTONIC. A change of the wall clock since then makes it wrong."""


class Snapshot(Record, frozen=True, kw_only=True, omit_defaults=True):
    """The state of a worker's process groups, which its interpreter wrote on request."""

    taken_ns: int
    """The time of the snapshot, in nanoseconds of CLOCK_MONOTONIC."""
    torch: str = ""
    """The version of torch; empty if the process has not imported it."""
    recorder: bool = False
    """Whether torch's flight recorder is on. If not, only members are known."""
    groups: tuple[GroupState, ...] = ()
    """Its groups with more than one member, in the order in which the script made them, at most 64."""
    groups_dropped: int = 0
    """The number of further groups, and of those whose operations the recorder has overwritten or never has."""
    error: str = ""
    """Why the recorder could not be read; empty if it could."""
    arrivals: tuple[Arrival, ...] = ()
    """The last collectives of all groups, oldest first, at most 256. Empty if they were not requested."""


class Status(enum.StrEnum):
    """How a rank responded to the request for its state."""

    ANSWERED = "answered"
    SILENT = "silent"
    """Its process lives and did not respond: its main thread holds the interpreter, or it is stopped."""
    ENDED = "ended"
    """Its process has ended."""


class RankEvidence(Record, frozen=True, kw_only=True, omit_defaults=True):
    """All that is known of one rank that may hang."""

    global_rank: int
    status: Status
    recorder: bool = False
    """Whether `groups` come from torch's flight recorder."""
    stable: bool = True
    """Whether two snapshots, a second apart, agree. If not, the rank makes progress."""
    groups: tuple[GroupState, ...] = ()
    groups_dropped: int = 0
    """The number of further groups, of which nothing is known."""
    groups_finished: int = 0
    """The number of further groups, left out for size, in which all that the rank has entered has completed."""
    stack: bool = False
    """Whether its stack is known."""
    call: str = ""
    """The call of torch.distributed in which its main thread is: `all_reduce`, `recv`, `barrier`, `new_group`,
    `store.get`, `wait`; or `backward` in autograd's engine, or `unknown` (`calls.call_of`). Empty if it is in none, or
    if its stack is not known."""
    place: str = ""
    """The innermost line of the user's own code, such as `train.py:12`."""
    step: int | None = None
    """Its last step. `None` if it reports none."""


class NodeEvidence(Record, frozen=True, kw_only=True, omit_defaults=True):
    """All that one node knows of its ranks."""

    node_id: str
    ranks: tuple[RankEvidence, ...] = ()
    world_size: int = 0
    """The number of ranks in the round; 0 means not known."""


class Cause(enum.StrEnum):
    """The kind of cause of a hang in collectives."""

    MISSING = "missing"
    """One rank or several have not entered an operation in which others wait, and wait nowhere themselves."""
    MISMATCH = "mismatch"
    """Ranks have entered different operations, sizes or types under the same number."""
    DIFFERENT_ORDER = "different order"
    """Ranks wait for each other in different groups, as they entered operations in different orders. No culprit."""
    ALL_ENTERED = "all entered"
    """All ranks have entered the operation: the network or a device is suspected. No culprit."""
    ENDED = "ended"
    """A rank for which others wait has ended."""
    NO_RESPONSE = "no response"
    """A rank for which others may wait did not respond."""
    UNKNOWN = "unknown"
    """The evidence does not name a cause."""


class Attribution(Record, frozen=True, kw_only=True, omit_defaults=True):
    """The cause of a hang, as far as the evidence shows it."""

    cause: Cause
    culprits: tuple[int, ...] = ()
    """The global ranks that cause the hang, at most 16. Empty if none is known."""
    nodes: tuple[str, ...] = ()
    """The nodes of `culprits`, in their order."""
    elsewhere: int = 0
    """The number of `culprits`, the last ones, that are missing in other groups than `group`."""
    group: str = ""
    """The group in which others wait, as people know it: its description, else its name."""
    operation: Operation | None = None
    """The operation in which others wait. `None` if not known."""
    waiting: tuple[int, ...] = ()
    """The first 16 global ranks that wait."""
    waiting_count: int = 0
    """The number of ranks that wait."""
    details: tuple[str, ...] = ()
    """Further facts for people, one sentence each, at most 8: mismatched sizes, a cycle, silent ranks."""
    evidence: tuple[str, ...] = ()
    """The kinds of evidence that were available: `recorder`, `stacks`, `steps`, `heartbeats`, `ras`."""
