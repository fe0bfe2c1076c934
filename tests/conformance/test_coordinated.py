"""The core's rendezvous on a store passes the kit for handlers, with every capability that it declares."""

import pytest

from elastic_core.rendezvous.shell.coordinated import CoordinatedRendezvous
from elastic_plugin_kit import MemoryServer, MemoryStore, RendezvousConformance, rendezvous_settings


class TestCoordinated(RendezvousConformance):
    @pytest.fixture
    def make_handler(self):
        server = MemoryServer()

        def make(*, run_id, node_rank, min_nodes, max_nodes):
            settings = rendezvous_settings(
                run_id=run_id,
                node_rank=node_rank,
                min_nodes=min_nodes,
                max_nodes=max_nodes,
                options={"lease_ttl": 2.0, "last_call_timeout": 0.2},
            )
            return CoordinatedRendezvous(MemoryStore(settings, server=server), settings)

        return make
