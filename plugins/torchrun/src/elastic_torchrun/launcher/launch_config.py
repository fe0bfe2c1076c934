"""torch's `LaunchConfig`: what `elastic_launch` is told, under torch's names."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from elastic_core.api import ConfigError
from elastic_core.embedding import DEFAULT_SIGNALS

SHUTDOWN_VARIABLE: Final = "TORCH_ELASTIC_SHUTDOWN_TIMEOUT"
DEFAULT_SHUTDOWN_S: Final = 30


# A dataclass, as in torch, unlike our own records: its users change fields of what they have made.
@dataclass
class LaunchConfig:
    """What to run where. The defaults are torch's; nothing in it is changed by a launch.

    Args:
        min_nodes: The fewest nodes with which workers start.
        max_nodes: The most that take part.
        nproc_per_node: Workers on this node.
        logs_specs: Where workers' output goes; None: to the console.
        run_id: The run's name, the same on all nodes; empty: a fresh one, which a log line names where other nodes
            could join.
        role: Name of the workers' role.
        rdzv_endpoint: Where nodes meet. With `c10d`, a name without a port has 29400, port 0 is a free one of this
            node's, and empty is this node.
        rdzv_backend: How they do. With `etcd`, the default, and no endpoint, one node meets nobody.
        rdzv_configs: The backend's options.
        rdzv_timeout: Deprecated: `rdzv_configs["timeout"]`; -1: not given.
        max_restarts: How often a failed run is started again.
        monitor_interval: Seconds between two looks at a backend that must be asked.
        start_method: How processes that call a function begin: `spawn`, `fork` or `forkserver`.
        log_line_prefix_template: What stands before each tee'd line: `${role_name}`, `${rank}`, `${local_rank}`.
        metrics_cfg: Where the agent's metrics go: `handler` and `port`, as `--metrics-handler` and `--metrics-port`
            take them. Other keys have no effect; with torch none has.
        local_addr: This node's address; None: by its host name.
        event_log_handler: Where events go, by name.
        numa_options: How workers are bound to cores; None: not at all.
        signals_to_handle: Those that end the run, with commas between them.
        duplicate_stdout_filters: Lines of tee'd stdout that hold one of these are copied to a file of the round.
        duplicate_stderr_filters: Likewise stderr.
        virtual_local_rank: Each worker sees one device, and has `LOCAL_RANK=0`.
        shutdown_timeout: Seconds from SIGTERM to SIGKILL; None: `TORCH_ELASTIC_SHUTDOWN_TIMEOUT`, else 30.

    Raises:
        ValueError: `shutdown_timeout` is below 0.
    """

    min_nodes: int
    max_nodes: int
    nproc_per_node: int
    logs_specs: Any = None
    run_id: str = ""
    role: str = "default_role"
    rdzv_endpoint: str = ""
    rdzv_backend: str = "etcd"
    rdzv_configs: dict[str, Any] = field(default_factory=dict)
    rdzv_timeout: int = -1
    max_restarts: int = 3
    monitor_interval: float = 0.1
    start_method: str = "spawn"
    log_line_prefix_template: str | None = None
    metrics_cfg: dict[str, str] = field(default_factory=dict)
    local_addr: str | None = None
    event_log_handler: str = "null"
    numa_options: Any = None
    signals_to_handle: str = ",".join(DEFAULT_SIGNALS)
    duplicate_stdout_filters: list[str] | None = None
    duplicate_stderr_filters: list[str] | None = None
    virtual_local_rank: bool = False
    shutdown_timeout: int | None = None

    def __post_init__(self) -> None:
        self.rdzv_configs = dict(self.rdzv_configs)  # our own: the caller's stays as it is
        if self.rdzv_timeout != -1:
            self.rdzv_configs["timeout"] = self.rdzv_timeout
        if self.shutdown_timeout is None:
            self.shutdown_timeout = shutdown_timeout_from(os.environ)
        elif self.shutdown_timeout < 0:
            raise ValueError(f"shutdown_timeout is {self.shutdown_timeout} s; expected 0 or more")


def shutdown_timeout_from(environ: Mapping[str, str]) -> int:
    """Return what the environment says, else 30.

    Raises:
        ConfigError: it says no number of seconds.
    """
    text = environ.get(SHUTDOWN_VARIABLE) or str(DEFAULT_SHUTDOWN_S)
    if not text.strip().isdecimal():
        what = f"{SHUTDOWN_VARIABLE}: {text!r}; expected whole seconds, 0 or more"
        raise ConfigError(what, hint=f"{SHUTDOWN_VARIABLE}={DEFAULT_SHUTDOWN_S}")
    return int(text)
