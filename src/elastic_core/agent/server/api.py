"""torch's module of that name: what describes workers, and the agents that one can subclass."""

from elastic_core.agent.server.elastic_agent import ElasticAgent
from elastic_core.agent.server.simple_elastic_agent import SimpleElasticAgent
from elastic_core.agent.server.worker_group import RunResult, Worker, WorkerGroup, WorkerState
from elastic_core.agent.server.worker_spec import DEFAULT_ROLE, WorkerSpec

__all__ = [
    "DEFAULT_ROLE",
    "ElasticAgent",
    "RunResult",
    "SimpleElasticAgent",
    "Worker",
    "WorkerGroup",
    "WorkerSpec",
    "WorkerState",
]
