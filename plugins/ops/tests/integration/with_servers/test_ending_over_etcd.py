"""elastic stop ends a run over etcd that still waits for nodes."""

import json

from ending_kit import Nodes
from etcd_servers import etcd_server
from support import wait_for

__all__ = ["etcd_server"]


def test_a_run_that_still_waits_for_nodes_is_stopped_over_etcd(elastic, script, ask, etcd_server):
    run_id = f"waits-{etcd_server.endpoint.rpartition(':')[2]}"
    store = ["--rdzv-backend", "etcd", "--rdzv-endpoint", etcd_server.endpoint, "--rdzv-id", run_id]
    agents = Nodes(elastic, script, *store).start("n0", "n1", nnodes="3")

    def waiting():
        code, said = ask("status", "--json", *store)
        return code == 0 and len(json.loads(said)["runs"][0]["waiting"]) == 2

    wait_for(waiting, what="both to wait")
    code, said = ask("stop", *store)
    assert (code, said.count("\n")) == (0, 2)
    assert [(agent.wait(), agent.out) for agent in agents.values()] == [(143, "")] * 2
