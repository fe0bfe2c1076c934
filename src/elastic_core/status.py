"""The status of an agent: what it is doing, as `status.json` and the run's handle have it."""

from collections.abc import Mapping
from typing import Final

from elastic_core.types import Record

SCHEMA_VERSION: Final = 1


class AgentIdentity(Record, frozen=True, kw_only=True):
    """Which process it is, so that another one with its number is not taken for it.

    `start_ticks` count from the boot of the host, `boot_id` says which boot, `pid_namespace` which world of numbers.
    """

    pid: int
    start_ticks: int = 0
    boot_id: str = ""
    pid_namespace: str = ""
    host: str = ""
    started_ns: int = 0


class WorkerStatus(Record, frozen=True, kw_only=True):
    """One worker of this node. `state`: `alive`, `done` (it ended well by itself), or `ended`."""

    local_rank: int
    """Its number on this node."""
    global_rank: int
    """Its number in the round."""
    pid: int
    """Its process."""
    state: str
    """`alive`, `done` (it ended well by itself) or `ended`."""


class RoundStatus(Record, frozen=True, kw_only=True):
    """This node's place in the round that it is or was last in."""

    index: int
    token: int = 0
    node_rank: int = 0
    node_count: int = 1
    base_rank: int = 0
    local_world_size: int = 1
    world_size: int = 1
    role: str = "default"
    master_addr: str = ""
    master_port: int = 0


class PastRound(Record, frozen=True, kw_only=True):
    """One of the rounds that this node was in.

    `ended_ns` 0: it is not over, or this agent did not see its end. `ended_by`: `membership` (nodes came or went),
    `failure`, or `restart` (it was asked for).
    """

    index: int
    token: int = 0
    node_count: int = 1
    world_size: int = 1
    began_ns: int = 0
    ended_ns: int = 0
    ended_by: str = ""
    reason: str = ""


class AbsenceStatus(Record, frozen=True, kw_only=True):
    """Why this node is left out of rounds."""

    by: str
    """A hook of this node with its distribution, or the run's policy."""
    reason: str
    """Why."""
    refused: bool
    """The hook refuses; else the policy has left the node out."""
    since_ns: int
    """Since when."""
    until_ns: int = 0
    """When the hook is asked again, or the policy's time is over; 0: with the policy's next decision."""


class EndStatus(Record, frozen=True, kw_only=True):
    """How the agent ended. `outcome`: `succeeded`, `failed` or `stopped`."""

    outcome: str
    exit_code: int
    reason: str


class AgentStatus(Record, frozen=True, kw_only=True):
    """What an agent is doing. Times `_ns` are nanoseconds since the Unix epoch, by this node's clock.

    `state` is a word of the agent's state machine in lower case; `since_ns` when it came into it; `reason` why. What
    has a limit has it in `max_…`, None where there is none. `trouble`: what keeps the rendezvous, empty if nothing.
    """

    schema_version: int = SCHEMA_VERSION
    """The version of this document."""
    run_id: str
    """The run's id."""
    node_id: str
    """This node's id."""
    script: str = ""
    """The script, module or program as typed."""
    agent: AgentIdentity
    """Which process it is."""
    backend: str
    """The rendezvous backend."""
    where: str = ""
    """The store as people know it, without secrets; empty where there is none."""
    state: str
    """A word of the agent's state machine, in lower case."""
    since_ns: int = 0
    """When it came into that state, nanoseconds since the Unix epoch."""
    reason: str = ""
    """Why, for people."""
    round: RoundStatus | None = None
    """This node's place in its last round; None: there was none yet."""
    rounds: tuple[PastRound, ...] = ()
    """Its last 16 rounds, oldest first."""
    workers: tuple[WorkerStatus, ...] = ()
    """Its workers, by local rank; empty: none were started."""
    restart_count: int = 0
    """Restarts after failures, of the whole run."""
    max_restarts: int | None = None
    """How many there may be; None: any number."""
    membership_changes: int = 0
    """Rounds that ended because nodes came or went."""
    max_membership_changes: int | None = None
    """How many may; None: any number."""
    absence: AbsenceStatus | None = None
    """Why this node is left out of rounds; None: it is not."""
    control: str = ""
    """The path of the agent's socket; empty: it listens to nobody."""
    last_incident: str = ""
    """The path of its file; empty: there was none."""
    trouble: str = ""
    """What keeps the rendezvous; empty: nothing."""
    trouble_since_ns: int = 0
    """Since when; 0: nothing does."""
    hooks: Mapping[str, Mapping[str, object]] = {}
    """What hooks say of themselves, by their names."""
    end: EndStatus | None = None
    """How the agent ended; None: it runs."""
    written_ns: int = 0
    """When this was written, nanoseconds since the Unix epoch."""
