"""`torch.distributed.elastic.control_plane`, by ours."""

from elastic_core.control_plane import worker_main

__all__ = ["worker_main"]
