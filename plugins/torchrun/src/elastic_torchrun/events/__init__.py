"""`torch.distributed.elastic.events`: events of a run, recorded through `logging`."""

from elastic_torchrun.events.api import Event, EventMetadataValue, EventSource, NodeState, RdzvEvent
from elastic_torchrun.events.handlers import get_logging_handler, log_handlers
from elastic_torchrun.events.recording import (
    EventHandler,
    NullEventHandler,
    configure,
    construct_and_record_rdzv_event,
    record,
    record_rdzv_event,
)

__all__ = [
    "Event",
    "EventHandler",
    "EventMetadataValue",
    "EventSource",
    "NodeState",
    "NullEventHandler",
    "RdzvEvent",
    "configure",
    "construct_and_record_rdzv_event",
    "get_logging_handler",
    "log_handlers",
    "record",
    "record_rdzv_event",
]
