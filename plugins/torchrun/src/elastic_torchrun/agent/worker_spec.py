"""Torch's `WorkerSpec`: the workers that an agent runs."""

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any, Final

DEFAULT_ROLE: Final = "default"


# A dataclass, as in torch, unlike our own records: its users change fields of what they have made.
@dataclass
class WorkerSpec:
    """The workers of one node. Nodes of a run may have different numbers of workers, and different roles.

    Args:
        role: Name of these workers' role.
        local_world_size: The number of workers on this node; above 0.
        rdzv_handler: Rendezvous handler, elastic-core's or one written for torch. `None` means a single node.
        fn: Deprecated name of `entrypoint`.
        entrypoint: A function, or a program with `args` as its arguments.
        args: Arguments of each worker. `${local_rank}` in a text is replaced by the worker's local rank.
        max_restarts: The most restarts of a failed run.
        monitor_interval: Seconds between two polls of a handler that must be polled; above 0. The kernel notifies the
            agent when a worker ends.
        master_port: The port of rank 0's worker. `None` means any free port.
        master_addr: The address of rank 0's worker. `None` means that of node 0.
        local_addr: This node's address. `None` means that of its host name.
        event_log_handler: Name of the destination of events.
        numa_options: Binding of workers to cores. `None` means no binding.
        duplicate_stdout_filters: Lines of tee'd stdout that contain one of these are copied to a file of the round.
        duplicate_stderr_filters: The same for stderr.
        virtual_local_rank: Whether each worker sees one device, and has `LOCAL_RANK=0`.

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
        """Return the function's qualified name, or the program's file name."""
        entrypoint = self.entrypoint
        if isinstance(entrypoint, str):
            return PurePath(entrypoint).name
        return str(getattr(entrypoint, "__qualname__", type(entrypoint).__qualname__))


def _need(holds: bool, text: str) -> None:
    if not holds:  # the class that torch's callers know
        raise AssertionError(f"WorkerSpec: {text}")
