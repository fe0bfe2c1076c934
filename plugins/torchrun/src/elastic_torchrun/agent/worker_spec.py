"""What an agent is to run: torch's `WorkerSpec`."""

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any, Final

DEFAULT_ROLE: Final = "default"


# A dataclass, as in torch, unlike our own records: its users change fields of what they have made.
@dataclass
class WorkerSpec:
    """The workers of one node. Each node of a run may have another number of them, and other roles.

    Args:
        role: Name of these workers' role.
        local_world_size: How many workers this node has; more than 0.
        rdzv_handler: How nodes meet: a handler of ours, or one that was written for torch. None: there is one node.
        fn: Deprecated name of `entrypoint`.
        entrypoint: A function, or a program with `args` as its arguments.
        args: For each worker; `${local_rank}` in a text stands for the worker's.
        max_restarts: How often a failed run is started again.
        monitor_interval: Seconds between two looks at a handler that must be asked; more than 0. How workers do is
            told by the kernel.
        master_port: The port on which rank 0's worker listens; None: any free one.
        master_addr: Its address; None: that of node 0.
        local_addr: This node's address; None: by its host name.
        event_log_handler: Where events go, by name.
        numa_options: How workers are bound to cores; None: not at all.
        duplicate_stdout_filters: Lines of tee'd stdout that hold one of these are copied to a file of the round.
        duplicate_stderr_filters: Likewise stderr.
        virtual_local_rank: Each worker sees one device, and has `LOCAL_RANK=0`.

    Raises:
        AssertionError: there is no entrypoint, or a number is not above 0.
    """

    role: str
    local_world_size: int
    rdzv_handler: Any = None
    fn: Callable[..., Any] | None = None
    entrypoint: Callable[..., Any] | str | None = None
    args: tuple[Any, ...] = ()
    max_restarts: int = 3
    monitor_interval: float = 0.1
    master_port: int | None = None
    master_addr: str | None = None
    local_addr: str | None = None
    event_log_handler: str = "null"
    numa_options: Any = None
    duplicate_stdout_filters: list[str] | None = None
    duplicate_stderr_filters: list[str] | None = None
    virtual_local_rank: bool = False

    def __post_init__(self) -> None:
        _need(self.local_world_size > 0, f"local_world_size is {self.local_world_size}; expected 1 or more")
        _need(self.monitor_interval > 0, f"monitor_interval is {self.monitor_interval} s; expected more than 0")
        if self.fn:  # 0 and the like are none, as to torch
            text = "WorkerSpec.fn is deprecated: give the function as entrypoint"
            warnings.warn(text, category=DeprecationWarning, stacklevel=3)
            self.entrypoint = self.fn
        _need(bool(self.entrypoint), "there is no entrypoint; expected a function or a program")

    def get_entrypoint_name(self) -> str:
        """Return the function's qualified name, or the program's without its directories."""
        entrypoint = self.entrypoint
        if isinstance(entrypoint, str):
            return PurePath(entrypoint).name
        return str(getattr(entrypoint, "__qualname__", type(entrypoint).__qualname__))


def _need(holds: bool, text: str) -> None:
    if not holds:  # the class that torch's callers know
        raise AssertionError(f"WorkerSpec: {text}")
