"""Fixtures of this folder: a run over several nodes, and its server."""

from chaos.multi_node import redis_run  # noqa: F401
from redis_servers import redis_server  # noqa: F401
