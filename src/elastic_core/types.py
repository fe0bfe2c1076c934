"""Values that every room shares: rounds, worker exits, failures, decisions, settings.

Records are `msgspec.Struct`: as frozen and typed as a frozen dataclass, forty times cheaper to define at start-up, and
they encode to JSON. Times: `_s` are float seconds of this host's monotonic clock unless said otherwise; `_ns` are
nanoseconds since the Unix epoch.
"""

import enum
from collections.abc import Mapping

import msgspec

from elastic_core.option_spec import OptionValues

API_VERSION = 1
"""The version of the plugin interfaces; each plugin class states the one that it was written for."""


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """Base of all frozen records."""


class Capability(enum.StrEnum):
    """What a rendezvous backend can do beyond forming rounds."""

    CONTROL = "control"
    """Publishes one decision for the whole run, and its end."""
    MEMBERSHIP = "membership"
    """Tells when a node arrives or is lost, without being polled."""


# --- rendezvous ---


class RosterMember(Record, frozen=True, kw_only=True):
    """One node of a round, as the others know it."""

    node_id: str
    """The node's id (`--node-id`)."""
    local_world_size: int
    """How many workers it has."""
    role: str = "default"
    """`--role` of that node."""
    address: str = ""
    """Where the others reach it; empty: the backend does not say."""


class RendezvousInfo(Record, frozen=True, kw_only=True):
    """What `next_rendezvous` returns: this node's place in a new round.

    Without `master_addr` and `master_port` the agent chooses them (one node), or the agents agree through `store`.
    """

    store: object = None
    """An object with torch's `set` and `get`, for agreeing on the meeting place; None: there is none."""
    rank: int
    """This node's rank, from 0."""
    world_size: int
    """How many nodes the round has."""
    round_token: int = 0
    """The round's fencing token: later rounds have higher ones."""
    nonce: str = ""
    """A random text of this round; empty: the backend has none."""
    members: tuple[RosterMember, ...] = ()
    """All nodes in rank order; empty: each has as many workers as this one."""
    master_addr: str | None = None
    """Where rank 0's worker listens; None: the agents agree."""
    master_port: int | None = None
    """Its port; None: the agents agree."""
    index: int | None = None
    """Which round of the run it is, from 0; None: the handler does not count, each agent counts its own."""
    restart_count: int | None = None
    """Restarts after failures of the whole run; None: as `index`."""
    membership_changes: int | None = None
    """Rounds of the run that ended because nodes came or went; None: as `index`."""
    history: "tuple[Failure, ...] | None" = None
    """The run's failures with their decisions, oldest first; None: as `index`."""
    at_s: float | None = None
    """The run's age in seconds, the same for all nodes; None: as `index`, from its own start."""


class Round(Record, frozen=True, kw_only=True):
    """One agreed membership, resolved to what this node's workers need."""

    index: int
    """Which round of the run it is, from 0: each restart and each change of membership begins another."""
    token: int
    """Its fencing token: later rounds have higher ones."""
    nonce: str
    """A random text of this round; empty: the backend has none."""
    node_rank: int
    """This node's rank, from 0."""
    node_count: int
    """How many nodes the round has."""
    local_world_size: int
    """How many workers this node has."""
    base_rank: int
    """The global rank of this node's first worker."""
    world_size: int
    """How many workers the round has on all nodes together."""
    role: str
    """`--role` of this node."""
    role_base_rank: int
    """The rank of this node's first worker among the workers of its role."""
    role_world_size: int
    """How many workers have this role."""
    master_addr: str
    """Where the worker with rank 0 listens."""
    master_port: int
    """Its port."""
    node_id: str = ""
    """This node's id, as the other nodes know it; empty: the rendezvous does not say."""
    restart_count: int | None = None
    """Restarts after failures, of the whole run; None: the rendezvous does not count for all nodes."""
    membership_changes: int | None = None
    """Rounds of the run that ended because nodes came or went; None: as `restart_count`."""
    history: "tuple[Failure, ...]" = ()
    """The run's failures with their decisions, oldest first, where the rendezvous counts for all nodes."""
    at_s: float | None = None
    """The run's age when the round had formed, the same for all nodes; None: each counts from its own start."""

    def global_rank(self, local_rank: int) -> int:
        """Return the rank of a worker of this node among all workers of the round."""
        return self.base_rank + local_rank


class NodesWaiting(Record, frozen=True, kw_only=True, tag="nodes_waiting"):
    """Nodes wait to join; a new round would take them in."""

    count: int
    """How many."""


class MemberLost(Record, frozen=True, kw_only=True, tag="member_lost"):
    """A node of the round is gone."""

    node_id: str
    """Which node."""


class RoundEnded(Record, frozen=True, kw_only=True, tag="round_ended"):
    """The round is over because nodes came or went: every node stops its workers and joins the next one."""

    reason: str
    """A line for people."""
    lost: tuple[str, ...] = ()
    """The nodes that went."""
    arrived: int = 0
    """How many nodes came."""
    stop_within_s: float | None = None
    """Seconds that workers have at most: those of a node that was cut off must end before its lease does. None: as the
    user set it."""
    planned: bool = False
    """Nobody was lost: all workers of the run are healthy."""


class Decided(Record, frozen=True, kw_only=True, tag="decided"):
    """It was decided for the whole run."""

    decision: "Restart | Stop"
    """What was decided."""
    failure: "Failure | None" = None
    """About which failure; None: nothing failed."""
    evidence: str = ""
    """What is known of it from all nodes, as the agent that decided wrote it down; empty: no more than `failure`."""


class StopOrdered(Record, frozen=True, kw_only=True, tag="stop_ordered"):
    """A node has failed: every node stops its workers, then tells what it has seen, and waits for what is decided."""

    reason: str
    """A line for people."""
    by: str = ""
    """The node."""


class Undecided(Record, frozen=True, kw_only=True, tag="undecided"):
    """Nobody can decide for the run, or can be told: this node must, alone."""

    reason: str
    """A line for people."""
    final: bool = False
    """There will be no further round: all that this node can decide is how the run ends."""


class RendezvousClosed(Record, frozen=True, kw_only=True, tag="closed"):
    """The run's rendezvous was closed: no further round."""


class Suspended(Record, frozen=True, kw_only=True, tag="suspended"):
    """The backend can't tell; workers go on for a bounded time."""

    reason: str
    """A line for people."""


class Resumed(Record, frozen=True, kw_only=True, tag="resumed"):
    """The backend can tell again."""


RoundChange = (
    NodesWaiting | MemberLost | RoundEnded | Decided | RendezvousClosed | Suspended | Resumed | StopOrdered | Undecided
)
"""What `RendezvousHandler.watch` may return."""


class RendezvousSettings(Record, OptionValues, frozen=True, kw_only=True):
    """What a rendezvous plugin is built with."""

    run_id: str
    """The run's id (`--rdzv-id`)."""
    backend: str = "local"
    """As typed (`--rdzv-backend`)."""
    endpoint: str = ""
    """As typed (`--rdzv-endpoint`); empty: not given."""
    min_nodes: int = 1
    """The least number of nodes (`--nnodes`)."""
    max_nodes: int = 1
    """The greatest number of nodes."""
    local_world_size: int = 1
    """How many workers this node has."""
    role: str = "default"
    """`--role`."""
    node_id: str = ""
    """This node's id; empty: the host's name is taken."""
    node_rank: int | None = None
    """`--node-rank`; None: not given."""
    master_addr: str | None = None
    """`--master-addr`; None: not given."""
    master_port: int | None = None
    """`--master-port`; None: not given."""
    local_addr: str | None = None
    """The address by which others reach this node (`--local-addr`); None: found out."""
    monitor_interval_s: float = 0.1
    """Seconds from one look at a backend that must be polled to the next."""
    incarnation: str = ""
    """Random, made anew by each agent process; marks everything that it starts (`ELASTIC_INCARNATION`)."""
    attempt: int = 0
    """How often the scheduler has begun the run again (`--rdzv-attempt`)."""
    attempt_given: bool = False
    """Whether a user or a scheduler has said which attempt this is; else nobody can tell one from the next."""
    job: str = ""
    """The scheduler's name of the job, where that tells attempts apart (`slurm 4711`); empty: not known."""
    spares: int | None = None
    """How many surplus nodes may wait in reserve; None: any number."""
    fingerprint: Mapping[str, str] = {}
    """What all nodes of a run must agree on, by key."""
    allow_mismatch: tuple[str, ...] = ()
    """Keys of the fingerprint that may differ."""
    max_membership_changes: int | None = None
    """How many rounds may end because nodes came or went; None: any number."""
    store_outage_grace_s: float = 120.0
    """Seconds for which a store may be away before `on_store_loss` counts."""
    on_store_loss: str = "keep"
    """`keep` or `fail`: what workers do when the store stays away for longer than the grace."""
    options: Mapping[str, str | int | float | bool | None] = {}
    """The backend's declared options, by name, of the declared types, with their defaults filled in."""
    lists: Mapping[str, tuple[str | int | float | bool, ...]] = {}
    """Those of several values, by name."""
    agent_port: int = 0
    """The UDP port at which this agent answers the others (`--agent-port`); 0: a free one."""


class PolicySettings(Record, OptionValues, frozen=True, kw_only=True):
    """What a FailureHandler is built with."""

    name: str
    """As typed (`--policy`)."""
    max_restarts: int = 0
    """`--max-restarts`: how many restarts the run has."""
    restart_window_s: float | None = None
    """Only restarts of the last so many seconds count; None: all."""
    restart_backoff_s: float = 0.5
    """The first pause between quick restarts, in seconds; 0: none."""
    fatal_exit_codes: tuple[int, ...] = ()
    """Exit codes that are not worth another try."""
    same_failure_limit: int | None = None
    """How often in a row the same failure may come; None: any number."""
    run_id: str = ""
    """The run's id; empty: not known yet."""
    min_nodes: int = 1
    """The least number of nodes."""
    max_nodes: int = 1
    """The greatest number of nodes."""
    options: Mapping[str, str | int | float | bool | None] = {}
    """The policy's declared options, by name, of the declared types."""
    lists: Mapping[str, tuple[str | int | float | bool, ...]] = {}
    """Those of several values, by name."""

    @property
    def restart_budget(self) -> int | None:
        """How many restarts the run has; None: the policy is not `intensity`, and has a budget of its own or none."""
        return self.max_restarts if self.name == "intensity" else None


class HookSettings(Record, OptionValues, frozen=True, kw_only=True):
    """What an AgentHook is built with."""

    name: str
    """The hook's name, as its entry point has it."""
    run_id: str = ""
    """The run's id."""
    run_dir: str = ""
    """The run directory: files of the hook's own go there."""
    options: Mapping[str, str | int | float | bool | None] = {}
    """The hook's declared options, by name, of the declared types; one that was not given and has no default is
    None."""
    lists: Mapping[str, tuple[str | int | float | bool, ...]] = {}
    """The values of options that may be given several times, by name."""
    node_id: str = ""
    """This node's id."""
    role: str = ""
    """`--role`."""
    backend: str = ""
    """The rendezvous backend."""
    endpoint: str = ""
    """Its endpoint, without secrets."""
    entry_point: str = ""
    """What the workers run, as typed."""
    max_restarts: int = 0
    """`--max-restarts`."""
    policy: str = ""
    """The restart policy; only `intensity` promises a number of restarts."""
    max_membership_changes: int | None = None
    """`--max-membership-changes`; None: any number."""
    own_process: bool = True
    """Whether this process exists for the run alone; else a program runs it by a library call."""
    incarnation: str = ""
    """What marks this agent's processes, for `hosted_environment` of elastic-backend-net; empty in a dry run."""
    local_world_size: int = 1
    """How many workers this node has."""
    devices: tuple[str, ...] = ()
    """`--devices`, as entries of the visible-devices variable; empty: as inherited."""
    dry_run: bool = False
    """The hook is built only to show what it would change (`--dry-run`): take nothing, no port and no file."""
    workers_run: str = "python"
    """What workers run: `python`, a script or a module; `program`; `function`."""
    may_restart: bool = True
    """Whether workers can ever be started again: there is a budget, a policy that may, or another node may come."""
    debugging: bool = False
    """A worker is being debugged (`--debug-rank`): no limit of time counts."""
    shutdown_timeout_s: float = 0.0
    """`--shutdown-timeout`: how long workers have that are stopped, at most."""
    preemption_signal: str = ""
    """The signal of `--preemption-signal`, such as `SIGUSR1`; empty: the option was not given."""
    restarts_nodes: bool = False
    """Whether the backend can tell the other nodes of a restart that is asked for."""


# --- workers and their ends ---


class WorkerExit(Record, frozen=True, kw_only=True):
    """How one worker process ended."""

    local_rank: int
    """Its number on this node, from 0."""
    global_rank: int
    """Its number in the round."""
    pid: int
    """Its process."""
    code: int
    """Its exit code; -N: killed by signal N."""
    at_s: float
    """When it was noticed, seconds of this host's monotonic clock."""
    at_ns: int
    """When it was noticed, nanoseconds since the Unix epoch."""
    runtime_s: float
    """Seconds since its start."""
    stop_signal: int | None = None
    """The first signal that the agent had sent it; None: it ended by itself."""
    stop_sent_ns: int | None = None
    """When that was sent; None: none was."""
    oom_kills: int = 0
    """Kills by the memory controller of this node's cgroup that were counted during the round, up to this exit."""
    unreapable: bool = False
    """Still in uninterruptible sleep when we gave up waiting for it; `code` is then -SIGKILL."""

    @property
    def signal(self) -> int | None:
        """The signal that it died by; None: it ended by itself."""
        return -self.code if self.code < 0 else None


class ErrorRecord(Record, frozen=True, kw_only=True):
    """What a worker left about its own failure."""

    source: str
    """Who wrote it: `hook`, `record`, `faulthandler` or `stderr`."""
    type: str
    """The exception's class, with its module unless it is a builtin or the script's own."""
    message: str
    """Its text; may have several lines."""
    timestamp_ns: int
    """When it was raised, nanoseconds since the Unix epoch."""
    frames: tuple[tuple[str, int, str, str], ...] = ()
    """File, line, function and text of each frame, outermost first, without the launcher's."""
    callstack: str = ""
    """The traceback as text; empty: not kept."""
    top_level_import: bool = False
    """A SyntaxError of the script, or an ImportError before any function of it ran."""
    causes: tuple[tuple[str, str, str, str], ...] = ()
    """What led to it: relation (`from`, `while handling`, `member` of a group, `in DataLoader worker 3`), class,
    message and place (`data.py:12`, or empty) of each; empty: nothing more is known."""
    notes: tuple[str, ...] = ()
    """What `add_note` has added to it and to what led to it."""


class FailureClass(enum.StrEnum):
    """What kind of thing went wrong first."""

    USER_EXCEPTION = "user exception"
    USAGE = "import or usage error"
    EXIT = "non-zero exit"
    SIGNAL = "signal"
    OOM_HOST = "out of memory on host"
    DEVICE = "device"
    """An accelerator, its driver or a library of it has failed; `DeviceFault` says how."""
    OOM_DEVICE = "out of memory on device"
    """A case of `DEVICE`, apart as it has another remedy: `on_device` is true of both."""
    HANG = "hang"
    NODE_LOST = "node lost"
    PREEMPTED = "preempted"
    HEALTH_CHECK = "health check"
    RENDEZVOUS = "rendezvous"
    STORE = "store"
    START_UP = "start-up"

    @property
    def on_device(self) -> bool:
        """Whether an accelerator or its software failed: `DEVICE` or `OOM_DEVICE`."""
        return self in (FailureClass.DEVICE, FailureClass.OOM_DEVICE)


class DeviceFault(enum.StrEnum):
    """What failed about an accelerator, by what CUDA, HIP, XPU, NCCL and their libraries say."""

    OUT_OF_MEMORY = "out of memory"
    """Its memory is too small for what was asked of it."""
    ECC = "ecc"
    """Its memory or a link of it has errors that can't be corrected: the device is to be replaced or reset."""
    ASSERT = "assert"
    """A kernel's assertion does not hold, such as an index out of range: mostly the script's own fault."""
    LOST = "lost"
    """The device is gone, busy or not there."""
    DRIVER = "driver"
    """The driver does not fit, or is not ready."""
    KERNEL = "kernel"
    """A kernel made an illegal access or did not end: the script's fault, or the hardware's."""
    COMMUNICATION = "communication"
    """NCCL, RCCL, oneCCL or HCCL failed here; that a peer is gone is none."""
    LIBRARY = "library"
    """cuBLAS, cuDNN, cuSOLVER, MIOpen or the like failed."""
    OTHER = "other"
    """Any other error of an accelerator."""


class Origin(enum.StrEnum):
    """Whether a worker's end is a cause or a consequence."""

    INTRINSIC = "intrinsic"
    """Its own fault: exception, fault signal, out of memory, exit code."""
    COLLATERAL = "collateral"
    """It lost a peer: connection reset, remote error of gloo or NCCL."""
    STOPPED = "stopped"
    """We stopped it."""


class FailedWorker(Record, frozen=True, kw_only=True):
    """One worker's part in an incident."""

    exit: WorkerExit
    """How its process ended."""
    origin: Origin
    """Whether it is a cause or a consequence."""
    failure_class: FailureClass
    """What kind of failure it is."""
    summary: str
    """One line: `ValueError: boom`, `killed by SIGKILL (9)`, `exit code 7`."""
    at_ns: int
    """When it failed: the error file's time, else when the kernel told us."""
    error: ErrorRecord | None = None
    """What it left about it; None: nothing."""
    log_paths: tuple[str, ...] = ()
    """The files with its output; empty: they are not kept."""
    log_tail: str = ""
    """The end of its stderr, where that is kept."""


class Failure(Record, frozen=True, kw_only=True):
    """What a FailureHandler decides about: the first cause, and how far the run had come."""

    failure_class: FailureClass
    """What kind of failure it is."""
    summary: str
    """One line for people: `ValueError: boom`, `killed by SIGKILL (9)`, `exit code 7`."""
    node_id: str
    """The node to blame: where the first failure was."""
    round_index: int
    """In which round, from 0."""
    at_s: float
    """Seconds since the run began: where nodes meet in a store, with its first round, the same on all of them."""
    uptime_s: float
    """Seconds since the round's workers were started."""
    exit_code: int = 1
    """The failed worker's own code, 128+N for death by signal N, 1 where there is no better."""
    global_rank: int | None = None
    """The first failed worker's rank in the round; None: no worker is to blame."""
    local_rank: int | None = None
    """Its number on its node; None: no worker is to blame."""
    exception_type: str = ""
    """The class of its exception: `ValueError` where it is a builtin or the script's own, else with its module,
    `torch.OutOfMemoryError`; empty: it left none."""
    message: str = ""
    """The exception's text, all lines; empty: it left none."""
    retryable: bool = True
    """False: trying again can't help (a missing script, a SyntaxError, an import that fails in the first attempt)."""
    signal: int | None = None
    """What killed the worker, unless it was our own; None: it ended by itself, or no worker is to blame."""
    log_tail: str = ""
    """The last 4 KiB of that worker's stderr, where it is kept; empty in the history."""
    device_fault: DeviceFault | None = None
    """What failed about the accelerator; None: the class is neither `DEVICE` nor `OOM_DEVICE`. None in the history."""
    reported_by: str = ""
    """The hook that has reported it (`self.run.report`); empty: the agent saw it itself."""
    fingerprint: str = ""
    """The same for failures of one kind: class, exception, place and message, without numbers that change."""
    progress: int | None = None
    """How far the run had come, in steps that only rise; None: not known."""
    node_count: int | None = None
    """How many nodes the failed round had; None: there was none, or it is not known."""
    membership_changes: int | None = None
    """How many rounds of the run had ended because nodes came or went; None: not known."""
    decision: "Restart | Stop | Ignore | None" = None
    """What was decided; None: this is the failure at hand, which is to be decided."""
    spent: int = 0
    """In the history: how many restarts this failure and all before it have cost. It may no longer have each."""
    rule_counts: tuple[tuple[str, int], ...] = ()
    """Of the history's last failure: how often each rule has let the run go on, by its name in the decision."""


class Restart(Record, frozen=True, kw_only=True, tag="restart"):
    """Start all workers again, perhaps later, perhaps without some nodes."""

    delay_s: float = 0.0
    """Seconds to wait first."""
    exclude_nodes: tuple[str, ...] = ()
    """Ids of the nodes that stay out; one that the run needs to have enough comes back before its time."""
    exclude_s: tuple[float, ...] = ()
    """Seconds for which each of them does, in the same order; those behind its end stay out until the next decision."""
    rule: str = ""
    """Which rule decided, for people and for `rule_counts`."""
    reason: str = ""
    """For the line about it: why one doubts that it helps, say; empty: nothing to add. The line names the number of the
    restart, its delay and the nodes that stay out by itself."""


class Stop(Record, frozen=True, kw_only=True, tag="stop"):
    """End the run."""

    reason: str
    """A line for people: why the run ends."""
    outcome: str = "failed"
    """`failed`, or `done` for a run that is over for good."""
    rule: str = ""
    """Which rule decided."""


class Ignore(Record, frozen=True, kw_only=True, tag="ignore"):
    """Leave that worker down; the others run on."""

    rule: str = ""
    """Which rule decided."""


Decision = Restart | Stop | Ignore
"""What a FailureHandler may return."""
