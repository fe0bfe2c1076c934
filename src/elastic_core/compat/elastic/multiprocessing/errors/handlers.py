"""`torch.distributed.elastic.multiprocessing.errors.handlers`, by ours."""

from elastic_core.multiprocessing.errors import get_error_handler

__all__ = ["get_error_handler"]
