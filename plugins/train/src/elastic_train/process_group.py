"""The process group of a worker, from its environment variables: `init_process_group()`."""

import os
import sys
from datetime import timedelta
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final

from elastic_train.time_limits import time_limit
from elastic_train.variables import error, place, start_hint, whole_number

if TYPE_CHECKING:
    import torch

_OURS: Final = ("init_method", "rank", "store", "world_size")
"""The arguments of torch's function that come from the variables."""
_CUDA_BACKENDS: Final = "cpu:gloo,cuda:nccl"
_MAX_PORT: Final = 65535


class JoinedGroup:
    """The worker's process group, until `destroy()`, the end of a `with` block without an error, or the process's end.

    Attributes:
        device: The device of this worker: `cuda:LOCAL_RANK`, which is also the current device, or `cpu`.
        rank: This worker's rank among all workers.
        local_rank: This worker's rank on its node.
        world_size: The number of workers.
    """

    def __init__(self, device: "torch.device", rank: int, local_rank: int, world_size: int) -> None:
        self.device = device
        self.rank = rank
        self.local_rank = local_rank
        self.world_size = world_size

    def destroy(self) -> None:
        """Destroy the group, after a `Checkpointer` has finished its saves in the background; idempotent."""
        import torch.distributed as dist

        checkpointer = sys.modules.get("elastic_train.checkpoint.checkpointer")
        if checkpointer is not None:
            checkpointer.finish_all()

        if dist.is_initialized():
            dist.destroy_process_group()

    def __enter__(self) -> "JoinedGroup":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Destroy the group, but not after an error: this process then ends and reports the error first.

        Otherwise ranks that wait for this one would fail first, and would be reported as the first cause.
        """
        if value is None or (isinstance(value, SystemExit) and not value.code):
            self.destroy()


def init_process_group(
    backend: str | None = None,
    timeout: float | str | timedelta | None = None,
    **options: Any,  # noqa: ANN401  # torch's own
) -> JoinedGroup:
    """Join the default process group that this worker's variables describe, and choose the worker's device.

    A process without any variable, started with bare Python, forms a group of one. Torchrun's variables work as well.

    Args:
        backend: As in torch. `None` means NCCL for CUDA tensors and Gloo for CPU tensors if CUDA is available, else
            Gloo. If the name contains `nccl`, the device is `cuda:LOCAL_RANK`, and is made the current one.
        timeout: Time limit of the group's operations: `"10m"`, seconds, or a `timedelta`. `None` means torch's default.
        options: Other arguments of torch's `init_process_group`, such as `device_id` or `pg_options`.

    Returns:
        The group. `with init_process_group() as group` destroys it at the end of the block.

    Raises:
        ConfigError: a variable is missing or malformed, the device does not exist, torch is missing, or a group exists
            already; one line.
    """
    limit = time_limit(timeout, "init_process_group")
    for name in _OURS:
        if name in options:
            raise error(
                f"init_process_group({name}=…): the variables of the environment say that",
                "torch.distributed.init_process_group, which takes it",
            )
    found = place()
    _check_meeting_place(alone=found is None)
    torch = _torch()
    dist = torch.distributed
    if dist.is_initialized():
        raise error("there is a process group already", "torch.distributed.destroy_process_group() before")
    rank, local_rank, world_size = found or (0, 0, 1)
    device, backend = _device(torch, backend, local_rank)
    if device.type == "cuda":
        torch.cuda.set_device(device)
    if limit is not None:
        options["timeout"] = limit
    if found is None:
        options |= {"store": dist.HashStore(), "rank": 0, "world_size": 1}
    dist.init_process_group(backend, **options)
    return JoinedGroup(device, rank, local_rank, world_size)


def _check_meeting_place(*, alone: bool) -> None:
    """Check the variables with the address of rank 0. A process alone needs none."""
    if alone:
        return
    port = whole_number("MASTER_PORT")
    for name in ("MASTER_ADDR", "MASTER_PORT"):
        if not os.environ.get(name):
            raise error(f"{name} missing in the environment, where RANK is set", start_hint())
    if port is not None and port > _MAX_PORT:
        raise error(f"MASTER_PORT={port} in the environment; expected {_MAX_PORT} at most", start_hint())


def _torch() -> Any:  # noqa: ANN401  # a module
    from elastic_core.api.workers import import_torch

    torch = import_torch("init_process_group")
    if not torch.distributed.is_available():
        raise error("a process group needs torch.distributed, which this torch was built without", "another torch")
    return torch


def _device(torch: Any, backend: str | None, local_rank: int) -> tuple["torch.device", str]:  # noqa: ANN401  # the module
    """Return the worker's device, and the backend."""
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    wanted = (_CUDA_BACKENDS if count else "gloo") if backend is None else backend
    if "nccl" not in wanted:
        return torch.device("cpu"), wanted
    if count == 0:
        raise error(f"backend {wanted!r} needs a CUDA device, this process sees none", "backend='gloo'")
    if local_rank >= count:
        raise error(
            f"LOCAL_RANK={local_rank}; expected less than {count}, the number of CUDA devices that this process sees",
            "elastic run --nproc-per-node gpu, or backend='gloo'",
        )
    return torch.device("cuda", local_rank), wanted
