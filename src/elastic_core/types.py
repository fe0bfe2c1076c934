"""Values that all packages share: rounds, worker exits, failures, decisions, settings.

Records are `msgspec.Struct`: frozen and typed like a frozen dataclass, faster to import, and encodable as JSON. Fields
that end in `_s` are float seconds of this host's monotonic clock unless their text differs. Fields that end in `_ns`
are nanoseconds since the Unix epoch.
"""

import enum
from collections.abc import Mapping

import msgspec

from elastic_core.option_spec import OptionValues

API_VERSION = 1
"""The version of the plugin interfaces. Each plugin class states the version that it was written for."""


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """Base class of all frozen records."""


class Capability(enum.StrEnum):
    """What a rendezvous backend can do beyond forming rounds."""

    CONTROL = "control"
    """Publishes one decision for the whole run, and the end of the run."""
    MEMBERSHIP = "membership"
    """Reports when a node joins or is lost, without being polled."""


# --- rendezvous ---


class RosterMember(Record, frozen=True, kw_only=True):
    """One node of a round, as the other nodes know it."""

    node_id: str
    """The node's id (`--node-id`)."""
    local_world_size: int
    """How many workers the node has."""
    role: str = "default"
    """The `--role` of the node."""
    address: str = ""
    """The address at which other nodes reach it. Empty if the backend does not provide one."""


class RendezvousInfo(Record, frozen=True, kw_only=True):
    """This node's place in a new round, as `next_rendezvous` returns it.

    If `master_addr` and `master_port` are `None`, the agent chooses them (one node), or the agents agree through
    `store`.
    """

    store: object = None
    """An object with `set` and `get` like torch's stores, for agreeing on the master address. `None` means no store."""
    rank: int
    """This node's rank, from 0."""
    world_size: int
    """How many nodes the round has."""
    round_token: int = 0
    """The round's fencing token. Later rounds have higher tokens."""
    nonce: str = ""
    """A random text of this round. Empty if the backend has none."""
    members: tuple[RosterMember, ...] = ()
    """All nodes in rank order. If empty, each node has as many workers as this one."""
    master_addr: str | None = None
    """The address at which rank 0's worker listens. `None` means that the agents agree on one."""
    master_port: int | None = None
    """The port of that address. `None` means that the agents agree on one."""
    index: int | None = None
    """The number of the round in the run, from 0. If `None`, each agent counts its own rounds."""
    restart_count: int | None = None
    """Restarts of the whole run after failures. If `None`, each agent counts its own."""
    membership_changes: int | None = None
    """Rounds of the run that membership changes ended. If `None`, each agent counts its own."""
    history: "tuple[Failure, ...] | None" = None
    """The run's failures with their decisions, oldest first. If `None`, each agent keeps its own."""
    at_s: float | None = None
    """The run's age in seconds, the same on all nodes. If `None`, each agent counts from its own start."""


class Round(Record, frozen=True, kw_only=True):
    """One agreed membership, with all that this node's workers need."""

    index: int
    """The number of the round in the run, from 0. Each restart and each membership change begins another round."""
    token: int
    """The round's fencing token. Later rounds have higher tokens."""
    nonce: str
    """A random text of this round. Empty if the backend has none."""
    node_rank: int
    """This node's rank, from 0."""
    node_count: int
    """How many nodes the round has."""
    local_world_size: int
    """How many workers this node has."""
    base_rank: int
    """The global rank of this node's first worker."""
    world_size: int
    """How many workers the round has on all nodes."""
    role: str
    """The `--role` of this node."""
    role_base_rank: int
    """The rank of this node's first worker among the workers of its role."""
    role_world_size: int
    """How many workers have this role."""
    master_addr: str
    """The address at which the worker with rank 0 listens."""
    master_port: int
    """The port of that address."""
    node_id: str = ""
    """This node's id, as the other nodes know it. Empty if the rendezvous does not provide it."""
    restart_count: int | None = None
    """Restarts of the whole run after failures. `None` if the rendezvous does not count for all nodes."""
    membership_changes: int | None = None
    """Rounds of the run that membership changes ended. `None` as for `restart_count`."""
    history: "tuple[Failure, ...]" = ()
    """The run's failures with their decisions, oldest first. Empty if the rendezvous does not keep them."""
    at_s: float | None = None
    """The run's age when the round was formed, the same on all nodes. If `None`, each node counts its own."""

    def global_rank(self, local_rank: int) -> int:
        """Return the rank of a worker of this node among all workers of the round."""
        return self.base_rank + local_rank


class NodesWaiting(Record, frozen=True, kw_only=True, tag="nodes_waiting"):
    """Nodes are waiting to join; a new round would include them."""

    count: int
    """How many nodes are waiting."""


class MemberLost(Record, frozen=True, kw_only=True, tag="member_lost"):
    """A node of the round is lost."""

    node_id: str
    """The id of the lost node."""


class RoundEnded(Record, frozen=True, kw_only=True, tag="round_ended"):
    """A membership change ended the round: every node stops its workers and joins the next round."""

    reason: str
    """One line for users."""
    lost: tuple[str, ...] = ()
    """The ids of the nodes that left or were lost."""
    left: tuple[str, ...] = ()
    """Those of `lost` that left by themselves, for example after SIGTERM to their agents. Empty if not known."""
    arrived: int = 0
    """How many nodes joined."""
    stop_within_s: float | None = None
    """The most seconds for workers to stop: if a node is cut off, they must end before its lease ends. `None`:
    the user's setting."""
    planned: bool = False
    """No node was lost: all workers of the run are healthy."""


class Decided(Record, frozen=True, kw_only=True, tag="decided"):
    """The run has decided how to continue, for all its nodes."""

    decision: "Restart | Stop"
    """The decision."""
    failure: "Failure | None" = None
    """The failure that was decided about. `None` means that nothing failed."""
    evidence: str = ""
    """Evidence from all nodes, as the deciding agent encoded it. Empty if there is only `failure`."""


class StopOrdered(Record, frozen=True, kw_only=True, tag="stop_ordered"):
    """A node has failed: every node stops its workers, reports its evidence, and waits for the decision."""

    reason: str
    """One line for users."""
    by: str = ""
    """The id of the node that failed."""


class Undecided(Record, frozen=True, kw_only=True, tag="undecided"):
    """No node can decide for the run, or reach the others: this node must decide alone."""

    reason: str
    """One line for users."""
    final: bool = False
    """No further round follows: this node can only decide how the run ends."""


class RendezvousClosed(Record, frozen=True, kw_only=True, tag="closed"):
    """The run's rendezvous is closed: no further round follows."""


class Suspended(Record, frozen=True, kw_only=True, tag="suspended"):
    """The backend cannot report changes; workers continue for a bounded time."""

    reason: str
    """One line for users."""


class Resumed(Record, frozen=True, kw_only=True, tag="resumed"):
    """The backend can report changes again."""


RoundChange = (
    NodesWaiting | MemberLost | RoundEnded | Decided | RendezvousClosed | Suspended | Resumed | StopOrdered | Undecided
)
"""The types that `RendezvousHandler.watch` may return."""


class RendezvousSettings(Record, OptionValues, frozen=True, kw_only=True):
    """The settings of a rendezvous plugin."""

    run_id: str
    """The run's id (`--rdzv-id`)."""
    backend: str = "local"
    """The backend's name, as typed (`--rdzv-backend`)."""
    endpoint: str = ""
    """The endpoint, as typed (`--rdzv-endpoint`). Empty if not given."""
    min_nodes: int = 1
    """The fewest nodes of a round (`--nnodes`)."""
    max_nodes: int = 1
    """The most nodes of a round."""
    local_world_size: int = 1
    """How many workers this node has."""
    role: str = "default"
    """The `--role` of this node."""
    node_id: str = ""
    """This node's id. If empty, the host's name is used."""
    node_rank: int | None = None
    """The value of `--node-rank`. `None` if not given."""
    master_addr: str | None = None
    """The value of `--master-addr`. `None` if not given."""
    master_port: int | None = None
    """The value of `--master-port`. `None` if not given."""
    local_addr: str | None = None
    """The address at which other nodes reach this one (`--local-addr`). If `None`, it is detected."""
    monitor_interval_s: float = 0.1
    """Seconds between two polls of a backend that must be polled."""
    incarnation: str = ""
    """A random text, new in each agent process. All processes that the agent starts have it (`ELASTIC_INCARNATION`)."""
    attempt: int = 0
    """How often the scheduler has restarted the run (`--rdzv-attempt`)."""
    attempt_given: bool = False
    """Whether a user or a scheduler gave `attempt`. If not, attempts cannot be distinguished."""
    job: str = ""
    """The scheduler's name of the job (`slurm 4711`), if it differs between attempts. Empty if not known."""
    spares: int | None = None
    """How many surplus nodes may wait as spares. `None` means no limit."""
    fingerprint: Mapping[str, str] = {}
    """Settings on which all nodes of a run must agree, by key."""
    allow_mismatch: tuple[str, ...] = ()
    """Keys of `fingerprint` that may differ between nodes."""
    max_membership_changes: int | None = None
    """How many rounds membership changes may end. `None` means no limit."""
    store_outage_grace_s: float = 120.0
    """Seconds for which the store may be unreachable before `on_store_loss` applies."""
    on_store_loss: str = "keep"
    """`keep` or `fail`: whether workers continue if the store stays unreachable for longer than the grace period."""
    options: Mapping[str, str | int | float | bool | None] = {}
    """The backend's declared options by name, converted, with their defaults."""
    lists: Mapping[str, tuple[str | int | float | bool, ...]] = {}
    """The options that have several values, by name."""
    agent_port: int = 0
    """The UDP port at which this agent answers the other agents (`--agent-port`). 0 means any free port."""


class PolicySettings(Record, OptionValues, frozen=True, kw_only=True):
    """The settings of a restart policy (`FailureHandler`)."""

    name: str
    """The policy's name, as typed (`--policy`)."""
    max_restarts: int = 0
    """The value of `--max-restarts`: the most restarts of the run."""
    restart_window_s: float | None = None
    """The window in which restarts count, in seconds. `None` means that all restarts count."""
    restart_backoff_s: float = 0.5
    """The first pause between quick restarts, in seconds. 0 means no pause."""
    fatal_exit_codes: tuple[int, ...] = ()
    """Exit codes after which the run is not restarted."""
    same_failure_limit: int | None = None
    """How often in a row the same failure may happen. `None` means no limit."""
    run_id: str = ""
    """The run's id. Empty if not known yet."""
    min_nodes: int = 1
    """The fewest nodes of a round."""
    max_nodes: int = 1
    """The most nodes of a round."""
    options: Mapping[str, str | int | float | bool | None] = {}
    """The policy's declared options by name, converted."""
    lists: Mapping[str, tuple[str | int | float | bool, ...]] = {}
    """The options that have several values, by name."""

    @property
    def restart_budget(self) -> int | None:
        """The most restarts of the run. `None` if the policy is not `intensity`: its budget is not known."""
        return self.max_restarts if self.name == "intensity" else None


class HookSettings(Record, OptionValues, frozen=True, kw_only=True):
    """The settings of a hook (`AgentHook`)."""

    name: str
    """The hook's name: that of its entry point."""
    run_id: str = ""
    """The run's id."""
    run_dir: str = ""
    """The run directory, where the hook may write its own files."""
    options: Mapping[str, str | int | float | bool | None] = {}
    """The hook's declared options by name, converted. An option without value and default is `None`."""
    lists: Mapping[str, tuple[str | int | float | bool, ...]] = {}
    """The values of options that may be given several times, by name."""
    node_id: str = ""
    """This node's id."""
    role: str = ""
    """The `--role` of this node."""
    backend: str = ""
    """The name of the rendezvous backend."""
    endpoint: str = ""
    """The endpoint of the backend, without secrets."""
    entry_point: str = ""
    """The script, module or program that the workers run, as typed."""
    max_restarts: int = 0
    """The value of `--max-restarts`."""
    policy: str = ""
    """The restart policy. Only `intensity` guarantees a number of restarts."""
    max_membership_changes: int | None = None
    """The value of `--max-membership-changes`. `None` means no limit."""
    own_process: bool = True
    """Whether this process exists for the run alone. False if a program started the run by a library call."""
    incarnation: str = ""
    """The mark of this agent's processes, for `hosted_environment` of elastic-backend-net. Empty in a dry run."""
    local_world_size: int = 1
    """How many workers this node has."""
    devices: tuple[str, ...] = ()
    """The value of `--devices`, as entries of the visible-devices variable. Empty means inherited."""
    dry_run: bool = False
    """Whether the hook was built only to show its changes (`--dry-run`). It must open no port and no file."""
    workers_run: str = "python"
    """What the workers run: `python` (a script or a module), `program` or `function`."""
    command: tuple[str, ...] = ()
    """The workers' command, with `${local_rank}` in place of the rank and without changes by hooks."""
    environment: Mapping[str, str] = {}
    """The variables that all workers have in every round, without changes by hooks. It may contain secrets."""
    may_restart: bool = True
    """Whether workers can be started again: restarts are left, the policy may restart, or nodes may join."""
    debugging: bool = False
    """Whether a worker is being debugged (`--debug-rank`). No time limit applies then."""
    shutdown_timeout_s: float = 0.0
    """The value of `--shutdown-timeout`: the most seconds that workers may take to stop."""
    preemption_signal: str = ""
    """The signal of `--preemption-signal`, such as `SIGUSR1`. Empty if not given."""
    restarts_nodes: bool = False
    """Whether the backend can pass a requested restart to the other nodes."""


# --- workers and their ends ---


class WorkerExit(Record, frozen=True, kw_only=True):
    """How one worker process ended."""

    local_rank: int
    """The worker's rank on this node, from 0."""
    global_rank: int
    """The worker's rank in the round."""
    pid: int
    """The id of its process."""
    code: int
    """The exit code. -N means killed by signal N."""
    at_s: float
    """When the agent noticed the end, in seconds of this host's monotonic clock."""
    at_ns: int
    """When the agent noticed the end, in nanoseconds since the Unix epoch."""
    runtime_s: float
    """Seconds from the worker's start to its end."""
    stop_signal: int | None = None
    """The first signal that the agent sent to it. `None` means that it ended by itself."""
    stop_sent_ns: int | None = None
    """When the agent sent that signal. `None` if it sent none."""
    oom_kills: int = 0
    """How often the memory controller of this node's cgroup killed during the round, up to this exit."""
    unreapable: bool = False
    """Whether it was still in uninterruptible sleep when the agent stopped waiting. `code` is then -SIGKILL."""

    @property
    def signal(self) -> int | None:
        """The signal that killed the worker. `None` if no signal did."""
        return -self.code if self.code < 0 else None


class ErrorRecord(Record, frozen=True, kw_only=True):
    """A worker's record of its own failure."""

    source: str
    """The writer of the record: `hook`, `record`, `faulthandler` or `stderr`."""
    type: str
    """The exception's class, with its module unless it is a builtin or defined in the script."""
    message: str
    """The exception's text, which may have several lines."""
    timestamp_ns: int
    """When the exception was raised, in nanoseconds since the Unix epoch."""
    frames: tuple[tuple[str, int, str, str], ...] = ()
    """File, line, function and source text of each frame, outermost first, without frames of the launcher."""
    callstack: str = ""
    """The traceback as text. Empty if it was not kept."""
    top_level_import: bool = False
    """Whether it is a SyntaxError of the script, or an ImportError before any of its functions ran."""
    causes: tuple[tuple[str, str, str, str], ...] = ()
    """The causes: relation (`from`, `while handling`, `member` of a group, `in DataLoader worker 3`), class, message
    and place (`data.py:12`, or empty) of each. Empty if there are none."""
    notes: tuple[str, ...] = ()
    """The notes that `add_note` added to the exception and its causes."""


class FailureClass(enum.StrEnum):
    """The kind of the first failure."""

    USER_EXCEPTION = "user exception"
    USAGE = "import or usage error"
    EXIT = "non-zero exit"
    SIGNAL = "signal"
    OOM_HOST = "out of memory on host"
    DEVICE = "device"
    """An accelerator, its driver or a library of it failed; `DeviceFault` has the details."""
    OOM_DEVICE = "out of memory on device"
    """A case of `DEVICE` with its own class, as its remedy differs. `on_device` is true for both."""
    HANG = "hang"
    STRAGGLER = "straggler"
    """A worker or node is lastingly slower than the others, and runs on: `Ignore` leaves it running."""
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
    """What failed about an accelerator, by the errors of CUDA, HIP, XPU, NCCL and their libraries."""

    OUT_OF_MEMORY = "out of memory"
    """The memory of the device is too small for the request."""
    ECC = "ecc"
    """The memory or a link of the device has uncorrectable errors: replace or reset the device."""
    ASSERT = "assert"
    """An assertion in a kernel failed, such as an index out of range: mostly an error of the script."""
    LOST = "lost"
    """The device is missing, lost or busy."""
    DRIVER = "driver"
    """The driver does not fit, or is not ready."""
    KERNEL = "kernel"
    """A kernel made an illegal access or did not end: an error of the script, or of the hardware."""
    COMMUNICATION = "communication"
    """NCCL, RCCL, oneCCL or HCCL failed on this node. A lost peer is not such a failure."""
    LIBRARY = "library"
    """A library such as cuBLAS, cuDNN, cuSOLVER or MIOpen failed."""
    OTHER = "other"
    """Any other error of an accelerator."""


class Origin(enum.StrEnum):
    """Whether a worker's end is a cause or a consequence."""

    INTRINSIC = "intrinsic"
    """The worker failed by itself: exception, fault signal, out of memory, exit code."""
    COLLATERAL = "collateral"
    """The worker lost a peer: connection reset, remote error of gloo or NCCL."""
    STOPPED = "stopped"
    """The agent stopped the worker."""


class FailedWorker(Record, frozen=True, kw_only=True):
    """One worker's part in an incident."""

    exit: WorkerExit
    """How the worker's process ended."""
    origin: Origin
    """Whether its end is a cause or a consequence."""
    failure_class: FailureClass
    """The kind of failure."""
    summary: str
    """One line: `ValueError: boom`, `killed by SIGKILL (9)`, `exit code 7`."""
    at_ns: int
    """When it failed: the time in its error file, else when the kernel reported its end."""
    error: ErrorRecord | None = None
    """The worker's record of its failure. `None` if there is none."""
    log_paths: tuple[str, ...] = ()
    """The files with its output. Empty if output is not kept."""
    log_tail: str = ""
    """The end of its stderr. Empty if stderr is not kept."""


class Failure(Record, frozen=True, kw_only=True):
    """The first cause, on which a FailureHandler decides, and how far the run had come."""

    failure_class: FailureClass
    """The kind of failure."""
    summary: str
    """One line for users: `ValueError: boom`, `killed by SIGKILL (9)`, `exit code 7`."""
    node_id: str
    """The node of the first failure."""
    round_index: int
    """The number of the round, from 0."""
    at_s: float
    """Seconds since the run began. With a store, all nodes count from the beginning of the first round."""
    uptime_s: float
    """Seconds since the workers of the round were started."""
    exit_code: int = 1
    """The failed worker's exit code, 128+N for death by signal N, or 1 if there is no better code."""
    global_rank: int | None = None
    """The first failed worker's rank in the round. `None` if the failure is not a worker's."""
    local_rank: int | None = None
    """That worker's rank on its node. `None` if the failure is not a worker's."""
    exception_type: str = ""
    """The class of the exception: `ValueError` for a builtin or a class of the script, else with its module, such as
    `torch.OutOfMemoryError`. Empty if the worker recorded none."""
    message: str = ""
    """The exception's text with all its lines. Empty if the worker recorded none."""
    retryable: bool = True
    """False if a retry cannot help (a missing script, a SyntaxError, an import that fails in the first attempt)."""
    signal: int | None = None
    """The signal that killed the worker. `None` if there was none, the agent sent it, or no worker failed."""
    log_tail: str = ""
    """The last 4 KiB of that worker's stderr. Empty in the history, and if stderr is not kept."""
    device_fault: DeviceFault | None = None
    """What failed about the accelerator. `None` in the history, and for classes except `DEVICE` and `OOM_DEVICE`."""
    reported_by: str = ""
    """The hook that reported the failure (`self.run.report`). Empty if the agent found it."""
    fingerprint: str = ""
    """A text that equal failures share: class, exception, place and message, without numbers that change."""
    progress: int | None = None
    """The furthest step of the run. `None` if not known."""
    node_count: int | None = None
    """How many nodes the failed round had. `None` if there was no round, or it is not known."""
    membership_changes: int | None = None
    """How many rounds of the run membership changes had ended. `None` if not known."""
    alive_count: int | None = None
    """How many workers of the round had neither failed nor finished: on one node at the decision, else when they were
    stopped. `None` if not known."""
    kept_count: int | None = None
    """How many of them have left the round, and run on. `None` if they are asked to leave after the decision."""
    decision: "Restart | Stop | Ignore | None" = None
    """The decision. `None` for the failure that is still to be decided."""
    spent: int = 0
    """In the history: how many restarts this failure and all before it have cost, forgotten ones too."""
    rule_counts: tuple[tuple[str, int], ...] = ()
    """In the history's last failure: how often each rule let the run continue, by its name in the decision."""


class Restart(Record, frozen=True, kw_only=True, tag="restart"):
    """Decision: start all workers again, optionally after a delay or without some nodes."""

    delay_s: float = 0.0
    """Seconds to wait before the restart."""
    exclude_nodes: tuple[str, ...] = ()
    """Ids of the nodes to leave out. A node without which the run has too few returns early."""
    exclude_s: tuple[float, ...] = ()
    """Seconds for which each of them is left out, in the same order. Further nodes stay out until the next decision."""
    rule: str = ""
    """The rule that decided, for users and for `rule_counts`."""
    reason: str = ""
    """A remark for the line about the restart. Empty means no remark: the line has the number of the restart, its delay
    and the excluded nodes in any case."""


class Stop(Record, frozen=True, kw_only=True, tag="stop"):
    """Decision: end the run."""

    reason: str
    """One line for users: why the run ends."""
    outcome: str = "failed"
    """`failed`, or `done` for a run that has finished its work."""
    rule: str = ""
    """The rule that decided."""


class Ignore(Record, frozen=True, kw_only=True, tag="ignore"):
    """Decision: do not restart that worker; the others continue. A straggler runs on."""

    rule: str = ""
    """The rule that decided."""


Decision = Restart | Stop | Ignore
"""The types that a FailureHandler may return."""
