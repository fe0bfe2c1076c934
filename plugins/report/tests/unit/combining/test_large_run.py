"""A report of many nodes and rounds takes a time in proportion to them."""

import time

from elastic_report.combining.combine import combine
from elastic_report.combining.evidence import RunEvidence
from elastic_report.ledger.states import LedgerState as S
from run_kit import Node

NODES = 250
ROUNDS = 40


def test_many_nodes_and_rounds() -> None:
    names = tuple(f"gpu-{number:03d}" for number in range(NODES))
    agents = []
    for rank, name in enumerate(names):
        node = Node(name, ahead_s=3600.0 * (rank % 50 == 0), boot_id=f"boot-{rank}")
        for index in range(ROUNDS):
            node.spend(S.RENDEZVOUS, 10).join(index, rank, names).spend(S.STARTING, 20).spend(S.REDONE, 60)
            for _ in range(4):
                node.spend(S.PRODUCTIVE, 200).spend(S.SAVING, 5)
            node.worker(800, code=-15, stopped=True)
            if index % NODES == rank:
                node.fail(reports=NODES)
            node.over("failure").note("decision", "restart")
        agents.append(node.end().found())
    began_s = time.process_time()
    report = combine(RunEvidence(run_id="bert-7", now_ns=agents[0].ended_ns, source="here", agents=tuple(agents)))
    used_s = time.process_time() - began_s
    assert (len(report.nodes), len(report.rounds), len(report.incidents)) == (NODES, ROUNDS, ROUNDS)
    assert report.account.present_s > 0
    assert used_s < 15  # a second on an idle machine
