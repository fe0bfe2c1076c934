"""Values that every room shares: rounds, worker exits, failures, decisions, settings.

Records are `msgspec.Struct`: as frozen and typed as a frozen dataclass, forty times cheaper to define at start-up, and
they encode to JSON. Times: `_s` are float seconds of this host's monotonic clock unless said otherwise; `_ns` are
nanoseconds since the Unix epoch.
"""

import enum
from collections.abc import Callable, Mapping, Sequence

import msgspec

from elastic_core.option_values import OptionValues

API_VERSION = 2
"""The version of the plugin interfaces; each plugin class states the one that it was written for."""


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """Base of all frozen records."""


class Capability(enum.StrEnum):
    """What a rendezvous backend can do beyond forming rounds."""

    CONTROL = "control"
    """Publishes one decision for the whole run, and its end."""
    MEMBERSHIP = "membership"
    """Tells when a node arrives or is lost, without being polled."""
    EVIDENCE = "evidence"
    """With `control`: stops all nodes at a failure, gathers what each of them has seen, then has one of them decide."""


# --- rendezvous ---


class RosterMember(Record, frozen=True, kw_only=True):
    """One node of a round, as the others know it."""

    node_id: str
    local_world_size: int
    role: str = "default"
    address: str = ""


class RendezvousInfo(Record, frozen=True, kw_only=True):
    """What `next_rendezvous` returns: this node's place in a new round.

    `rank` is the node's rank among `world_size` nodes. `members` has all nodes in rank order; left empty, every node
    has as many workers as this one. `master_addr`/`master_port` are where rank 0's worker listens; None lets the agent
    choose (one node), or agree through `store` (several nodes; an object with torch's `set(key, value)` and
    `get(key)`).
    """

    store: object = None
    rank: int
    world_size: int
    round_token: int = 0
    nonce: str = ""
    members: tuple[RosterMember, ...] = ()
    master_addr: str | None = None
    master_port: int | None = None
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


class RunCounts(Record, frozen=True, kw_only=True):
    """What a rendezvous that decides for the whole run knows of the rounds before."""

    restart_count: int
    membership_changes: int
    history: "tuple[Failure, ...]" = ()
    at_s: float | None = None
    """The run's age when the round had formed, the same for all nodes; None: each counts from its own start."""


class Round(Record, frozen=True, kw_only=True):
    """One agreed membership, resolved to what this node's workers need."""

    index: int
    token: int
    nonce: str
    node_rank: int
    node_count: int
    local_world_size: int
    base_rank: int
    world_size: int
    role: str
    role_base_rank: int
    role_world_size: int
    master_addr: str
    master_port: int
    node_id: str = ""
    """This node's id, as the other nodes know it; empty: the rendezvous does not say."""
    counts: RunCounts | None = None
    """The run's, where the rendezvous counts for all nodes."""

    def global_rank(self, local_rank: int) -> int:
        """Return the rank of a worker of this node among all workers of the round."""
        return self.base_rank + local_rank


class NodesWaiting(Record, frozen=True, kw_only=True, tag="nodes_waiting"):
    """Nodes wait to join; a new round would take them in."""

    count: int


class MemberLost(Record, frozen=True, kw_only=True, tag="member_lost"):
    """A node of the round is gone."""

    node_id: str


class RoundEnded(Record, frozen=True, kw_only=True, tag="round_ended"):
    """The round is over because nodes came or went: every node stops its workers and joins the next one.

    `stop_within_s` bounds the grace period: None leaves it as the user set it; a node that was cut off must be done
    before its lease ends.
    """

    reason: str
    lost: tuple[str, ...] = ()
    arrived: int = 0
    stop_within_s: float | None = None


class Decided(Record, frozen=True, kw_only=True, tag="decided"):
    """It was decided for the whole run; `failure` is what about, None where nothing failed."""

    decision: "Restart | Stop"
    failure: "Failure | None" = None
    evidence: str = ""
    """What is known of it from all nodes, as the agent that decided wrote it down; empty: no more than `failure`."""


class StopOrdered(Record, frozen=True, kw_only=True, tag="stop_ordered"):
    """A node has failed: every node stops its workers, then tells what it has seen, and waits for what is decided."""

    reason: str
    by: str = ""
    """The node."""


class Undecided(Record, frozen=True, kw_only=True, tag="undecided"):
    """Nobody can decide for the run, or can be told: this node must, alone.

    `final`: there will be no further round, so that all it can decide is how the run ends.
    """

    reason: str
    final: bool = False


class RendezvousClosed(Record, frozen=True, kw_only=True, tag="closed"):
    """The run's rendezvous was closed: no further round."""


class Suspended(Record, frozen=True, kw_only=True, tag="suspended"):
    """The backend can't tell; workers go on for a bounded time."""

    reason: str


class Resumed(Record, frozen=True, kw_only=True, tag="resumed"):
    """The backend can tell again."""


RoundChange = (
    NodesWaiting | MemberLost | RoundEnded | Decided | RendezvousClosed | Suspended | Resumed | StopOrdered | Undecided
)
"""What `RendezvousHandler.watch` may return."""


class OptionSpec(Record, frozen=True, kw_only=True):
    """One option that a plugin declares, read by `settings.option(name, kind)`; unknown ones are errors.

    `type` is one of `str`, `int`, `float`, `bool`, `duration` (`30s`, `5m`, seconds: a float); `least` and `most` bound
    numbers and durations; `unit` is for people. Without `default`, and not `required`, there may be no value.
    """

    name: str
    type: str = "str"
    default: str | int | float | bool | None = None
    required: bool = False
    unit: str = ""
    help: str = ""
    choices: tuple[str, ...] = ()
    """The values that there are, as they are typed; empty: any."""
    least: float | None = None
    most: float | None = None
    many: bool = False
    """A list, read by `settings.option_list`: between colons, or, of a flag, one by one. `default` has colons."""


class RunOption(OptionSpec, frozen=True, kw_only=True):
    """An option of a hook that is a flag of `elastic run`: an entry point of group `elastic_core.options`.

    `name` with underscores; the entry point has the flag's name, with dashes. A `bool` takes no value on the command
    line. The module that declares it is imported where the flag, its variable, or help is wanted: it imports nothing
    but `elastic_core.api`.
    """

    hook: str
    """Where the hook's class is, `package.module:Class`: imported and built only where one of its options is given."""
    heading: str = ""
    """Under which the help has it; empty: the distribution's name."""
    metavar: str = ""
    """What stands for the value in the help; empty: the unit, or the type."""
    default_note: str = ""
    """For the help, where there is no default: what holds without it."""
    fault: Callable[[str], str] | None = None
    """Says of a text what is needed in its place, empty if it will do; None: any will. `hint`: what to try instead."""
    hint: str = ""
    variable: str = ""
    """One of torch's, `TORCHELASTIC_…`, that gives the value too: an entry point of its name, in capitals, beside the
    flag's or in its place."""
    time_limit: bool = False
    """It limits how long workers may take for something: 0, without a limit, where `--debug-rank` has one debugged."""


class RendezvousSettings(Record, OptionValues, frozen=True, kw_only=True):
    """What a rendezvous plugin is built with. `options` holds its declared options, converted, defaults filled in."""

    run_id: str
    backend: str = "local"
    endpoint: str = ""
    min_nodes: int = 1
    max_nodes: int = 1
    local_world_size: int = 1
    role: str = "default"
    node_id: str = ""
    node_rank: int | None = None
    master_addr: str | None = None
    master_port: int | None = None
    local_addr: str | None = None
    monitor_interval_s: float = 0.1
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
    on_store_loss: str = "keep"
    """`keep` or `fail`: what workers do when the store stays away for longer than the grace."""
    options: Mapping[str, str | int | float | bool | None] = {}
    lists: Mapping[str, tuple[str | int | float | bool, ...]] = {}
    agent_port: int = 0
    """The UDP port at which this agent answers the others (`--agent-port`); 0: a free one."""


class PolicySettings(Record, OptionValues, frozen=True, kw_only=True):
    """What a FailureHandler is built with."""

    name: str
    max_restarts: int = 0
    restart_window_s: float | None = None
    restart_backoff_s: float = 0.5
    fatal_exit_codes: tuple[int, ...] = ()
    same_failure_limit: int | None = None
    run_id: str = ""
    min_nodes: int = 1
    max_nodes: int = 1
    options: Mapping[str, str | int | float | bool | None] = {}
    lists: Mapping[str, tuple[str | int | float | bool, ...]] = {}


class HookSettings(Record, OptionValues, frozen=True, kw_only=True):
    """What an AgentHook is built with; `entry_point` is as typed, `endpoint` without its secrets."""

    name: str
    run_id: str = ""
    run_dir: str = ""
    options: Mapping[str, str | int | float | bool | None] = {}
    lists: Mapping[str, tuple[str | int | float | bool, ...]] = {}
    node_id: str = ""
    role: str = ""
    backend: str = ""
    endpoint: str = ""
    entry_point: str = ""
    max_restarts: int = 0
    own_process: bool = True
    """Whether this process exists for the run alone; else a program runs it by a library call."""
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
    restarts_nodes: bool = False
    """Whether the backend can tell the other nodes of a restart that is asked for."""


# --- workers and their ends ---


class WorkerExit(Record, frozen=True, kw_only=True):
    """How one worker process ended.

    `code` is the exit code, or -N for death by signal N. `stop_signal` is the first signal that we had sent to it
    before it ended (None: it ended by itself) and `stop_sent_ns` when. `at_s`/`at_ns`: when the kernel told us.
    `runtime_s`: since its start.
    """

    local_rank: int
    global_rank: int
    pid: int
    code: int
    at_s: float
    at_ns: int
    runtime_s: float
    stop_signal: int | None = None
    stop_sent_ns: int | None = None
    oom_kills: int = 0
    """Kills by the memory controller of this node's cgroup that were counted during the round, up to this exit."""
    unreapable: bool = False
    """Still in uninterruptible sleep when we gave up waiting for it; `code` is then -SIGKILL."""


class ErrorRecord(Record, frozen=True, kw_only=True):
    """What a worker left about its own failure.

    `source` is where it was read: `hook` (ours), `record` (torch's @record or a file in its format), `faulthandler`,
    `stderr`. `frames` are (file, line, function, text) outermost first, without launcher frames.
    """

    source: str
    type: str
    message: str
    timestamp_ns: int
    frames: tuple[tuple[str, int, str, str], ...] = ()
    callstack: str = ""
    top_level_import: bool = False
    """A SyntaxError of the script, or an ImportError before any function of it ran."""


class FailureClass(enum.StrEnum):
    """What kind of thing went wrong first."""

    USER_EXCEPTION = "user exception"
    USAGE = "import or usage error"
    EXIT = "non-zero exit"
    SIGNAL = "signal"
    OOM_HOST = "out of memory on host"
    OOM_DEVICE = "out of memory on device"
    HANG = "hang"
    NODE_LOST = "node lost"
    PREEMPTED = "preempted"
    HEALTH_CHECK = "health check"
    RENDEZVOUS = "rendezvous"
    STORE = "store"
    START_UP = "start-up"


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
    origin: Origin
    failure_class: FailureClass
    summary: str
    """One line: `ValueError: boom`, `killed by SIGKILL (9)`, `exit code 7`."""
    at_ns: int
    """When it failed: the error file's time, else when the kernel told us."""
    error: ErrorRecord | None = None
    log_paths: tuple[str, ...] = ()
    log_tail: str = ""
    """The end of its stderr, where that is kept."""


class Failure(Record, frozen=True, kw_only=True):
    """What a FailureHandler decides about: the first cause, and how far the run had come.

    `at_s` and `uptime_s` are seconds: since the run began (with its first round, where nodes meet in a store: the same
    clock on all of them), and since the failed round's workers were started.
    `decision` is None for the failure at hand and set in the history.
    """

    failure_class: FailureClass
    summary: str
    node_id: str
    round_index: int
    at_s: float
    uptime_s: float
    exit_code: int = 1
    """The failed worker's own code, 128+N for death by signal N, 1 where there is no better."""
    global_rank: int | None = None
    local_rank: int | None = None
    exception_type: str = ""
    message: str = ""
    retryable: bool = True
    """False: trying again can't help (a missing script, a SyntaxError, an import that fails in the first attempt)."""
    signal: int | None = None
    """What killed the worker, unless it was our own; None: it ended by itself, or no worker is to blame."""
    log_tail: str = ""
    """The last 4 KiB of that worker's stderr, where it is kept; empty in the history."""
    fingerprint: str = ""
    """The same for failures of one kind: class, exception, place and message, without numbers that change."""
    progress: int | None = None
    """How far the run had come, in steps that only rise; None: not known."""
    node_count: int | None = None
    """How many nodes the failed round had; None: there was none, or it is not known."""
    membership_changes: int | None = None
    """How many rounds of the run had ended because nodes came or went; None: not known."""
    decision: "Restart | Stop | Ignore | None" = None
    spent: int = 0
    """In the history: how many restarts this failure and all before it have cost. It may no longer have each."""
    rule_counts: tuple[tuple[str, int], ...] = ()
    """Of the history's last failure: how often each rule has let the run go on, by its name in the decision."""


class NodeReport(Record, frozen=True, kw_only=True):
    """What one node has seen of a round that was stopped, for one decision about the whole run.

    `failure` is the first of its workers' that happened by itself, None where there was none; it happened `age_s`
    before this node ordered the stop, or heard of it (below 0: after). `collateral`: it says no more than that a peer
    was lost. Not `timed`: its worker has not said when it failed, so that is when it ended. `evidence` is text for
    whoever decides; the rendezvous only carries it. Not `final`: workers live.
    """

    node_id: str
    failure: Failure | None = None
    age_s: float = 0.0
    collateral: bool = False
    timed: bool = True
    failed_count: int = 0
    stopped_count: int = 0
    finished_count: int = 0
    progress: int | None = None
    """The furthest step that a worker of this node has said; None: none has."""
    evidence: str = ""
    final: bool = False


class RankStep(Record, frozen=True, kw_only=True):
    """How far one worker is."""

    global_rank: int
    step: int
    node_id: str = ""


class NodeSteps(Record, frozen=True, kw_only=True, omit_defaults=True):
    """How far the workers of one node are, for nodes that wonder whether theirs hang; None: nothing is known.

    `behind` are ranks that have not reached `max_step`, at most 8. `protected_s`: for how long a section is open.
    `quiet_s`: for how long nobody has read or written. `serial`: which question it answers.
    """

    serial: int
    node_id: str
    ranks: tuple[int, ...] = ()
    """All global ranks that say steps, at most 8."""
    max_step: int | None = None
    min_step: int | None = None
    behind: tuple[RankStep, ...] = ()
    protected_s: float = 0.0
    quiet_s: float | None = None


class RunSteps(Record, frozen=True, kw_only=True, omit_defaults=True):
    """The same of all nodes that have answered: `node_count` of them. `behind` are at most 16."""

    serial: int
    node_count: int = 0
    max_step: int | None = None
    min_step: int | None = None
    behind: tuple[RankStep, ...] = ()
    protected_s: float = 0.0
    quiet_s: float | None = None


class Restart(Record, frozen=True, kw_only=True, tag="restart"):
    """Start all workers again, after `delay_s`, without the nodes named; `rule` says which rule decided.

    `reason` is for the line about it: what makes one doubt that it helps, say.

    `exclude_s`: for how many seconds each of `exclude_nodes` stays out, in the same order; those behind its end stay so
    until the next decision. A node that the run needs to have enough comes back before.
    """

    delay_s: float = 0.0
    exclude_nodes: tuple[str, ...] = ()
    exclude_s: tuple[float, ...] = ()
    rule: str = ""
    reason: str = ""


class Stop(Record, frozen=True, kw_only=True, tag="stop"):
    """End the run; `outcome` is `failed` or `done`."""

    reason: str
    outcome: str = "failed"
    rule: str = ""


class Ignore(Record, frozen=True, kw_only=True, tag="ignore"):
    """Leave that worker down; the others run on."""

    rule: str = ""


Decision = Restart | Stop | Ignore
"""What a FailureHandler may return."""


# --- hooks ---


class Power(enum.StrEnum):
    """What a hook may do beside observing; a class states its own in `powers`."""

    LAUNCHES = "launches"
    """Change what is started: answer `on_workers_starting` with `Launches` or `AddEnvironment`."""
    RUN = "run"
    """Use the run's handle, `self.run`: report failures, ask for a restart or a drain, know the workers, set timers."""
    BEATS = "beats"
    """Have heartbeats taken, and sections: what workers say of themselves is known, by `self.run.beats()`."""
    FEED = "feed"
    """Take all that happens in the run, with its time: `on_run_event`, on a thread of its own."""
    REFUSAL = "refusal"
    """Keep this node out: answer `on_joining` or `on_workers_starting` with `Refuse`."""
    STARTS = "starts"
    """Start workers' processes: `worker_starter` gives a `WorkerStarter`."""


class AddEnvironment(Record, frozen=True, kw_only=True):
    """Answer to `on_workers_starting`: variables to add to every worker of this node."""

    variables: Mapping[str, str]


class LaunchChange(Record, frozen=True, kw_only=True):
    """What a hook changes about the start of one worker."""

    environment: Mapping[str, str] = {}
    """Variables to add; those that say what the worker is are the agent's."""
    processors: frozenset[int] | None = None
    """Those that it may run on, from its first instruction on; None: as inherited."""
    command: tuple[str, ...] = ()
    """A program with its arguments to put in front of the worker's command, as `numactl` or a profiler is."""


class Launches(Record, frozen=True, kw_only=True):
    """Answer to `on_workers_starting`: what to change about the start of this node's workers, by local rank."""

    workers: Mapping[int, LaunchChange]


def merged_changes(changes: Sequence[LaunchChange]) -> LaunchChange:
    """Return what several hooks change about one worker: of two values the later, of two commands both, in order."""
    return LaunchChange(
        environment={name: value for change in changes for name, value in change.environment.items()},
        processors=next((each.processors for each in reversed(changes) if each.processors is not None), None),
        command=tuple(word for change in changes for word in change.command),
    )


class Refuse(Record, frozen=True, kw_only=True):
    """Answer to `on_joining` or `on_workers_starting`: this node must not start workers now (a health gate)."""

    reason: str
