"""Sixty-four nodes: a failure on one stops all within a second, and all hear the one decision."""

import threading
import time

import pytest
from msgspec.structs import replace

from elastic_core.reports import NodeReport
from elastic_core.types import Decided, Restart, StopOrdered
from elastic_plugin_kit import sample_failure
from elastic_rdzv_etcd.store import EtcdStore
from elastic_rdzv_redis.store import RedisStore
from etcd_servers import etcd_private
from integration.rendezvous.with_servers.test_scale import NODES, Node
from patience import kept
from redis_servers import redis_server
from support import wait_for
from time_limits import SPREAD_S

__all__ = ["etcd_private", "redis_server"]


@pytest.mark.parametrize("backend", ["redis", "etcd"])
def test_64_nodes_stop_within_a_second_and_hear_one_decision(backend, request):
    store = {"redis": RedisStore, "etcd": EtcdStore}[backend]
    server = request.getfixturevalue({"redis": "redis_server", "etcd": "etcd_private"}[backend])
    asked, heard, decided = [], {}, {}

    def decide(member, event):
        asked.append(event.reports)
        failed = next(report for report in event.reports if report.failure is not None)
        member.answer(Restart(rule="test"), failed.failure, "of all", question=event.question)

    def node_at(number):
        node = Node(store, server.endpoint, number, on_question=lambda event: decide(node.member, event))
        return node

    nodes = [node_at(number) for number in range(NODES)]
    failing = nodes[NODES // 2]
    report = NodeReport(node_id=failing.member.settings.node_id, failure=sample_failure(), age_s=0.1)

    def follow(node):
        change = node.member.watch(60)
        if node is not failing:
            assert isinstance(change, StopOrdered)
            heard[node] = time.monotonic()
            node.member.report_stopped(NodeReport(node_id=node.member.settings.node_id, final=True))
            change = node.member.watch(60)
        assert isinstance(change, Decided)
        decided[node] = (time.monotonic(), change.evidence)

    try:
        for node in nodes:
            node.start()
        wait_for(lambda: all(node.info is not None for node in nodes), within_s=60, what="a round of all")
        for node in nodes:
            threading.Thread(target=follow, args=(node,), daemon=True).start()
        began_s = time.monotonic()
        failing.member.order_stop("exit code 7", report)
        failing.member.report_stopped(replace(report, final=True))
        wait_for(lambda: len(heard) == NODES - 1, what="all to hear of the stop")
        wait_for(lambda: len(decided) == NODES, what="all to hear of the decision")
    finally:
        leaving = [threading.Thread(target=node.member.shutdown) for node in nodes]
        for thread in leaving:
            thread.start()
        for thread in leaving:
            thread.join()
    heard_s = max(heard.values()) - began_s
    decided_s = max(at_s for at_s, _ in decided.values()) - began_s
    print(f"{NODES} nodes on {backend}: all heard of the stop in {heard_s:.3f} s, of the decision in {decided_s:.3f} s")
    kept(heard_s, SPREAD_S)
    kept(decided_s, 4.0)
    assert {evidence for _, evidence in decided.values()} == {"of all"}
    assert len(asked) == 1
    # Who had not been heard after two seconds was decided about without its word.
    assert len(asked[0]) == NODES or decided_s > 2.0
