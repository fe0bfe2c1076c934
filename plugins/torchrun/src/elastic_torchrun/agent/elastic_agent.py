"""What every agent can do: torch's `ElasticAgent`."""

from abc import ABC, abstractmethod

from elastic_torchrun.agent.worker_group import RunResult, WorkerGroup
from elastic_torchrun.agent.worker_spec import DEFAULT_ROLE


class ElasticAgent(ABC):
    """Runs the workers of this node, with those of the others."""

    @abstractmethod
    def run(self, role: str = DEFAULT_ROLE) -> RunResult:
        """Run to the end, restarts included, and return what came of it.

        Raises:
            SignalException: the process was told to stop.
            Exception: what has nothing to do with workers: no round could be formed, say.
        """

    @abstractmethod
    def get_worker_group(self, role: str = DEFAULT_ROLE) -> WorkerGroup:
        """Return the workers; the object changes while the agent runs."""
