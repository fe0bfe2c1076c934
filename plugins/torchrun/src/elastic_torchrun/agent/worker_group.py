"""The workers of one node in their agent, and their results: torch's names and fields."""

import enum
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from elastic_torchrun.agent.worker_spec import WorkerSpec
    from elastic_torchrun.processes.process_failure import ProcessFailure


class WorkerState(str, enum.Enum):  # noqa: UP042  # torch's: str(state) is "WorkerState.INIT", which a StrEnum changes
    """The common state of a group of workers."""

    UNKNOWN = "UNKNOWN"
    """The agent no longer knows their state."""
    INIT = "INIT"
    """Not started yet."""
    HEALTHY = "HEALTHY"
    """Running."""
    UNHEALTHY = "UNHEALTHY"
    """Running, but with a problem."""
    STOPPED = "STOPPED"
    """Stopped by the agent, to be started again."""
    SUCCEEDED = "SUCCEEDED"
    """All have exited with success."""
    FAILED = "FAILED"
    """One has failed, and no restart is left."""

    @staticmethod
    def is_running(state: "WorkerState") -> bool:
        """Return whether workers in this state have processes, healthy or not."""
        return state in (WorkerState.HEALTHY, WorkerState.UNHEALTHY)


class Worker:
    """One worker's ranks; -1 until a round assigns them.

    Args:
        local_rank: Rank among the workers of this node.
        global_rank: Rank among all workers of the run.
        role_rank: Rank among the workers of its role.
        world_size: The number of workers in the run.
        role_world_size: The number of workers in its role.
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
    """The workers of one `WorkerSpec`, and their current round."""

    __slots__ = ("group_rank", "group_world_size", "master_addr", "master_port", "spec", "state", "store", "workers")

    def __init__(self, spec: "WorkerSpec") -> None:
        """Make workers without ranks; a round assigns them."""
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
    """The result of a run on this node: all of its workers succeeded, or the run failed.

    `return_values` has the results of the functions of this node's workers, and `failures` how its workers failed, both
    by global rank. Neither contains workers that the agent stopped. If no worker of this node failed in a failed run,
    `failures` has the failed worker of the other node.
    """

    state: WorkerState
    return_values: dict[int, Any] = field(default_factory=dict)
    failures: "dict[int, ProcessFailure]" = field(default_factory=dict)

    def is_failed(self) -> bool:
        """Return whether the run failed. Workers that could not be ended (UNHEALTHY) count as failed."""
        return self.state in (WorkerState.FAILED, WorkerState.UNHEALTHY)
