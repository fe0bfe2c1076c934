"""Options about what happens afterwards: restarts, logs, signals."""

from elastic_core.options.option import OptionRow, Section, row

UPKEEP: tuple[OptionRow, ...] = (
    # --- restarts ---
    row(
        Section.RESTARTS,
        "max-restarts",
        "N",
        "How many times a failed worker group is started again before the run fails; 0: never.",
        default="0",
        torch=True,
    ),
    row(
        Section.RESTARTS,
        "restart-window",
        "SECONDS",
        "Count only the restarts of the last SECONDS against --max-restarts.",
        default_note="the whole run",
    ),
    row(
        Section.RESTARTS,
        "restart-backoff",
        "SECONDS",
        "Wait before a second restart when workers fail soon after their start; doubles each time, up to 30 s; 0: no "
        "wait.",
        default="0.5",
    ),
    row(
        Section.RESTARTS,
        "max-membership-changes",
        "N",
        "How often workers may be started again because nodes came or went, before the run fails.",
        default_note="any number of times",
    ),
    row(
        Section.RESTARTS,
        "fatal-exit-codes",
        "LIST",
        "Exit codes that are not retried, such as 3,64-78.",
        default_note="none",
    ),
    row(
        Section.RESTARTS,
        "same-failure-limit",
        "N",
        "End the run when the same exception comes from the same place for the Nth time in a row, and got no further.",
        default_note="no limit",
    ),
    row(
        Section.RESTARTS,
        "policy",
        "NAME|FILE",
        "Failure handler that decides between restart and stop ('elastic plugins' lists what is installed), or a rule "
        "file, such as rules.yaml, for elastic-policy-rules.",
        default="intensity",
    ),
    row(
        Section.RESTARTS,
        "policy-conf",
        "K=V",
        "Option of the failure handler (repeatable, or K=V,K=V).",
        many=True,
    ),
    row(
        Section.RESTARTS,
        "exit-timeout",
        "SECONDS",
        "How long a worker may take to end after an uncaught exception; then it is stopped, and has failed with that "
        "exception. Exit handlers and threads may need the time. 0: any time.",
        default="5",
    ),
    row(
        Section.RESTARTS,
        "hang-timeout",
        "SECONDS",
        "Workers that give no sign of life for so long hang, which is a failure: no heartbeat "
        "(elastic_core.worker.heartbeat), or, where the script sends none, nothing written or read. Stacks are kept at "
        "half of it. 0: never.",
        default="0",
    ),
    row(
        Section.RESTARTS,
        "startup-timeout",
        "SECONDS",
        "How long it may take from a worker's start to its first heartbeat, or first output. 0: any time.",
        default="0",
    ),
    row(
        Section.RESTARTS,
        "standby",
        None,
        "Keep a spare interpreter beside each worker, with torch imported, that takes its place at a restart: workers "
        "are back without the seconds that the import takes. Costs memory: about 160 MiB for each worker with a CPU "
        "build of torch.",
    ),
    row(
        Section.RESTARTS,
        "standby-imports",
        "MODULES",
        "What standby workers import ahead; nothing that starts threads, opens a device, or looks at its rank.",
        default="torch,torch.distributed",
    ),
    # --- logs ---
    row(
        Section.LOGS,
        "log-dir",
        "DIR",
        "Base directory for log files; each run makes its own directory in it. /dev/null: no log files.",
        default_note="the run directory",
        torch=True,
    ),
    row(
        Section.LOGS,
        "redirects",
        "STD",
        "Streams that go to a file instead of the console: 0 none, 1 stdout, 2 stderr, 3 both, or RANK:STD,... for "
        "some local ranks.",
        short="r",
        default="0",
        torch=True,
    ),
    row(
        Section.LOGS,
        "tee",
        "STD",
        "Streams that go to a file and to the console; values as for --redirects.",
        short="t",
        default="0",
        torch=True,
    ),
    row(
        Section.LOGS,
        "local-ranks-filter",
        "RANKS",
        "Local ranks whose output reaches the console, such as 0,2; files are not affected.",
        default="",
        default_note="all",
        torch=True,
    ),
    row(
        Section.LOGS,
        "duplicate-stdout-filters",
        "TEXTS",
        "Copy lines of tee'd stdout that contain one of these texts to filtered_stdout.log, such as loss,lr; ',,' is a "
        "comma in a text.",
        default="",
        default_note="none",
        torch=True,
    ),
    row(
        Section.LOGS,
        "duplicate-stderr-filters",
        "TEXTS",
        "The same for stderr, to filtered_stderr.log.",
        default="",
        default_note="none",
        torch=True,
    ),
    row(
        Section.LOGS,
        "log-max-size",
        "SIZE",
        "Rotate a worker's log file that would be larger, such as 100M (K, M, G), between two lines: stdout.log "
        "becomes stdout.log.1. Redirected streams then pass through the agent.",
        default_note="no limit",
    ),
    row(
        Section.LOGS,
        "log-backups",
        "N",
        "How many full log files stay beside the one that is written, with --log-max-size; 0: none.",
        default="5",
    ),
    row(
        Section.LOGS,
        "logs-specs",
        "NAME",
        "Have an installed class say where output goes: the entry point NAME of group torchrun.logs_specs.",
        default_note="files as described here",
        torch=True,
    ),
    row(
        Section.LOGS,
        "run-dir",
        "DIR",
        "Where this run keeps its files and its incident report; kept after success too.",
        default_note="a temporary one, removed on success",
    ),
    # --- signals and stop ---
    row(
        Section.SIGNALS,
        "signals-to-handle",
        "NAMES",
        "Signals that are passed on to the workers; SIGTERM, SIGINT, SIGHUP and SIGQUIT also end the run.",
        default="SIGTERM,SIGINT,SIGHUP,SIGQUIT",
        torch=True,
    ),
    row(
        Section.SIGNALS,
        "shutdown-timeout",
        "SECONDS",
        "Grace period of a worker that is told to stop, whatever the reason; then SIGKILL.",
        default_note="TORCH_ELASTIC_SHUTDOWN_TIMEOUT, else 30",
        torch=True,
    ),
)
