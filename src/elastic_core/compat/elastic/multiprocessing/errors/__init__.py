"""`torch.distributed.elastic.multiprocessing.errors`, by ours."""

from elastic_core.multiprocessing.errors import (
    ChildFailedError,
    ErrorHandler,
    ProcessFailure,
    get_error_handler,
    record,
    set_error_handler,
)

__all__ = ["ChildFailedError", "ErrorHandler", "ProcessFailure", "get_error_handler", "record", "set_error_handler"]
