"""`torch.distributed.elastic.events.handlers`, by ours."""

from elastic_core.events.handlers import (
    get_logging_handler,
    log_handlers,
)

__all__ = [
    "get_logging_handler",
    "log_handlers",
]
