"""Sixty-four nodes meet over one server: one round, one roster, and what each of them asks of the server is bounded."""

import threading
import time
from collections import Counter

from msgspec.structs import replace

from elastic_core.clock import WaitBudget
from elastic_core.rendezvous.coordinated import CoordinatedRendezvous
from elastic_core.rendezvous.handler import NoServices
from elastic_core.testing import sample_failure
from elastic_core.types import Decided, NodeReport, RendezvousSettings, Restart, StopOrdered
from elastic_rdzv_redis.store import RedisStore
from redis_servers import redis_server
from support import wait_for

__all__ = ["redis_server"]

NODES = 64
OPERATIONS_A_NODE = 20
BYTES_A_NODE, FIXED_BYTES = 64 * NODES, 10_000
"""What a node may move: some of it grows with the round, most of it does not."""
SCRIPTS_BYTES = 40_000
"""Once for all: the server learns the scripts."""


class Node(threading.Thread):
    """One node's rendezvous, as its agent would use it."""

    def __init__(self, endpoint, number):
        super().__init__(daemon=True)
        settings = RendezvousSettings(
            backend="redis", run_id="many", endpoint=endpoint, min_nodes=NODES, max_nodes=NODES, local_world_size=8,
            node_id=f"node{number:03}@10.0.0.{number}", local_addr=f"10.0.0.{number}", incarnation=f"{number:012x}",
            # No renewals while we count, however slow this machine is.
            options={"lease_ttl": 120.0},
        )  # fmt: skip
        self.handler = CoordinatedRendezvous(RedisStore(settings), settings)
        self.handler.wait = WaitBudget.lasting(60)
        self.info = None

    def run(self):
        self.info = self.handler.next_rendezvous()


def _counted(server):
    """Return the calls of scripts, and the bytes both ways."""
    stats = Counter()
    for line in (server.call("INFO commandstats") + server.call("INFO stats")).split("\r\n"):
        name, _, value = line.partition(":")
        if name in ("cmdstat_evalsha", "cmdstat_eval"):
            stats["scripts"] += int(value.partition("calls=")[2].partition(",")[0])
        elif name in ("total_net_input_bytes", "total_net_output_bytes"):
            stats["bytes"] += int(value)
    return stats


def test_64_nodes_form_one_round_and_ask_little(redis_server):
    nodes = [Node(redis_server.endpoint, number) for number in range(NODES)]
    redis_server.call("CONFIG RESETSTAT")
    try:
        for node in nodes:
            node.start()
        wait_for(lambda: all(node.info is not None for node in nodes), within_s=60, what="a round of all")
        counted = _counted(redis_server)
        print(f"{NODES} nodes: {counted['scripts'] / NODES:.1f} operations, {counted['bytes'] / NODES:.0f} bytes each")
        infos = [node.info for node in nodes]
        assert sorted(info.rank for info in infos) == list(range(NODES))
        assert len({(info.round_token, info.nonce, info.members) for info in infos}) == 1
        assert {member.node_id for member in infos[0].members} == {node.handler.settings.node_id for node in nodes}
        assert [infos[0].members[node.info.rank].node_id for node in nodes] == [
            node.handler.settings.node_id for node in nodes
        ]
        assert counted["scripts"] <= OPERATIONS_A_NODE * NODES
        assert counted["bytes"] <= (BYTES_A_NODE + FIXED_BYTES) * NODES + SCRIPTS_BYTES
    finally:
        for node in nodes:
            node.handler.wait.cancel()
        left = [node.handler.shutdown() for node in nodes]
    assert all(left)


class Deciding(NoServices):
    """Decides whenever it is asked to, and counts how often that was."""

    def __init__(self, handler, asked):
        self.handler, self.asked = handler, asked

    def decide(self, reports, history):
        self.asked.append(reports)
        failed = next(report for report in reports if report.failure is not None)
        self.handler.answer(Restart(rule="test"), failed.failure, evidence="of all")


def test_64_nodes_stop_within_a_second_and_hear_one_decision(redis_server):
    nodes, asked, heard, decided = [Node(redis_server.endpoint, n) for n in range(NODES)], [], {}, {}
    for node in nodes:
        node.handler.services = Deciding(node.handler, asked)

    def follow(node):
        node.handler.wait = WaitBudget.lasting(60)
        change = node.handler.watch(60)
        if node is not failing:
            assert isinstance(change, StopOrdered)
            heard[node] = time.monotonic()
            node.handler.report_stopped(NodeReport(node_id=node.handler.settings.node_id, final=True))
            change = node.handler.watch(60)
        assert isinstance(change, Decided)
        decided[node] = (time.monotonic(), change.evidence)

    failing = nodes[NODES // 2]
    report = NodeReport(node_id=failing.handler.settings.node_id, failure=sample_failure(), age_s=0.1)
    try:
        for node in nodes:
            node.start()
        wait_for(lambda: all(node.info is not None for node in nodes), within_s=60, what="a round of all")
        threads = [threading.Thread(target=follow, args=(node,), daemon=True) for node in nodes]
        for thread in threads:
            thread.start()
        began_s = time.monotonic()
        failing.handler.order_stop("exit code 7", report)
        failing.handler.report_stopped(replace(report, final=True))
        wait_for(lambda: len(heard) == NODES - 1, what="all to hear of the stop")
        wait_for(lambda: len(decided) == NODES, what="all to hear of the decision")
    finally:
        for node in nodes:
            threading.Thread(target=node.handler.shutdown, daemon=True).start()
    last_s = [max(heard.values()) - began_s, max(at_s for at_s, _ in decided.values()) - began_s]
    print(f"{NODES} nodes: all heard of the stop within {last_s[0]:.3f} s, of the decision within {last_s[1]:.3f} s")
    assert last_s[0] < 1.0
    assert last_s[1] < 2.0
    assert {evidence for _, evidence in decided.values()} == {"of all"}
    assert len(asked) == 1
    assert len(asked[0]) == NODES
