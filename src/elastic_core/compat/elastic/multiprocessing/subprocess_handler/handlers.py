"""`torch.distributed.elastic.multiprocessing.subprocess_handler.handlers`, by ours."""

from elastic_core.multiprocessing.subprocess_handler import get_subprocess_handler

__all__ = ["get_subprocess_handler"]
