"""Sixty-four nodes meet over one server: one round, one roster, and what each of them asks of the server is bounded."""

import re
import threading
import urllib.request
from collections import Counter

from elastic_core.types import RendezvousSettings
from elastic_rdzv_etcd.connection import Wire
from elastic_rdzv_etcd.store import EtcdStore
from elastic_rdzv_redis.store import RedisStore
from etcd_servers import etcd_private
from member_kit import Member
from redis_servers import redis_server
from support import wait_for

__all__ = ["etcd_private", "redis_server"]

NODES = 64
OPERATIONS_A_NODE = 20
BYTES_A_NODE, FIXED_BYTES, ETCD_FIXED_BYTES = 64 * NODES, 10_000, 30_000
"""What a node may move: some of it grows with the round, most of it does not; over etcd each request has its heads."""
SCRIPTS_BYTES = 40_000
"""Once for all: the server learns the scripts."""


class Node(threading.Thread):
    """One node's rendezvous, as its agent would use it."""

    def __init__(self, store, endpoint, number, *, on_question=lambda event: None):
        super().__init__(daemon=True)
        settings = RendezvousSettings(
            backend="of the test", run_id="many", endpoint=endpoint, min_nodes=NODES, max_nodes=NODES,
            local_world_size=8, node_id=f"node{number:03}@10.0.0.{number}", local_addr=f"10.0.0.{number}",
            incarnation=f"{number:012x}",
            # No renewals while we count, however slow this machine is.
            options={"lease_ttl": 120.0},
        )  # fmt: skip
        self.member = Member(store(settings), settings, on_question=on_question)
        self.info = None

    def run(self):
        self.info = self.member.join(60.0)


def form_a_round(store, endpoint, count):
    """Let all nodes meet; return what they and the server counted meanwhile."""
    nodes = [Node(store, endpoint, number) for number in range(NODES)]
    before = count()
    try:
        for node in nodes:
            node.start()
        wait_for(lambda: all(node.info is not None for node in nodes), within_s=60, what="a round of all")
        counted = count() - before
        print(
            f"{NODES} nodes: {counted['operations'] / NODES:.1f} operations, {counted['bytes'] / NODES:.0f} bytes each"
        )
        infos = [node.info for node in nodes]
        assert sorted(info.rank for info in infos) == list(range(NODES))
        assert len({(info.round_token, info.nonce, info.members) for info in infos}) == 1
        assert {member.node_id for member in infos[0].members} == {node.member.settings.node_id for node in nodes}
        assert [infos[0].members[node.info.rank].node_id for node in nodes] == [
            node.member.settings.node_id for node in nodes
        ]
    finally:
        left = [node.member.shutdown() for node in nodes]
    assert all(left)
    return counted


def test_64_nodes_form_one_round_and_ask_little(redis_server):
    def count():
        stats = Counter()
        for line in (redis_server.call("INFO commandstats") + redis_server.call("INFO stats")).split("\r\n"):
            name, _, value = line.partition(":")
            if name in ("cmdstat_evalsha", "cmdstat_eval"):
                stats["operations"] += int(value.partition("calls=")[2].partition(",")[0])
            elif name in ("total_net_input_bytes", "total_net_output_bytes"):
                stats["bytes"] += int(value)
        return stats

    counted = form_a_round(RedisStore, redis_server.endpoint, count)
    assert counted["operations"] <= OPERATIONS_A_NODE * NODES
    assert counted["bytes"] <= (BYTES_A_NODE + FIXED_BYTES) * NODES + SCRIPTS_BYTES


def test_64_nodes_form_one_round_over_etcd_and_ask_little(etcd_private, monkeypatch):
    moved, lock = Counter(), threading.Lock()
    sendall, receive = Wire.sendall, Wire.receive

    def counting(size):
        with lock:
            moved["bytes"] += size
        return size

    monkeypatch.setattr(Wire, "sendall", lambda wire, data: [sendall(wire, data), counting(len(data))][0])
    monkeypatch.setattr(Wire, "receive", lambda wire, buffer: counting(receive(wire, buffer)))

    def count():
        with urllib.request.urlopen(f"{etcd_private.url}/metrics", timeout=5) as answer:
            text = answer.read().decode()
        calls = re.findall(r'^grpc_server_started_total\{.*"etcdserverpb\.\w+".* (\d+)$', text, re.M)
        return Counter(operations=sum(map(int, calls)), bytes=moved["bytes"])

    counted = form_a_round(EtcdStore, etcd_private.endpoint, count)
    assert counted["operations"] <= OPERATIONS_A_NODE * NODES
    assert counted["bytes"] <= (BYTES_A_NODE + ETCD_FIXED_BYTES) * NODES
