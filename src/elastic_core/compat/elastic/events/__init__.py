"""`torch.distributed.elastic.events`, by ours."""

from elastic_core.events import (
    Event,
    EventHandler,
    EventMetadataValue,
    EventSource,
    NodeState,
    NullEventHandler,
    RdzvEvent,
    configure,
    construct_and_record_rdzv_event,
    get_logging_handler,
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
    "record",
    "record_rdzv_event",
]
