"""The kit's promises: on Valkey and Redis with every fault that it knows, and through TLS as an ACL user."""

from contextlib import contextmanager

import pytest

from elastic_plugin_kit.conformance import CoordinationStoreConformance
from ports import free_port
from redis_servers import RedisServer


class Promises(CoordinationStoreConformance):
    """A server of the test's own: it is paused and emptied."""

    kind: str

    @pytest.fixture
    def server(self, tmp_path):
        server = RedisServer(tmp_path / self.kind, kind=self.kind)
        try:
            yield server.start()
        finally:
            server.stop()

    @pytest.fixture
    def connect(self, make_store, server):
        return lambda run_id: make_store(server.endpoint, run=run_id)

    @pytest.fixture
    def pause_server(self, server):
        @contextmanager
        def paused():
            server.pause()
            try:
                yield
            finally:
                server.resume()

        return paused

    @pytest.fixture
    def empty_server(self, server):
        return server.empty

    @pytest.fixture
    def connect_nowhere(self, make_store):
        return lambda: make_store(f"127.0.0.1:{free_port()}")


class TestOnValkey(Promises):
    kind = "valkey"


class TestOnRedis(Promises):
    kind = "redis"


class TestThroughTls(CoordinationStoreConformance):
    @pytest.fixture
    def connect(self, make_store, tls_redis):
        files = {"ca_cert": str(tls_redis.ca), "cert": str(tls_redis.cert), "key": str(tls_redis.key)}
        return lambda run_id: make_store(tls_redis.url, run=run_id, **files)
