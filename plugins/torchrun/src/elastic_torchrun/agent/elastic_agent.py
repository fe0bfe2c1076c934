"""The base class of agents: torch's `ElasticAgent`."""

from abc import ABC, abstractmethod

from elastic_torchrun.agent.worker_group import RunResult, WorkerGroup
from elastic_torchrun.agent.worker_spec import DEFAULT_ROLE


class ElasticAgent(ABC):
    """An agent: runs the workers of this node, together with those of the other nodes."""

    @abstractmethod
    def run(self, role: str = DEFAULT_ROLE) -> RunResult:
        """Run all rounds, restarts included, and return the result.

        Raises:
            SignalException: a signal stopped the process.
            Exception: another error than a failed worker, for example that no round could be formed.
        """

    @abstractmethod
    def get_worker_group(self, role: str = DEFAULT_ROLE) -> WorkerGroup:
        """Return the workers. The object changes while the agent runs."""
