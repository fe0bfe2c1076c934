"""`torch.distributed.elastic.multiprocessing.subprocess_handler`, by ours."""

from elastic_core.multiprocessing.subprocess_handler import SubprocessHandler, get_subprocess_handler

__all__ = ["SubprocessHandler", "get_subprocess_handler"]
