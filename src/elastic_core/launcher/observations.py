"""Observations for metrics and events: the agent's feed, and what is looked at from time to time."""

from collections.abc import Mapping

from elastic_core.agent.feed import Observation as Published
from elastic_core.types import Record


class CallCount(Record, frozen=True, kw_only=True):
    """Calls of one kind since the last look: how many were answered, in how many seconds together, how many failed."""

    answered: int = 0
    took_s: float = 0.0
    failed: int = 0


class StoreCalls(Record, frozen=True, kw_only=True):
    """Calls to the rendezvous store since the last look, by name."""

    calls: Mapping[str, CallCount]


class Beat(Record, frozen=True, kw_only=True):
    """A worker's last heartbeat: seconds ago, and the step that it named."""

    age_s: float
    step: int | None


class Heartbeats(Record, frozen=True, kw_only=True):
    """The last heartbeats of this node's workers, by local rank."""

    beats: Mapping[int, Beat]


Observation = Published | StoreCalls | Heartbeats


class Observed(Record, frozen=True, kw_only=True):
    """An observation, and when: in monotonic seconds, and in nanoseconds since the Unix epoch."""

    at_s: float
    at_ns: int
    what: Observation
