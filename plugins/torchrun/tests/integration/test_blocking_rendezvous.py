"""The core's rendezvous on a store, as calls that block, passes the kit for handlers."""

import pytest

from elastic_plugin_kit import MemoryServer, MemoryStore, RendezvousConformance, rendezvous_settings
from elastic_torchrun.rendezvous.blocking_rendezvous import BlockingRendezvous
from patience import patience


class TestBlockingRendezvous(RendezvousConformance):
    round_s = patience(20)  # a node waits for two leases if another one of its name has just left

    @pytest.fixture
    def make_handler(self):
        server = MemoryServer()

        def make(*, run_id, node_rank, min_nodes, max_nodes):
            settings = rendezvous_settings(
                run_id=run_id,
                node_rank=node_rank,
                min_nodes=min_nodes,
                max_nodes=max_nodes,
                options={"lease_ttl": 3.0, "last_call_timeout": 0.2},
            )
            return BlockingRendezvous(MemoryStore(settings, server=server), settings)

        return make
