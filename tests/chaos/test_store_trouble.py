"""SCENARIO K3 (b), and being cut off: what a store that is away costs, and whom."""

import os
import re
import signal
import time

import pytest

from chaos.multi_node import FULL_FIRST, LEASE_S, SLACK_S, Run
from proc_kit import command_line, descendants, is_alive
from redis_servers import RedisServer
from support import wait_for

AWAY = "store unreachable"
BACK = "store back"


@pytest.fixture
def pair(troubled_run):
    """Start two nodes; return them when their workers run."""
    nodes = [troubled_run.node(name, "2") for name in "ab"]
    for node in nodes:
        node.said(world=2)
    return nodes


def all_away_for(nodes, server_back, away_s=2 * LEASE_S):
    """Wait until all have missed the store for so long, let it come back, and wait until all have found it again."""
    began_s = time.monotonic()
    for node in nodes:
        node.told(AWAY, within_s=LEASE_S + SLACK_S)
    wait_for(lambda: time.monotonic() - began_s > away_s, what="two leases without the store")
    server_back()
    for node in nodes:
        node.told(BACK, within_s=LEASE_S + SLACK_S)


def same_workers(nodes, pids):
    """Check that the workers are the same as they were."""
    now = [line["pid"] for node in nodes for line in node.says()]
    assert now == pids, "\n".join(f"{node.name}: {node.agent.err}" for node in nodes)


def nothing_happened(run, nodes, pids):
    """Check that the workers are the same, and that each agent said one line each way, and none besides."""
    began_s = time.monotonic()
    wait_for(lambda: time.monotonic() - began_s > 1.5 * LEASE_S, what="more than the lease that all are granted")
    same_workers(nodes, pids)
    run.all_end(*nodes)
    same_workers(nodes, pids)
    for node in nodes:
        said = node.agent.err.splitlines()
        assert [sum(word in line for line in said) for word in (AWAY, BACK)] == [1, 1], node.agent.err
        assert len(said) == 2, node.agent.err


@pytest.mark.parametrize("how", ["stopped", "paused"])
def test_the_server_is_away_and_comes_back(troubled_run, pair, how):
    server = troubled_run.server
    pids = [line["pid"] for node in pair for line in node.says()]
    server.stop() if how == "stopped" else server.pause()
    all_away_for(pair, server.start if how == "stopped" else server.resume)
    nothing_happened(troubled_run, pair, pids)


@pytest.mark.parametrize("addresses", [("127.0.0.5", "127.0.0.7"), ("localhost", "::1")], ids=["IPv4", "a name, IPv6"])
def test_nodes_with_an_address_of_their_own_sit_an_outage_out(troubled_run, addresses):
    """The store is reached from 127.0.0.1: as where hosts have a network for management and one for training."""
    nodes = [
        troubled_run.node(name, "2", "--local-addr", address) for name, address in zip("ab", addresses, strict=True)
    ]
    pids = [node.said(world=2)["pid"] for node in nodes]
    troubled_run.server.pause()
    all_away_for(nodes, troubled_run.server.resume, away_s=3 * LEASE_S)
    nothing_happened(troubled_run, nodes, pids)


@pytest.mark.chaos_full
def test_the_server_is_away_for_20_s(troubled_run):
    troubled_run.lease_s = 10.0
    nodes = [troubled_run.node(name, "2") for name in "ab"]
    pids = [node.said(world=2)["pid"] for node in nodes]
    began_s = time.monotonic()
    troubled_run.server.stop()
    wait_for(lambda: time.monotonic() - began_s > 20, within_s=21, what="20 s without the store")
    troubled_run.server.start()
    for node in nodes:
        node.told(BACK)
    wait_for(lambda: time.monotonic() - began_s > 32, what="more than the lease that all are granted")
    nothing_happened(troubled_run, nodes, pids)


def test_the_server_comes_back_with_its_data(elastic, tmp_path):
    server = RedisServer(tmp_path / "kept", keep_data=True).start()
    try:
        run = Run(elastic, tmp_path, server=server)
        nodes = [run.node(name, "2") for name in "ab"]
        pids = [node.said(world=2)["pid"] for node in nodes]
        server.stop()
        all_away_for(nodes, server.start)
        nothing_happened(run, nodes, pids)
    finally:
        server.stop()


def test_a_replica_takes_the_place_of_the_server(elastic, tmp_path, sentinel):
    run = Run(elastic, tmp_path, server=sentinel.primary, endpoint=sentinel.endpoint)
    nodes = [run.node(name, "2", conf=f"sentinel_master={sentinel.name}") for name in "ab"]
    pids = [node.said(world=2)["pid"] for node in nodes]
    sentinel.fail_over()
    for node in nodes:
        node.told(BACK)
    nothing_happened(run, nodes, pids)


def test_the_server_is_emptied(troubled_run, pair):
    pids = [line["pid"] for node in pair for line in node.says()]
    troubled_run.forget()
    began_s = time.monotonic()
    troubled_run.has_seats(2)
    wait_for(lambda: time.monotonic() - began_s > 1.5 * LEASE_S, what="more than the lease that all are granted")
    assert [line["pid"] for node in pair for line in node.says()] == pids
    troubled_run.all_end(*pair)


def test_an_emptied_server_takes_in_newcomers(troubled_run):
    a = troubled_run.node("a", "1:2")
    a.said(world=1)
    troubled_run.forget()
    troubled_run.has_seats(1)
    b = troubled_run.node("b", "1:2")
    mine, theirs = a.said(world=2), b.said(world=2)
    assert mine["gen"] == theirs["gen"] == 1
    troubled_run.all_end(a, b)


def test_a_node_dies_while_the_server_is_away(troubled_run):
    nodes = [troubled_run.node(name, "2:3", conf=FULL_FIRST) for name in "abc"]
    for node in nodes:
        node.said(world=3)
    troubled_run.server.pause()
    for node in nodes:
        node.told(AWAY)
    lost = nodes.pop()
    lost.power_off()
    troubled_run.server.resume()
    for node in nodes:
        node.said(world=2, within_s=2 * LEASE_S + SLACK_S)
    troubled_run.all_end(*nodes)


def test_one_node_alone_trains_on(troubled_run):
    a = troubled_run.node("a", "1")
    pids = [a.said()["pid"]]
    troubled_run.server.stop()
    all_away_for([a], troubled_run.server.start)
    nothing_happened(troubled_run, [a], pids)


def test_a_run_can_end_without_its_server(troubled_run):
    a = troubled_run.node("a", "1")
    a.said()
    troubled_run.server.stop()
    a.told(AWAY)
    troubled_run.finish()
    a.ends(0, within_s=5)


def test_several_nodes_can_end_without_their_server(troubled_run):
    nodes = [troubled_run.node(name, "2", "--store-outage-grace", "3") for name in "ab"]
    for node in nodes:
        node.said(world=2)
    troubled_run.server.stop()
    for node in nodes:
        node.told(AWAY)
    troubled_run.all_end(*nodes, within_s=8)


def test_the_loss_of_the_server_can_end_the_run(troubled_run):
    nodes = [troubled_run.node(name, "2", "--on-store-loss", "fail", "--store-outage-grace", "1.5") for name in "ab"]
    pids = [node.said(world=2)["pid"] for node in nodes]
    troubled_run.server.stop()
    for node in nodes:
        node.ends(4, within_s=8)
        assert "stayed away for 1.5 s" in node.agent.err
    assert not any(is_alive(pid) for pid in pids)


def test_a_worker_fails_while_the_server_is_away(troubled_run):
    nodes = [troubled_run.node(name, "2", "--max-restarts", "1") for name in "ab"]
    for node in nodes:
        node.said(world=2)
    troubled_run.server.pause()
    for node in nodes:
        node.told(AWAY)
    troubled_run.exit_rank(1, 0, 9)
    wait_for(lambda: not is_alive(next(n for n in nodes if n.says()[0]["rank"] == 1).says()[0]["pid"]))
    troubled_run.server.resume()
    for node in nodes:
        assert node.said(world=2, gen=1)["restarts"] == 1
    troubled_run.all_end(*nodes)


def full(server, *, yet):
    """Have a server take no more writes, or take them again."""
    if isinstance(server, RedisServer):
        assert server.call(f"CONFIG SET maxmemory {int(yet)}").startswith("+OK")
    else:
        server.call("maintenance/alarm", {"action": "ACTIVATE" if yet else "DEACTIVATE", "alarm": "NOSPACE"})


def test_a_worker_fails_while_the_server_is_full(troubled_run):
    nodes = [troubled_run.node(name, "2", "--max-restarts", "1") for name in "ab"]
    for node in nodes:
        node.said(world=2)
    failing = next(node for node in nodes if node.says()[0]["rank"] == 1)
    full(troubled_run.server, yet=True)
    troubled_run.exit_rank(1, 0, 9)
    failing.told(f"{AWAY}: {troubled_run.server.endpoint} is out of ")
    full(troubled_run.server, yet=False)
    for node in nodes:
        assert node.said(world=2, gen=1)["restarts"] == 1
    assert [sum(word in line for line in failing.agent.err.splitlines()) for word in (AWAY, BACK)] == [1, 1]
    troubled_run.all_end(*nodes)


def test_the_loss_of_writes_can_end_the_run(troubled_run):
    options = ("--on-store-loss", "fail", "--store-outage-grace", "1.5", "--max-restarts", "1")
    nodes = [troubled_run.node(name, "2", *options) for name in "ab"]
    for node in nodes:
        node.said(world=2)
    full(troubled_run.server, yet=True)
    troubled_run.exit_rank(1, 0, 9)
    for node in nodes:
        node.ends(4, within_s=4 * LEASE_S + SLACK_S)
        assert "stayed away for 1.5 s" in node.agent.err


# --- the embedded store


LOST = "hosts the rendezvous store"


@pytest.fixture
def hosted(elastic, tmp_path):
    """Three nodes in one round; the first one hosts their store."""
    run = Run(elastic, tmp_path)
    nodes = [run.node(name, "2:3", conf=FULL_FIRST) for name in "abc"]
    for node in nodes:
        node.said(world=3)
    return run, nodes


def all_give_up(nodes, within_s=LEASE_S + SLACK_S):
    """Check that each of these nodes ends with the one verdict, and its workers with it."""
    for node in nodes:
        node.ends(4, within_s=within_s)
        assert LOST in node.agent.err
    assert not any(is_alive(line["pid"]) for node in nodes for line in node.says())


@pytest.mark.parametrize("how", ["power lost", "agent killed"])
def test_the_host_of_the_store_is_lost(hosted, how):
    _, (host, *others) = hosted
    host.power_off() if how == "power lost" else host.kill_agent()
    all_give_up(others)


def test_the_host_of_the_store_is_told_to_stop(hosted):
    _, (host, *others) = hosted
    host.agent.signal(signal.SIGTERM)
    all_give_up(others, within_s=3)
    host.ends(143)
    assert [len(node.says()) for node in others] == [1, 1]  # no round is begun that can't be kept


def test_the_host_of_the_store_is_lost_while_others_wait(elastic, tmp_path):
    run = Run(elastic, tmp_path)
    a, b = [run.node(name, "2") for name in "ab"]
    for node in (a, b):
        node.said(world=2)
    c = run.node("c", "2")
    c.told("waiting as a spare")
    a.power_off()
    all_give_up([b, c])


def test_the_server_of_the_host_dies_and_another_takes_its_place(hosted):
    run, nodes = hosted
    pids = [line["pid"] for node in nodes for line in node.says()]
    os.kill(server_below(nodes[0].agent.pid), signal.SIGKILL)
    died_s = time.monotonic()
    wait_for(lambda: time.monotonic() - died_s > 2 * LEASE_S, what="two leases")
    assert [line["pid"] for node in nodes for line in node.says()] == pids
    run.all_end(*nodes)


def server_below(pid):
    """Return the server among the descendants of an agent."""
    for child in descendants(pid):
        if re.search(rb"(valkey|redis)-server", command_line(child)):
            return child
    raise AssertionError("it has no server")


def test_the_agent_of_the_host_stands_still(hosted):
    run, (host, *others) = hosted
    host.agent.signal(signal.SIGSTOP)
    for node in others:
        node.said(world=2)
    host.agent.signal(signal.SIGCONT)
    for node in (host, *others):
        node.said(world=3, count=2)
    run.all_end(host, *others)
