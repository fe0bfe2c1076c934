"""The process group of a worker, made of its variables: `init_process_group()`."""

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
"""What torch's function takes and the variables say."""
_CUDA_BACKENDS: Final = "cpu:gloo,cuda:nccl"
_MAX_PORT: Final = 65535


class JoinedGroup:
    """A process group that this worker is in, until `destroy()`, the good end of the `with` block, or the process's.

    Attributes:
        device: What this worker computes on: `cuda:LOCAL_RANK`, which is the current device, or `cpu`.
        rank: This worker's number among all.
        local_rank: Its number on its node.
        world_size: How many workers there are.
    """

    def __init__(self, device: "torch.device", rank: int, local_rank: int, world_size: int) -> None:
        self.device = device
        self.rank = rank
        self.local_rank = local_rank
        self.world_size = world_size

    def destroy(self) -> None:
        """Leave the group, once a `Checkpointer` has saved what it saves in the background; idempotent."""
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
        """Leave the group, but not after an error: this process ends, and says why before others see it gone.

        Else ranks that wait for this one would fail first, and be taken for the cause.
        """
        if value is None or (isinstance(value, SystemExit) and not value.code):
            self.destroy()


def init_process_group(
    backend: str | None = None,
    timeout: float | str | timedelta | None = None,
    **options: Any,  # noqa: ANN401  # torch's own
) -> JoinedGroup:
    """Join the default process group by this worker's variables, and choose its device.

    A process without any variable, as bare Python starts it, is a group of its own. Under torchrun as here.

    Args:
        backend: As torch's. None: where CUDA is, NCCL for CUDA tensors and Gloo for those in memory, else Gloo. With
            one that has `nccl` in it the device is `cuda:LOCAL_RANK`, and is made the current one.
        timeout: How long an operation of the group may take: `"10m"`, seconds, a `timedelta`; None: torch's default.
        options: What else torch's `init_process_group` takes, `device_id` or `pg_options`.

    Returns:
        The group: `with init_process_group() as group` leaves it at the end.

    Raises:
        ConfigError: a variable is missing or malformed, there is no such device, no torch, or a group already; one
            line.
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
    """Check the variables that say where rank 0 is; a process alone needs none."""
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
