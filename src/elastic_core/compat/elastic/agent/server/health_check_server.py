"""`torch.distributed.elastic.agent.server.health_check_server`, by ours."""

from elastic_core.agent.server.health_check_server import HealthCheckServer, create_healthcheck_server

__all__ = ["HealthCheckServer", "create_healthcheck_server"]
