"""`torch.distributed.elastic.control_plane`, by ours."""

from typing import Final

from elastic_core.control_plane import worker_main

__all__ = ["TORCH_WORKER_SERVER_SOCKET", "worker_main"]

TORCH_WORKER_SERVER_SOCKET: Final = "TORCH_WORKER_SERVER_SOCKET"
