"""What is observed of an agent, beside its states and the moments that hooks are told of."""

from collections.abc import Mapping

from elastic_core.agent.machine.states import AgentState
from elastic_core.messages import Moment
from elastic_core.types import Record


class RanksAssigned(Record, frozen=True, kw_only=True):
    """Of forming a round, this was spent on agreeing who is what, `took_s` seconds."""

    took_s: float


class StoreReachable(Record, frozen=True, kw_only=True):
    """The rendezvous store is away, or back."""

    reachable: bool


class CallCount(Record, frozen=True, kw_only=True):
    """Calls of one kind since the last look: how many were answered, in how many seconds together, how many failed."""

    answered: int = 0
    took_s: float = 0.0
    failed: int = 0


class StoreCalls(Record, frozen=True, kw_only=True):
    """Calls to the rendezvous store since the last look, by name."""

    calls: Mapping[str, CallCount]


class Beat(Record, frozen=True, kw_only=True):
    """A worker's last heartbeat: seconds ago, and the step that it told of."""

    age_s: float
    step: int | None


class Heartbeats(Record, frozen=True, kw_only=True):
    """The last heartbeats of this node's workers, by local rank."""

    beats: Mapping[int, Beat]


class StateEntered(Record, frozen=True, kw_only=True):
    """The agent's machine is in another state than before."""

    state: AgentState


class WatchdogTold(Record, frozen=True, kw_only=True):
    """What the watchdog of file timers has done, by torch's name for it, and the request that it is about, if any."""

    name: str
    worker_pid: int | None = None
    scope_id: str = ""
    expiration_time: float = 0.0
    signal: int = 0


Sight = Moment | StateEntered | RanksAssigned | StoreReachable | StoreCalls | Heartbeats | WatchdogTold


class Seen(Record, frozen=True, kw_only=True):
    """A sight, and when: in monotonic seconds, and in nanoseconds since the Unix epoch."""

    at_s: float
    at_ns: int
    sight: Sight
