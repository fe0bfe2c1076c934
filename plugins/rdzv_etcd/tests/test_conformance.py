"""The kit's promises: on one server with every fault that it knows, through TLS as a user, and on three members."""

from contextlib import contextmanager

import pytest

from elastic_core.testing.conformance import CoordinationStoreConformance
from etcd_servers import EtcdServer, free_ports


class Promises(CoordinationStoreConformance):
    """A server tells of the end of a lease up to half a second late, and its leases are whole seconds."""

    lease_s = 5.0


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
        return lambda: make_store(f"127.0.0.1:{free_ports(1)[0]}")


class TestThroughTlsAsAUser(Promises):
    @pytest.fixture
    def connect(self, make_store, tls_etcd):
        files = {"ca_cert": str(tls_etcd.ca), "cert": str(tls_etcd.cert), "key": str(tls_etcd.key)}
        return lambda run_id: make_store(tls_etcd.login_url, run=run_id, **files)


class TestOnThreeMembers(Promises):
    @pytest.fixture
    def connect(self, make_store, etcd_cluster):
        return lambda run_id: make_store(etcd_cluster.endpoint, run=run_id)
