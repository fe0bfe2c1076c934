"""Events under torch's names: their fields, and their JSON."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from enum import Enum
from typing import Any, Union

EventMetadataValue = str | int | float | bool | None
"""A value in an event's metadata."""


class EventSource(str, Enum):  # noqa: UP042  # torch's base: `str()` of a member is the same
    """The source of an event."""

    AGENT = "AGENT"
    WORKER = "WORKER"


@dataclass
class Event:
    """An event.

    Attributes:
        name: Its name.
        source: The component that records it.
        timestamp: Its time, in milliseconds since the Unix epoch; 0 means the time at which it is recorded.
        metadata: More fields.
    """

    name: str
    source: EventSource
    timestamp: int = 0
    metadata: dict[str, EventMetadataValue] = field(default_factory=dict)

    def __str__(self) -> str:
        """Return the JSON."""
        return self.serialize()

    @staticmethod
    def deserialize(data: Union[str, "Event"]) -> "Event":
        """Return the event in a JSON text. An event is returned unchanged."""
        if isinstance(data, Event):
            return data
        fields = _fields(data)
        return Event(**{**fields, "source": EventSource(fields["source"])})

    def serialize(self) -> str:
        """Return the event as JSON."""
        return json.dumps(asdict(self))


class NodeState(str, Enum):  # noqa: UP042  # as above
    """The progress of a node in a rendezvous."""

    INIT = "INIT"
    RUNNING = "RUNNING"
    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"


@dataclass
class RdzvEvent:
    """An event of a rendezvous.

    Attributes:
        name: Name of the operation.
        run_id: The run's id.
        message: Text for people.
        hostname: Name of the host.
        pid: Id of the process.
        node_state: The node's progress.
        master_endpoint: Endpoint of the rendezvous store, if known.
        rank: The node's rank, if known.
        local_id: The node's number on its host, if it has one.
        error_trace: The traceback of an error.
    """

    name: str
    run_id: str
    message: str
    hostname: str
    pid: int
    node_state: NodeState
    master_endpoint: str = ""
    rank: int | None = None
    local_id: int | None = None
    error_trace: str = ""

    def __str__(self) -> str:
        """Return the JSON."""
        return self.serialize()

    @staticmethod
    def deserialize(data: Union[str, "RdzvEvent"]) -> "RdzvEvent":
        """Return the event in a JSON text. An event is returned unchanged."""
        if isinstance(data, RdzvEvent):
            return data
        fields = _fields(data)
        return RdzvEvent(**{**fields, "node_state": NodeState(fields["node_state"])})

    def serialize(self) -> str:
        """Return the event as JSON."""
        return json.dumps(asdict(self))


def _fields(data: str) -> Mapping[str, Any]:
    fields: Mapping[str, Any] = json.loads(data)
    return fields
