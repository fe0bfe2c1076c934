"""Fixtures of this folder."""

from chaos.multi_node import redis_run, run  # noqa: F401
from redis_servers import redis_server, sentinel, tls_redis  # noqa: F401
