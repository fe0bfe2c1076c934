"""`torch.distributed.elastic.multiprocessing.errors.error_handler`, by ours."""

from elastic_core.multiprocessing.errors import ErrorHandler

__all__ = ["ErrorHandler"]
