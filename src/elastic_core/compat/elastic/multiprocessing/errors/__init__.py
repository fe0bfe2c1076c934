"""`torch.distributed.elastic.multiprocessing.errors`, by ours."""

from typing import Any

from elastic_core.multiprocessing.errors import (
    ChildFailedError,
    ErrorHandler,
    ProcessFailure,
    get_error_handler,
    record,
    set_error_handler,
)

__all__ = [
    "JSON",
    "ChildFailedError",
    "ErrorHandler",
    "GlobalRank",
    "ProcessFailure",
    "get_error_handler",
    "record",
    "set_error_handler",
]

JSON = dict[str, Any]
GlobalRank = int
