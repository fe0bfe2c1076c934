"""Our rendezvous backends, and the example, pass the kit for strangers'."""

import pytest

from elastic_core.rendezvous.local import LocalRendezvous
from elastic_example_rendezvous_env import EnvironmentRendezvous
from elastic_plugin_kit import RendezvousConformance, rendezvous_settings
from elastic_rdzv_static.handler import StaticRendezvous


class TestLocal(RendezvousConformance):
    most_nodes = 1

    @pytest.fixture
    def make_handler(self):
        def make(*, run_id, node_rank, min_nodes, max_nodes):
            return LocalRendezvous(
                rendezvous_settings(run_id=run_id, node_rank=node_rank, min_nodes=min_nodes, max_nodes=max_nodes)
            )

        return make


class TestStatic(RendezvousConformance):
    @pytest.fixture
    def make_handler(self):
        def make(*, run_id, node_rank, min_nodes, max_nodes):
            return StaticRendezvous(
                rendezvous_settings(
                    run_id=run_id,
                    declared=StaticRendezvous.options,
                    endpoint="localhost:29500",
                    node_rank=node_rank,
                    min_nodes=min_nodes,
                    max_nodes=max_nodes,
                )
            )

        return make


class TestExample(RendezvousConformance):
    @pytest.fixture
    def make_handler(self, monkeypatch):
        def make(*, run_id, node_rank, min_nodes, max_nodes):
            environment = {"NODE_RANK": node_rank, "NNODES": max_nodes, "MASTER_ADDR": "n0", "MASTER_PORT": 1234}
            for name, value in environment.items():
                monkeypatch.setenv(name, str(value))
            return EnvironmentRendezvous(
                rendezvous_settings(
                    run_id=run_id,
                    declared=EnvironmentRendezvous.options,
                    min_nodes=min_nodes,
                    max_nodes=max_nodes,
                )
            )

        return make
