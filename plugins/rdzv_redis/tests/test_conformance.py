"""The kit's promises on one server: Valkey, or Redis where that is all there is."""

from elastic_rdzv_redis.store import RedisStore
from redis_servers import RedisServer
from store_kit import OnAServer, store_settings


class TestOnOneServer(OnAServer):
    @staticmethod
    def make(folder):
        return RedisServer(folder)

    @staticmethod
    def client_at(endpoint, run_id):
        return RedisStore(store_settings("redis", endpoint, run_id))
