"""The workers of one node as their agent knows them, and what became of them: torch's names and fields."""

import enum
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from elastic_torchrun.agent.worker_spec import WorkerSpec
    from elastic_torchrun.processes.process_failure import ProcessFailure


class WorkerState(str, enum.Enum):  # noqa: UP042  # torch's: str(state) is "WorkerState.INIT", which a StrEnum changes
    """The state of a group of workers; they change it together."""

    UNKNOWN = "UNKNOWN"
    """The agent has lost track of them."""
    INIT = "INIT"
    """Not started yet."""
    HEALTHY = "HEALTHY"
    """They run."""
    UNHEALTHY = "UNHEALTHY"
    """They run, and something is wrong with them."""
    STOPPED = "STOPPED"
    """The agent has stopped them, and will start them again."""
    SUCCEEDED = "SUCCEEDED"
    """All have ended well."""
    FAILED = "FAILED"
    """One has failed, and there is no further try."""

    @staticmethod
    def is_running(state: "WorkerState") -> bool:
        """Return whether workers in this state have processes, healthy or not."""
        return state in (WorkerState.HEALTHY, WorkerState.UNHEALTHY)


class Worker:
    """One worker's ranks; -1 until a round has given it one.

    Args:
        local_rank: Among the workers of this node.
        global_rank: Among all workers of the run.
        role_rank: Among those of its role.
        world_size: How many workers the run has.
        role_world_size: How many its role has.
    """

    __slots__ = ("global_rank", "id", "local_rank", "role_rank", "role_world_size", "world_size")

    def __init__(
        self,
        local_rank: int,
        global_rank: int = -1,
        role_rank: int = -1,
        world_size: int = -1,
        role_world_size: int = -1,
    ) -> None:
        self.id: Any = None
        """What the agent knows it by: a local agent by its pid."""
        self.local_rank = local_rank
        self.global_rank = global_rank
        self.role_rank = role_rank
        self.world_size = world_size
        self.role_world_size = role_world_size

    def __str__(self) -> str:
        names = ("local_rank", "global_rank", "role_rank", "world_size", "role_world_size")
        return ",".join(f"{name}={getattr(self, name)}" for name in names)

    def __repr__(self) -> str:
        return str(self)


class WorkerGroup:
    """The workers of one `WorkerSpec`, and the round that they are in."""

    __slots__ = ("group_rank", "group_world_size", "master_addr", "master_port", "spec", "state", "store", "workers")

    def __init__(self, spec: "WorkerSpec") -> None:
        """Have workers without ranks; a round sets the rest."""
        self.spec = spec
        self.workers = [Worker(local_rank=rank) for rank in range(spec.local_world_size)]
        self.store: Any = None
        self.group_rank: int | None = None
        self.group_world_size: int | None = None
        self.master_addr: str | None = None
        self.master_port: int | None = None
        self.state = WorkerState.INIT


@dataclass
class RunResult:
    """How a run ended on this node: all of its workers succeeded, or it failed.

    `return_values` has what the functions of this node's workers returned, and `failures` how its workers failed, both
    by global rank. Workers that the agent stopped are in neither. A failed run in which no worker of this node failed
    has the failure of the other node's worker.
    """

    state: WorkerState
    return_values: dict[int, Any] = field(default_factory=dict)
    failures: "dict[int, ProcessFailure]" = field(default_factory=dict)

    def is_failed(self) -> bool:
        """Return whether it failed; workers that could not be ended (UNHEALTHY) have, too."""
        return self.state in (WorkerState.FAILED, WorkerState.UNHEALTHY)
