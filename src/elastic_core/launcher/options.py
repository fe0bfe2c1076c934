"""The options of `elastic run`, one row each: names, environment variable, default, and what people read about them.

Rows with `torch` are torchrun's, with its default and meaning; a test compares them with torch's own parser. Values
stay text here: `launcher.values` reads them, the same way wherever they come from.
"""

import enum

from elastic_core.types import Record


class Section(enum.StrEnum):
    """Where an option stands in the help."""

    WORKERS = "Workers"
    NODES = "Nodes and rendezvous"
    RESTARTS = "Restarts"
    LOGS = "Logs"
    SIGNALS = "Signals and stop"
    DEBUGGING = "Debugging"
    COMPATIBILITY = "Compatibility"


class OptionRow(Record, frozen=True, kw_only=True):
    """One option.

    `default` is text as a user would type it; None: no default, or derived. `metavar` None makes it a flag. `env` is
    the variable that gives its value where the command line does not. `many`: may be given more than once.
    """

    name: str
    short: str | None = None
    metavar: str | None = None
    default: str | None = None
    default_note: str = ""
    """For the help, where the default is derived."""
    section: Section
    help: str
    torch: bool = False
    many: bool = False
    env: str | None = None
    choices: tuple[str, ...] = ()

    @property
    def dest(self) -> str:
        """The option as an identifier."""
        return self.name.replace("-", "_")

    @property
    def spellings(self) -> tuple[str, ...]:
        """Every way to type it in full, the one with dashes first."""
        long = (f"--{self.name}",) if "-" not in self.name else (f"--{self.name}", f"--{self.dest}")
        return long if self.short is None else (f"-{self.short}", *long)


def _row(
    section: Section,
    name: str,
    metavar: str | None,
    help_text: str,
    *,
    default: str | None = None,
    default_note: str = "",
    short: str | None = None,
    torch: bool = False,
    many: bool = False,
    env: bool = True,
    choices: tuple[str, ...] = (),
) -> OptionRow:
    return OptionRow(
        name=name,
        short=short,
        metavar=metavar,
        default=default,
        default_note=default_note,
        section=section,
        help=help_text,
        torch=torch,
        many=many,
        env="PET_" + name.replace("-", "_").upper() if env else None,
        choices=choices,
    )


OPTIONS: tuple[OptionRow, ...] = (
    # --- workers ---
    _row(
        Section.WORKERS,
        "nproc-per-node",
        "N|auto|gpu|cpu|xpu",
        "Workers on this node: a number, or one per GPU, CPU core or XPU; auto: one per accelerator, else per core.",
        default="1",
        torch=True,
    ),
    _row(
        Section.WORKERS,
        "module",
        None,
        "SCRIPT is a module name, run as with 'python -m'.",
        short="m",
        torch=True,
    ),
    _row(
        Section.WORKERS,
        "no-python",
        None,
        "SCRIPT is a program of any kind: run it as it is, without the Python interpreter.",
        torch=True,
    ),
    _row(
        Section.WORKERS,
        "devices",
        "LIST",
        "GPUs to use, such as 1,3,5 (or their UUIDs). All workers see the whole list and LOCAL_RANK indexes it; with "
        "--virtual-local-rank each sees its own one. Numbers count within an inherited list of visible devices.",
        default_note="all that are visible",
    ),
    _row(
        Section.WORKERS,
        "omp-threads",
        "auto|N",
        "OMP_NUM_THREADS of each worker; auto: usable cores divided by workers, at least 1.",
        default_note="as inherited; 1 where it is unset and there are several workers",
    ),
    _row(
        Section.WORKERS,
        "virtual-local-rank",
        None,
        "LOCAL_RANK is 0 in every worker, and each sees only its own device.",
        torch=True,
    ),
    _row(Section.WORKERS, "role", "NAME", "Role of the workers, for their names.", default="default", torch=True),
    # --- nodes and rendezvous ---
    _row(
        Section.NODES,
        "nnodes",
        "N|MIN:MAX",
        "Number of nodes, or the fewest to start with and the most to take in.",
        default="1:1",
        torch=True,
    ),
    _row(
        Section.NODES,
        "standalone",
        None,
        "One node on its own: no rendezvous; overrides the --rdzv-... options.",
        torch=True,
    ),
    _row(
        Section.NODES,
        "rdzv-backend",
        "NAME",
        "How the nodes find each other; 'elastic plugins' lists what is installed. One node alone needs none: with the "
        "default and no endpoint it uses 'local'.",
        default="static",
        torch=True,
    ),
    _row(
        Section.NODES,
        "rdzv-endpoint",
        "HOST[:PORT]",
        "Where the rendezvous backend is, in its own form; left out, each backend has its own default.",
        default="",
        torch=True,
    ),
    _row(
        Section.NODES,
        "rdzv-id",
        "ID",
        "Name of the run, the same on all nodes; needed with several nodes, except for 'static'.",
        default="none",
        default_note="a fresh one on one node",
        torch=True,
    ),
    _row(
        Section.NODES,
        "rdzv-conf",
        "K=V,K=V",
        "Options of the rendezvous backend; times in seconds.",
        default="",
        torch=True,
    ),
    _row(
        Section.NODES,
        "node-rank",
        "N",
        "Rank of this node with the 'static' backend; with others a wish, met where that rank is free.",
        default="0",
        torch=True,
    ),
    _row(
        Section.NODES,
        "master-addr",
        "HOST",
        "MASTER_ADDR, the address of node 0; for the 'static' backend, and for one node.",
        default="127.0.0.1",
        torch=True,
    ),
    _row(
        Section.NODES,
        "master-port",
        "PORT",
        "MASTER_PORT, where rank 0 listens; for the 'static' backend, and for one node.",
        default_note="29500; a free port on one node",
        torch=True,
    ),
    _row(
        Section.NODES,
        "local-addr",
        "HOST",
        "Address of this node, as the others can reach it.",
        default_note="found out",
        torch=True,
    ),
    _row(
        Section.NODES,
        "agent-store",
        None,
        "Host the workers' torch store in a process beside node 0's agent, not in the worker with rank 0; the first "
        "start then waits until that process has imported torch.",
    ),
    _row(
        Section.NODES,
        "node-id",
        "ID",
        "Name of this node in logs and reports.",
        default_note="host name",
    ),
    _row(
        Section.NODES,
        "rdzv-attempt",
        "N",
        "Which attempt at the run this is, the same on all nodes; another one begins a run anew where the last has "
        "ended.",
        default_note="the scheduler's count of restarts (Slurm, JobSet, AWS Batch), else 0",
    ),
    _row(
        Section.NODES,
        "spares",
        "K",
        "How many nodes beyond the most that --nnodes takes in may wait, to step in for one that is lost; more are "
        "sent home.",
        default_note="any number",
    ),
    _row(
        Section.NODES,
        "allow-mismatch",
        "KEY,KEY",
        "In what this node may differ from the run that it joins (repeatable): nproc, role, nnodes, entrypoint, "
        "arguments, backend_options, torch, python, policy.",
        many=True,
    ),
    _row(
        Section.NODES,
        "join-timeout",
        "SECONDS",
        "How long to wait for the fewest nodes; as join_timeout=SECONDS in --rdzv-conf.",
        default_note="600",
    ),
    _row(
        Section.NODES,
        "connect-timeout",
        "SECONDS",
        "How long to try to reach the backend's server at first; as connect_timeout=SECONDS in --rdzv-conf.",
        default_note="60",
    ),
    _row(
        Section.NODES,
        "store-outage-grace",
        "SECONDS",
        "How long workers train on when the backend's server is away from all nodes, before --on-store-loss holds.",
        default="120",
    ),
    _row(
        Section.NODES,
        "on-store-loss",
        "keep|fail",
        "When the server stays away: keep the workers until they end, or fail the run.",
        default="keep",
        choices=("keep", "fail"),
    ),
    # --- restarts ---
    _row(
        Section.RESTARTS,
        "max-restarts",
        "N",
        "How many times a failed worker group is started again before the run fails; 0: never.",
        default="0",
        torch=True,
    ),
    _row(
        Section.RESTARTS,
        "restart-window",
        "SECONDS",
        "Count only the restarts of the last SECONDS against --max-restarts.",
        default_note="the whole run",
    ),
    _row(
        Section.RESTARTS,
        "restart-backoff",
        "SECONDS",
        "Wait before a second restart when workers fail soon after their start; doubles each time, up to 30 s; 0: no "
        "wait.",
        default="0.5",
    ),
    _row(
        Section.RESTARTS,
        "max-membership-changes",
        "N",
        "How often workers may be started again because nodes came or went, before the run fails.",
        default_note="any number of times",
    ),
    _row(
        Section.RESTARTS,
        "fatal-exit-codes",
        "LIST",
        "Exit codes that are not retried, such as 3,64-78.",
        default_note="none",
    ),
    _row(
        Section.RESTARTS,
        "policy",
        "NAME|FILE",
        "Failure handler that decides between restart and stop ('elastic plugins' lists what is installed), or a rule "
        "file, such as rules.yaml, for elastic-policy-rules.",
        default="intensity",
    ),
    _row(
        Section.RESTARTS,
        "policy-conf",
        "K=V",
        "Option of the failure handler (repeatable, or K=V,K=V).",
        many=True,
    ),
    _row(
        Section.RESTARTS,
        "hang-timeout",
        "SECONDS",
        "Workers that give no sign of life for so long hang, which is a failure: no heartbeat "
        "(elastic_core.worker.heartbeat), or, where the script sends none, nothing written or read. Stacks are kept at "
        "half of it. 0: never.",
        default="0",
    ),
    _row(
        Section.RESTARTS,
        "startup-timeout",
        "SECONDS",
        "How long it may take from a worker's start to its first heartbeat, or first output. 0: any time.",
        default="0",
    ),
    _row(
        Section.RESTARTS,
        "standby",
        None,
        "Keep a spare interpreter beside each worker, with torch imported, that takes its place at a restart: workers "
        "are back without the seconds that the import takes. Costs memory: about 160 MiB for each worker with a CPU "
        "build of torch.",
    ),
    _row(
        Section.RESTARTS,
        "standby-imports",
        "MODULES",
        "What standby workers import ahead; nothing that starts threads, opens a device, or looks at its rank.",
        default="torch,torch.distributed",
    ),
    # --- logs ---
    _row(
        Section.LOGS,
        "log-dir",
        "DIR",
        "Base directory for log files; each run makes its own directory in it. /dev/null: no log files.",
        default_note="the run directory",
        torch=True,
    ),
    _row(
        Section.LOGS,
        "redirects",
        "STD",
        "Streams that go to a file instead of the console: 0 none, 1 stdout, 2 stderr, 3 both, or RANK:STD,... for "
        "some local ranks.",
        short="r",
        default="0",
        torch=True,
    ),
    _row(
        Section.LOGS,
        "tee",
        "STD",
        "Streams that go to a file and to the console; values as for --redirects.",
        short="t",
        default="0",
        torch=True,
    ),
    _row(
        Section.LOGS,
        "local-ranks-filter",
        "RANKS",
        "Local ranks whose output reaches the console, such as 0,2; files are not affected.",
        default="",
        default_note="all",
        torch=True,
    ),
    _row(
        Section.LOGS,
        "duplicate-stdout-filters",
        "TEXTS",
        "Copy lines of tee'd stdout that contain one of these texts to filtered_stdout.log, such as loss,lr; ',,' is a "
        "comma in a text.",
        default="",
        default_note="none",
        torch=True,
    ),
    _row(
        Section.LOGS,
        "duplicate-stderr-filters",
        "TEXTS",
        "The same for stderr, to filtered_stderr.log.",
        default="",
        default_note="none",
        torch=True,
    ),
    _row(
        Section.LOGS,
        "log-max-size",
        "SIZE",
        "Rotate a worker's log file that would be larger, such as 100M (K, M, G), between two lines: stdout.log "
        "becomes stdout.log.1. Redirected streams then pass through the agent.",
        default_note="no limit",
    ),
    _row(
        Section.LOGS,
        "log-backups",
        "N",
        "How many full log files stay beside the one that is written, with --log-max-size; 0: none.",
        default="5",
    ),
    _row(
        Section.LOGS,
        "logs-specs",
        "NAME",
        "Have an installed class say where output goes: the entry point NAME of group torchrun.logs_specs.",
        default_note="files as described here",
        torch=True,
    ),
    _row(
        Section.LOGS,
        "run-dir",
        "DIR",
        "Where this run keeps its files and its incident report; kept after success too.",
        default_note="a temporary one, removed on success",
    ),
    # --- signals and stop ---
    _row(
        Section.SIGNALS,
        "signals-to-handle",
        "NAMES",
        "Signals that are passed on to the workers; SIGTERM, SIGINT, SIGHUP and SIGQUIT also end the run.",
        default="SIGTERM,SIGINT,SIGHUP,SIGQUIT",
        torch=True,
    ),
    _row(
        Section.SIGNALS,
        "shutdown-timeout",
        "SECONDS",
        "Grace period of a worker that is told to stop, whatever the reason; then SIGKILL.",
        default_note="TORCH_ELASTIC_SHUTDOWN_TIMEOUT, else 30",
        torch=True,
    ),
    # --- debugging ---
    _row(
        Section.DEBUGGING,
        "dry-run",
        None,
        "Show the resolved configuration with the origin of each value, and each worker's command and environment; "
        "start nothing.",
        env=False,
    ),
    _row(
        Section.DEBUGGING,
        "timings",
        None,
        "At the end, say on stderr where this run's milliseconds went.",
        env=False,
    ),
    _row(
        Section.DEBUGGING,
        "debug-rank",
        "N",
        "Give the terminal to this local rank, so that pdb works in it; time limits are off.",
    ),
    _row(
        Section.DEBUGGING,
        "no-worker-hooks",
        None,
        "Don't let our hook in the worker's interpreter record uncaught exceptions.",
    ),
    _row(
        Section.DEBUGGING,
        "plugin",
        "no:NAME",
        "Leave out the installed agent hook NAME (repeatable).",
        short="p",
        many=True,
        env=False,
    ),
    # --- compatibility ---
    _row(
        Section.COMPATIBILITY,
        "monitor-interval",
        "SECONDS",
        "Matters only for rendezvous handlers without push, which are asked that often whether nodes wait; workers are "
        "never polled, their end is known at once.",
        default="0.1",
        torch=True,
    ),
    _row(
        Section.COMPATIBILITY,
        "start-method",
        "METHOD",
        "How worker functions are started: spawn, fork or forkserver. Not available yet: ignored with a notice.",
        default="spawn",
        torch=True,
        choices=("spawn", "fork", "forkserver"),
    ),
    _row(
        Section.COMPATIBILITY,
        "run-path",
        None,
        "Run the script as a function in a forked interpreter. Not available yet: refused.",
        torch=True,
    ),
    _row(
        Section.COMPATIBILITY,
        "event-log-handler",
        "NAME",
        "Where events are recorded. Other than null not available yet: ignored with a notice.",
        default="null",
        torch=True,
    ),
    _row(
        Section.COMPATIBILITY,
        "numa-binding",
        "MODE",
        "Bind workers to the cores near their GPU: node, socket, exclusive or core-complex. Not available yet: ignored "
        "with a notice.",
        torch=True,
        choices=("node", "socket", "exclusive", "core-complex"),
    ),
)

BY_DEST: dict[str, OptionRow] = {row.dest: row for row in OPTIONS}
"""The rows by identifier."""
