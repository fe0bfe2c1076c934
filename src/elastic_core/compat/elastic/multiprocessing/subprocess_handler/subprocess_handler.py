"""`torch.distributed.elastic.multiprocessing.subprocess_handler.subprocess_handler`, by ours."""

from elastic_core.multiprocessing.subprocess_handler import SubprocessHandler

__all__ = ["SubprocessHandler"]
