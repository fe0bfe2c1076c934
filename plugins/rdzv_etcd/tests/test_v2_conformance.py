"""The kit's promises on etcd's v2 API, with every fault that the kit knows."""

from contextlib import contextmanager

import pytest

from elastic_core.api import RendezvousSettings
from elastic_plugin_kit.conformance import CoordinationStoreConformance
from elastic_rdzv_etcd.v2_store import EtcdV2Store
from etcd_servers import EtcdServer
from ports import free_port


def v2_store(endpoint, run_id):
    """Return a store of a run."""
    return EtcdV2Store(
        RendezvousSettings(
            backend="etcd-v2", run_id=run_id, endpoint=endpoint, min_nodes=1, max_nodes=2, local_world_size=1
        )
    )


class TestOnOneServer(CoordinationStoreConformance):
    """A server of the test's own: it is paused and emptied."""

    lease_s = 5.0  # a server tells of the end of a lease up to half a second late, and leases are whole seconds

    @pytest.fixture
    def server(self, tmp_path):
        server = EtcdServer(tmp_path / "etcd", v2=True)
        try:
            yield server.start()
        finally:
            server.stop()

    @pytest.fixture
    def connect(self, server):
        return lambda run_id: v2_store(server.endpoint, run_id)

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
    def connect_nowhere(self):
        return lambda: v2_store(f"127.0.0.1:{free_port()}", "run")
