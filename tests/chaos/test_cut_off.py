"""An outage of the store against being cut off from it: nodes in network namespaces, with links that the test cuts."""

import os
import re
import shutil
import subprocess
import time

import pytest

from chaos.multi_node import FULL_FIRST, LEASE_S, SLACK_S, Run, inside
from etcd_servers import EtcdCluster, EtcdServer
from patience import kept
from proc_kit import is_alive
from redis_servers import RedisServer
from support import lacks, wait_for

AWAY = "store unreachable"


def ip(*args):
    """Call `ip`."""
    subprocess.run(["ip", *args], check=True, capture_output=True)


class Network:
    """A switch, and hosts on it, each with an address in three networks. None has a way out of them."""

    SUBNET = "10.77.7"
    SECOND = "10.88.8"
    SIXTH = "fd00:77::"

    def __init__(self):
        self._switch = f"els{os.getpid()}"
        self._names: list[str] = []
        ip("netns", "add", self._switch)
        ip("-n", self._switch, "link", "add", "br0", "type", "bridge")
        ip("-n", self._switch, "link", "set", "br0", "up")

    def host(self):
        """Add a host; return its namespace and address."""
        at = len(self._names) + 1
        name, address = f"elh{os.getpid()}-{at}", f"{self.SUBNET}.{at}"
        ip("netns", "add", name)
        self._names.append(name)
        ip("-n", self._switch, "link", "add", f"p{at}", "type", "veth", "peer", "name", "eth0", "netns", name)
        ip("-n", self._switch, "link", "set", f"p{at}", "master", "br0", "up")
        ip("-n", name, "link", "set", "lo", "up")
        ip("-n", name, "addr", "add", f"{address}/24", "dev", "eth0")
        ip("-n", name, "addr", "add", f"{self.SECOND}.{at}/24", "dev", "eth0")
        ip("-n", name, "addr", "add", f"{self.SIXTH}{at}/64", "dev", "eth0", "nodad")
        ip("-n", name, "link", "set", "eth0", "up")
        return name, address

    def plug(self, name, state):
        """Set the link of a host `up` or `down`."""
        ip("-n", self._switch, "link", "set", f"p{self._names.index(name) + 1}", state)

    def close(self):
        """Remove all."""
        for name in (*self._names, self._switch):
            subprocess.run(["ip", "netns", "del", name], check=False, capture_output=True)


@pytest.fixture
def network():
    """A network of the test's own."""
    if os.geteuid():
        lacks("network namespaces, which only root makes")
    if not shutil.which("ip"):
        lacks("ip", install="apt-get install iproute2")
    try:
        made = Network()
    except (OSError, subprocess.CalledProcessError):
        lacks("network namespaces")
    yield made
    made.close()


def server_at(kind, folder, address):
    """Return a server that can listen on an address of the namespace where this is called."""
    if kind == "redis":
        return RedisServer(folder, host=address, port=6379, config=("--protected-mode", "no"))
    return EtcdServer(folder, host=address)


@pytest.fixture(params=["redis", "etcd"])
def cluster(network, elastic, tmp_path, request):
    """Three nodes in one round, each on a host of its own, and the store on another one."""
    place, address = network.host()
    server = inside(place, lambda: server_at(request.param, tmp_path / "store", address))
    try:
        inside(place, server.start)
        run = Run(elastic, tmp_path, server=server)
        hosts = {name: network.host()[0] for name in "abc"}
        nodes = {name: run.node(name, "2:3", conf=FULL_FIRST, within=host) for name, host in hosts.items()}
        for node in nodes.values():
            node.said(world=3)
        yield run, nodes, hosts, place
    finally:
        server.stop()


@pytest.mark.parametrize("how", ["link down", "no way to the store"])
def test_a_node_that_is_cut_off_stops_in_time(cluster, network, how):
    run, nodes, hosts, _ = cluster
    cut = nodes["b"]
    others = [nodes["a"], nodes["c"]]
    worker, gen = cut.says()[-1]["pid"], cut.says()[-1]["gen"]
    began_s = time.monotonic()
    store = run.server.host
    if how == "link down":
        network.plug(hosts["b"], "down")
    else:
        ip("-n", hosts["b"], "route", "add", "blackhole", f"{store}/32")
    wait_for(lambda: not is_alive(worker), within_s=LEASE_S, what="the end of its workers before that of its lease")
    kept(time.monotonic() - began_s, LEASE_S)
    after = [node.said(world=2, gen=gen + 1, within_s=LEASE_S + SLACK_S) for node in others]
    assert cut.last_alive_s(worker) < min(line["at"] for line in after)
    if how == "link down":
        network.plug(hosts["b"], "up")
    else:
        ip("-n", hosts["b"], "route", "del", "blackhole", f"{store}/32")
    again = [node.said(world=3, gen=gen + 2) for node in nodes.values()]
    assert {line["restarts"] for line in again} == {0}
    run.all_end(*nodes.values())
    (told,) = [line for line in cut.agent.err.splitlines() if "cut off" in line]
    found = "none of 2 other nodes answered" if how == "link down" else "2 of 2 other nodes reach it"
    assert f": this node is cut off from {run.backend} at {run.server.endpoint}: {found}" in told


def test_nodes_that_are_cut_off_together_stop_in_time(cluster):
    """Two of three reach each other, and neither the store nor the third: what they tell each other is not enough."""
    run, nodes, hosts, _ = cluster
    gen = nodes["a"].says()[-1]["gen"]
    workers = {name: nodes[name].says()[-1]["pid"] for name in "bc"}
    elsewhere = (run.server.host, f"{Network.SUBNET}.2")
    began_s = time.monotonic()
    for name in "bc":
        for address in elsewhere:
            ip("-n", hosts[name], "route", "add", "blackhole", f"{address}/32")
    for worker in workers.values():
        wait_for(lambda worker=worker: not is_alive(worker), within_s=LEASE_S, what="the end of its workers")
    kept(time.monotonic() - began_s, LEASE_S)
    for name in "bc":
        for address in elsewhere:
            ip("-n", hosts[name], "route", "del", "blackhole", f"{address}/32")
    again = [node.said(world=3, gen=gen + 1) for node in nodes.values()]
    assert {line["restarts"] for line in again} == {0}
    run.all_end(*nodes.values())
    assert "1 of 2 other nodes answered that it is away for all, and all are needed" in nodes["b"].agent.err


def test_a_store_that_nobody_reaches_stops_nobody(cluster, network):
    run, nodes, _, place = cluster
    pids = [line["pid"] for node in nodes.values() for line in node.says()]
    began_s = time.monotonic()
    network.plug(place, "down")
    for node in nodes.values():
        node.told(AWAY)
    wait_for(lambda: time.monotonic() - began_s > 3 * LEASE_S, what="three leases without the store")
    network.plug(place, "up")
    back_s = time.monotonic()
    for node in nodes.values():
        node.told("store back")
    wait_for(lambda: time.monotonic() - back_s > 1.5 * LEASE_S, what="more than the lease that all are granted")
    assert [line["pid"] for node in nodes.values() for line in node.says()] == pids
    run.all_end(*nodes.values())
    for node in nodes.values():
        slow_start = (": connect of backend 'redis' ", ": connect of backend 'etcd' ")  # said on a busy machine
        others = [line for line in node.agent.err.splitlines() if not any(text in line for text in slow_start)]
        assert len(others) == 2, node.agent.err


def test_addresses_are_those_that_the_others_can_reach(cluster):
    run, nodes, _, _ = cluster
    master = nodes["a"].says()[-1]["master"]
    assert master.startswith(Network.SUBNET)
    assert {node.says()[-1]["master"] for node in nodes.values()} == {master}
    run.all_end(*nodes.values())


WAYS = {
    "a loopback store on the first node's host": (["1 127.0.0.1", "2 10.77.7.1"], ["10.77.7.1", "10.77.7.2"]),
    "a loopback store on the second node's host": (["2 10.77.7.1", "1 127.0.0.1"], ["10.77.7.2", "10.77.7.1"]),
    "several addresses": (
        ["1 10.77.7.1 --local-addr 10.88.8.1", "2 10.77.7.1 --local-addr 10.88.8.2"],
        ["10.88.8.1", "10.88.8.2"],
    ),
    "IPv6": (["1 [fd00:77::1]", "2 [fd00:77::1]"], ["fd00:77::1", "fd00:77::2"]),
    "one of each family": (["1 [fd00:77::1]", "2 10.77.7.1"], ["fd00:77::1", "10.77.7.2"]),
}
"""For each of two nodes in order of arrival its host, its endpoint, its options; then the addresses in the roster."""


@pytest.mark.parametrize("way", WAYS)
def test_an_outage_stops_nobody_whichever_addresses_were_chosen(network, elastic, tmp_path, way):
    lines, expected = WAYS[way]
    hosts = [network.host()[0], network.host()[0]]
    everywhere = ("--bind", "*", "-::*", "--protected-mode", "no")
    server = RedisServer(tmp_path / "store", host="127.0.0.1", port=6379, config=everywhere)
    try:
        inside(hosts[0], server.start)
        run = Run(elastic, tmp_path, server=server)
        nodes = []
        for name, line in zip("ab", lines, strict=True):
            at, store, *options = line.split()
            run.endpoint = f"{store}:6379"
            nodes.append(run.node(name, "2", *options, within=hosts[int(at) - 1]))
            inside(hosts[0], lambda: run.has_seats(len(nodes)))
        pids = [node.said(world=2)["pid"] for node in nodes]
        told = inside(hosts[0], lambda: server.call(f"HGETALL elastic:{{{run.id}}}:state"))
        assert re.findall(r'\["\w+","[ab]","([^"]+)",\d+', told) == expected, told
        server.pause()
        began_s = time.monotonic()
        for node in nodes:
            node.told(AWAY)
        wait_for(lambda: time.monotonic() - began_s > 3 * LEASE_S, what="three leases without the store")
        server.resume()
        for node in nodes:
            node.told("store back")
        run.all_end(*nodes)
        errors = "\n".join(f"{node.name}: {node.agent.err}" for node in nodes)
        assert [line["pid"] for node in nodes for line in node.says()] == pids, errors
    finally:
        server.stop()


def test_the_embedded_store_is_on_the_node_that_has_its_address(network, elastic, tmp_path):
    hosts = [network.host() for _ in "abc"]
    run = Run(elastic, tmp_path, endpoint=f"{hosts[1][1]}:29400")
    a, b, c = (
        run.node(name, "2:3", conf=FULL_FIRST, within=host) for name, (host, _) in zip("abc", hosts, strict=True)
    )
    for node in (a, b, c):
        node.said(world=3)
    network.plug(hosts[2][0], "down")
    worker = c.says()[-1]["pid"]
    after = [node.said(world=2, within_s=LEASE_S + SLACK_S)["at"] for node in (a, b)]
    assert c.last_alive_s(worker) < min(after)
    c.ends(4, within_s=LEASE_S)
    network.plug(hosts[1][0], "down")
    a.ends(4, within_s=LEASE_S + SLACK_S)
    for node in (a, c):
        assert "hosts the rendezvous store" in node.agent.err


# --- hosts that have a member of etcd each


ELECTION_S = 0.5


class SpreadCluster(EtcdCluster):
    """Three members, each in a network namespace of its own."""

    def __init__(self, folder, hosts):
        super().__init__(folder)
        members = ",".join(f"n{at}=http://{address}:2380" for at, (_, address) in enumerate(hosts))
        self.members = [
            EtcdServer(
                folder / f"n{at}",
                name=f"n{at}",
                host=address,
                ports=(2379, 2380),
                members=members,
                election_ms=int(ELECTION_S * 1000),
            )
            for at, (_, address) in enumerate(hosts)
        ]
        self._hosts = hosts

    def start(self):
        for (place, _), member in zip(self._hosts, self.members, strict=True):
            inside(place, member.launch)
        for (place, _), member in zip(self._hosts, self.members, strict=True):
            inside(place, lambda member=member: wait_for(member.answers, what=f"an answer of etcd {member.name}"))
        return self

    def leader(self):
        return inside(self._hosts[0][0], super().leader)


@pytest.fixture
def spread(network, elastic, tmp_path):
    """Three nodes in one round, each on a host with a member of etcd, which it asks first."""
    hosts = [network.host() for _ in "abc"]
    cluster = SpreadCluster(tmp_path / "etcd", hosts)
    try:
        cluster.start()
        run = Run(elastic, tmp_path, server=cluster)
        nodes = []
        for at, name in enumerate("abc"):
            run.endpoint = ",".join(member.endpoint for member in (*cluster.members[at:], *cluster.members[:at]))
            nodes.append(run.node(name, "2:3", conf=FULL_FIRST, within=hosts[at][0]))
        for node in nodes:
            node.said(world=3)
        yield run, nodes, hosts
    finally:
        cluster.stop()


@pytest.mark.parametrize("leads", [False, True], ids=["a follower's host", "the leader's host"])
def test_a_host_with_a_member_of_its_own_is_cut_off(spread, network, leads):
    run, nodes, hosts = spread
    leader = run.server.members.index(run.server.leader())
    at = leader if leads else (leader + 1) % 3
    cut, others = nodes[at], [node for node in nodes if node is not nodes[at]]
    worker, gen = cut.says()[-1]["pid"], cut.says()[-1]["gen"]
    network.plug(hosts[at][0], "down")
    began_s = time.monotonic()
    wait_for(lambda: not is_alive(worker), within_s=2 * LEASE_S, what="the end of its workers")
    kept(time.monotonic() - began_s, LEASE_S)  # before its lease ends; before the others go on, see below
    after = [node.said(world=2, within_s=LEASE_S + SLACK_S + ELECTION_S) for node in others]
    assert cut.last_alive_s(worker) < min(line["at"] for line in after)
    assert {line["gen"] for line in after} == {gen + 1}
    network.plug(hosts[at][0], "up")
    again = [node.said(world=3, gen=gen + 2) for node in nodes]
    assert {line["restarts"] for line in again} == {0}
    run.all_end(*nodes)
