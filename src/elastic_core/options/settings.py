"""The options of a run, resolved: what the command line (or a caller of the library) hands to the launcher."""

from collections.abc import Mapping

from elastic_core.types import Record
from elastic_core.workers.functions.call import FunctionCall

DEFAULT_SIGNALS = ("SIGTERM", "SIGINT", "SIGHUP", "SIGQUIT")


class Entrypoint(Record, frozen=True, kw_only=True):
    """What each worker executes.

    `argv` is complete (interpreter first where there is one); `${local_rank}` in it is replaced per worker. `script` is
    the file that must exist and be readable before anything starts (None: not a file), `python` whether our worker
    hooks can work in it.
    """

    argv: tuple[str, ...]
    name: str
    """For people: the script, module or program as typed."""
    script: str | None = None
    module: str | None = None
    python: bool = True
    function: FunctionCall | None = None
    """What workers call instead of running a program; `argv` is then the interpreter and a name for people."""


class RunSettings(Record, frozen=True, kw_only=True):
    """One run on this node, every value resolved. Defaults are torchrun's; times in seconds."""

    entrypoint: Entrypoint
    min_nodes: int = 1
    max_nodes: int = 1
    nproc_per_node: int = 1
    nproc_source: str = ""
    """What that number was derived from: `gpu`, `auto`, `cpu`, `xpu` or `--devices`; empty: it was typed."""
    devices: tuple[str, ...] = ()
    """`--devices`: the visible device for each local rank; empty: as inherited."""
    device_variable: str = "CUDA_VISIBLE_DEVICES"
    run_id: str
    role: str = "default"
    rdzv_backend: str = "local"
    rdzv_endpoint: str = ""
    rdzv_conf: Mapping[str, str] = {}
    rdzv_attempt: int = 0
    """How often the scheduler has begun the run again."""
    rdzv_attempt_given: bool = False
    """Whether that, or the job with it, tells this attempt from all others."""
    rdzv_job: str = ""
    """The scheduler's name of the job; empty: not known."""
    spares: int | None = None
    """How many surplus nodes may wait in reserve; None: any number."""
    allow_mismatch: tuple[str, ...] = ()
    """In what this node may differ from the run that it joins: keys of the fingerprint."""
    max_membership_changes: int | None = None
    """How many rounds may end because nodes came or went; None: any number."""
    store_outage_grace_s: float = 120.0
    on_store_loss: str = "keep"
    node_rank: int | None = None
    """With 'static' what it is, elsewhere a wish; None: none."""
    master_addr: str | None = None
    master_port: int | None = None
    local_addr: str | None = None
    agent_port: int = 0
    """The UDP port at which this agent answers the others; 0: a free one."""
    agent_store: bool = False
    """A process beside the agent of node 0 hosts the workers' torch store, not the worker with rank 0."""
    node_id: str = ""
    max_restarts: int = 0
    restart_window_s: float | None = None
    same_failure_limit: int | None = None
    restart_backoff_s: float = 0.5
    fatal_exit_codes: tuple[int, ...] = ()
    policy: str = "intensity"
    policy_conf: Mapping[str, str] = {}
    exit_timeout_s: float = 5.0
    """How long a worker whose uncaught exception is on record may take to end; 0: for ever."""
    hang_timeout_s: float = 0.0
    """How long workers may give no sign of life; 0: for ever."""
    startup_timeout_s: float = 0.0
    """How long they may take to the first one; 0: for ever."""
    uninterruptible_timeout_s: float = 0.0
    """How long a worker may be in uninterruptible sleep; 0: for ever."""
    file_timer: bool = False
    """Whether workers may set timers through a pipe."""
    timer_file: str = ""
    """The pipe's path; empty: one in the run directory."""
    health_check_port: int | None = None
    """Where probes are answered over HTTP; 0: a free port, None: nowhere."""
    monitor_interval_s: float = 0.1
    log_dir: str | None = None
    """None: none asked for; `os.devnull`: no log files."""
    redirects: str = "0"
    tee: str = "0"
    local_ranks_filter: str = ""
    log_line_prefix_template: str | None = None
    duplicate_stdout_filters: tuple[str, ...] = ()
    """Lines of tee'd stdout that hold one of these are copied to a file of the round; empty: none."""
    duplicate_stderr_filters: tuple[str, ...] = ()
    logs_specs: str | None = None
    """Entry point of group `torchrun.logs_specs` whose class says where output goes; None: our own layout."""
    log_max_bytes: int | None = None
    """A log file that would be larger is rotated; None: never."""
    log_backups: int = 5
    run_dir: str | None = None
    metrics_handlers: tuple[str, ...] = ()
    """Where the agent's metrics go, each `NAME` or `NAME:CONF`."""
    metrics_host: str = "127.0.0.1"
    metrics_port: int | None = None
    """Where they are served for Prometheus; 0: a free port, None: nowhere."""
    event_log_handler: str = "null"
    """Where events go: `NAME` or `NAME:CONF`."""
    signals_to_handle: tuple[str, ...] = DEFAULT_SIGNALS
    shutdown_timeout_s: float = 30.0
    virtual_local_rank: bool = False
    omp_threads: int | None = None
    """What to export as OMP_NUM_THREADS; None: leave as inherited."""
    debug_rank: int | None = None
    worker_hooks: bool = True
    control_plane: bool = True
    """Whether the agent answers `elastic ctl`, and workers are told where they may."""
    standby: bool = False
    standby_imports: tuple[str, ...] = ("torch", "torch.distributed")
    """What a standby worker imports ahead, if it is installed."""
    disabled_plugins: tuple[str, ...] = ()
    hook_options: Mapping[str, str | int | float | bool | None] = {}
    """Options that hooks bring, by name: those that were given; each chooses its hook."""
    notices: tuple[str, ...] = ()
    """Lines that the user must see before the workers start (what has no effect)."""
