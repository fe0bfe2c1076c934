"""Runs of several nodes. Workers start interpreters of their own, as their stacks are requested by their session."""

from chaos.multi_node import redis_run
from redis_servers import redis_server

__all__ = ["redis_run", "redis_server"]
