"""Torch's `LaunchConfig`: the settings of `elastic_launch`, under torch's names."""

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
    """The settings of a launch, with torch's defaults. A launch does not change them.

    Args:
        min_nodes: The fewest nodes with which workers start.
        max_nodes: The most nodes.
        nproc_per_node: The number of workers on this node.
        logs_specs: Destination of workers' output. `None` means the console.
        run_id: The run's id, the same on all nodes. Empty means a new one, which is logged if other nodes can join.
        role: Name of the workers' role.
        rdzv_endpoint: Endpoint of the rendezvous. With `c10d`, a name without a port has 29400, port 0 is a free one on
            this node, and empty means this node.
        rdzv_backend: Rendezvous backend. With `etcd`, the default, and no endpoint, the run has one node only.
        rdzv_configs: The backend's options.
        rdzv_timeout: Deprecated, use `rdzv_configs["timeout"]`; -1 means not set.
        max_restarts: The most restarts of a failed run.
        monitor_interval: Seconds between two polls of a backend that must be polled.
        start_method: How processes that call a function start: `spawn`, `fork` or `forkserver`.
        log_line_prefix_template: Prefix of each tee'd line: `${role_name}`, `${rank}`, `${local_rank}`.
        metrics_cfg: Destination of the agent's metrics: `handler` and `port`, as in `--metrics-handler` and
            `--metrics-port`. Other keys have no effect; in torch, no key has one.
        local_addr: This node's address. `None` means that of its host name.
        event_log_handler: Name of the destination of events.
        numa_options: Binding of workers to cores. `None` means no binding.
        signals_to_handle: The signals that end the run, separated by commas.
        duplicate_stdout_filters: Lines of tee'd stdout that contain one of these are copied to a file of the round.
        duplicate_stderr_filters: The same for stderr.
        virtual_local_rank: Whether each worker sees one device, and has `LOCAL_RANK=0`.
        shutdown_timeout: Seconds from SIGTERM to SIGKILL. `None` means `TORCH_ELASTIC_SHUTDOWN_TIMEOUT`, else 30.

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
    """Return the seconds in the environment variable, else 30.

    Raises:
        ConfigError: the variable is not a number of seconds.
    """
    text = environ.get(SHUTDOWN_VARIABLE) or str(DEFAULT_SHUTDOWN_S)
    if not text.strip().isdecimal():
        what = f"{SHUTDOWN_VARIABLE}: {text!r}; expected whole seconds, 0 or more"
        raise ConfigError(what, hint=f"{SHUTDOWN_VARIABLE}={DEFAULT_SHUTDOWN_S}")
    return int(text)
