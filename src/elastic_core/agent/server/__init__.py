"""The agent for users of the library, under torch's names.

Importing it loads nothing: each name is fetched from its module when it is first used.
"""

import importlib
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from elastic_core.agent.server.elastic_agent import ElasticAgent
    from elastic_core.agent.server.health_check_server import HealthCheckServer, create_healthcheck_server
    from elastic_core.agent.server.local_elastic_agent import LocalElasticAgent
    from elastic_core.agent.server.simple_elastic_agent import SimpleElasticAgent
    from elastic_core.agent.server.worker_group import RunResult, Worker, WorkerGroup, WorkerState
    from elastic_core.agent.server.worker_spec import WorkerSpec

__all__ = [
    "ElasticAgent",
    "HealthCheckServer",
    "LocalElasticAgent",
    "RunResult",
    "SimpleElasticAgent",
    "Worker",
    "WorkerGroup",
    "WorkerSpec",
    "WorkerState",
    "create_healthcheck_server",
]

_MODULES: Final = {
    "ElasticAgent": "elastic_agent",
    "HealthCheckServer": "health_check_server",
    "LocalElasticAgent": "local_elastic_agent",
    "RunResult": "worker_group",
    "SimpleElasticAgent": "simple_elastic_agent",
    "Worker": "worker_group",
    "WorkerGroup": "worker_group",
    "WorkerSpec": "worker_spec",
    "WorkerState": "worker_group",
    "create_healthcheck_server": "health_check_server",
    # As modules, for `elastic_core.agent.server.api` without an import of its own.
    "api": "",
    "health_check_server": "",
    "local_elastic_agent": "",
}


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = importlib.import_module(f"{__name__}.{_MODULES[name] or name}")
    return getattr(module, name) if _MODULES[name] else module
