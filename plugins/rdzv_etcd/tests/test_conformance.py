"""The kit's promises: on one server with every fault that it knows, through TLS as a user, and on three members."""

from contextlib import contextmanager

import pytest

from elastic_plugin_kit.conformance import CoordinationStoreConformance
from etcd_servers import EtcdCluster, EtcdServer, TlsEtcd
from ports import free_port


class Promises(CoordinationStoreConformance):
    """A server tells of the end of a lease up to half a second late, and its leases are whole seconds."""

    lease_s = 3.0


class TestOnOneServer(Promises):
    """A server of the test's own: it is paused and emptied."""

    @pytest.fixture
    def server(self, tmp_path):
        server = EtcdServer(tmp_path / "etcd")
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


class TestThroughTlsAsAUser(Promises):
    @pytest.fixture(scope="class")
    @classmethod
    def server(cls, tmp_path_factory):
        server = TlsEtcd(tmp_path_factory.mktemp("etcd"))
        try:
            server.start()
            server.enable_auth()
            yield server
        finally:
            server.stop()

    @pytest.fixture
    def connect(self, make_store, server):
        files = {"ca_cert": str(server.ca), "cert": str(server.cert), "key": str(server.key)}
        return lambda run_id: make_store(server.login_url, run=run_id, **files)


class TestOnThreeMembers(Promises):
    @pytest.fixture(scope="class")
    @classmethod
    def cluster(cls, tmp_path_factory):
        cluster = EtcdCluster(tmp_path_factory.mktemp("etcd"))
        try:
            yield cluster.start()
        finally:
            cluster.stop()

    @pytest.fixture
    def connect(self, make_store, cluster):
        return lambda run_id: make_store(cluster.endpoint, run=run_id)
