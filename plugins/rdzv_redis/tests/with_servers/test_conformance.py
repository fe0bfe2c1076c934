"""The kit's promises on Redis itself, with every fault that the kit knows, and through TLS as an ACL user."""

from elastic_rdzv_redis.store import RedisStore
from redis_servers import RedisServer, TlsRedis
from store_kit import OnAServer, OnASharedServer, store_settings


class TestOnRedis(OnAServer):
    @staticmethod
    def make(folder):
        return RedisServer(folder, kind="redis")

    @staticmethod
    def client_at(endpoint, run_id):
        return RedisStore(store_settings("redis", endpoint, run_id))


class TestThroughTls(OnASharedServer):
    @staticmethod
    def make(folder):
        return TlsRedis(folder)

    @staticmethod
    def client(server, run_id):
        files = {"ca_cert": str(server.ca), "cert": str(server.cert), "key": str(server.key)}
        return RedisStore(store_settings("redis", server.url, run_id, **files))
