"""Fixtures of this folder."""

from chaos.multi_node import redis_run, run, served_run, troubled_run  # noqa: F401
from etcd_servers import etcd_cluster, etcd_private, etcd_server, tls_etcd  # noqa: F401
from redis_servers import redis_server, sentinel, tls_redis  # noqa: F401
