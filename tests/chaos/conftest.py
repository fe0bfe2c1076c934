"""Fixtures of this folder; and which tests of it take too long for every day."""

import os

from chaos.multi_node import any_run, redis_run, run, served_run, troubled_run  # noqa: F401
from etcd_servers import etcd_cluster, etcd_private, etcd_server, tls_etcd  # noqa: F401
from redis_servers import redis_server, sentinel, tls_redis  # noqa: F401
from systemd_kit import systemd  # noqa: F401


def pytest_collection_modifyitems(config, items):
    """Leave out what is marked `chaos_full`, unless `make chaos` wants it."""
    if os.environ.get("CHAOS_FULL"):
        return
    left_out = [item for item in items if item.get_closest_marker("chaos_full")]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in left_out]
