"""Events by torch's names: what they hold, and their JSON."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from enum import Enum
from typing import Any, Union

EventMetadataValue = str | int | float | bool | None
"""What an event's metadata may hold."""


class EventSource(str, Enum):  # noqa: UP042  # torch's base: `str()` of a member is the same
    """Who an event is from."""

    AGENT = "AGENT"
    WORKER = "WORKER"


@dataclass
class Event:
    """Something that happened.

    Attributes:
        name: What.
        source: Who tells of it.
        timestamp: When, in milliseconds since the Unix epoch; 0: when it is recorded.
        metadata: More about it.
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
        """Return the event that JSON tells of; an event itself is returned as it is."""
        if isinstance(data, Event):
            return data
        fields = _fields(data)
        return Event(**{**fields, "source": EventSource(fields["source"])})

    def serialize(self) -> str:
        """Return the event as JSON."""
        return json.dumps(asdict(self))


class NodeState(str, Enum):  # noqa: UP042  # as above
    """How far a node has come in a rendezvous."""

    INIT = "INIT"
    RUNNING = "RUNNING"
    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"


@dataclass
class RdzvEvent:
    """Something that happened in a rendezvous.

    Attributes:
        name: What was being done.
        run_id: Of which run.
        message: What happened, for people.
        hostname: On which host.
        pid: In which process.
        node_state: How far the node had come.
        master_endpoint: Where the rendezvous store is, where that is known.
        rank: The node's rank, where that is known.
        local_id: Its number on the host, where it has one.
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
        """Return the event that JSON tells of; an event itself is returned as it is."""
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
