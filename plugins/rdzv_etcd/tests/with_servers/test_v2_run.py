"""Runs of several nodes with `--rdzv-backend etcd-v2`: agents as processes of their own, lost in every way."""

import os
import signal
import time

import pytest

from chaos.multi_node import LEASE_S, SLACK_S, Run
from elastic_core.api import WaitBudget
from etcd_servers import EtcdServer
from patience import kept
from support import launcher
from time_limits import GUARD_S, REPLACED_S

LATE_S = 1.0
"""A server deletes what has expired twice a second, and TTLs are whole seconds."""


@pytest.fixture
def elastic(tmp_path):
    yield from launcher(tmp_path)


@pytest.fixture
def start(elastic, tmp_path):
    """Make runs on a server."""

    def make(endpoint):
        run = Run(elastic, tmp_path, endpoint=endpoint)
        run.backend = "etcd-v2"
        return run

    return make


@pytest.fixture
def run(start, etcd_server):
    return start(etcd_server.endpoint)


def test_a_killed_worker_is_restarted_on_both_nodes(run):
    a, b = (run.node(name, "2", "--max-restarts", "1") for name in "ab")
    first, second = a.said(gen=0, world=2), b.said(gen=0, world=2)
    assert first["master"] == second["master"]
    os.kill(second["pid"], signal.SIGKILL)
    again = [node.said(gen=1, world=2, within_s=5) for node in (a, b)]
    assert {line["restarts"] for line in again} == {1}
    assert [line["rank"] for line in again] == [first["rank"], second["rank"]]
    run.all_end(a, b)


def test_no_restart_waits_for_a_lease(run):
    """A wake-up that was lost cost one in four or five of them a whole lease."""
    run.lease_s = 12.0
    node = run.node("a", "1:1", "--max-restarts", "20")
    for restart in range(20):
        node.said(gen=restart, within_s=9)
        run.exit_rank(0, restart, 1)
    node.said(gen=20, within_s=9)
    run.all_end(node)


def test_a_node_joins_one_is_lost_and_another_takes_its_place(run):
    a = run.node("a", "1:2")
    a.said(world=1)
    began_s = time.monotonic()
    b = run.node("b", "1:2")
    mine, theirs = a.said(world=2), b.said(world=2)
    kept(time.monotonic() - began_s, 5)
    assert (mine["gen"], mine["master"]) == (theirs["gen"], theirs["master"])
    began_s = time.monotonic()
    a.power_off()
    alone = b.said(world=1, within_s=LEASE_S + SLACK_S + LATE_S)
    assert (alone["rank"], alone["restarts"]) == (0, 0)
    kept(time.monotonic() - began_s, LEASE_S + SLACK_S + LATE_S)
    c = run.node("c", "1:2")
    assert b.said(world=2, count=2)["restarts"] == c.said(world=2)["restarts"] == 0
    run.all_end(b, c)


def test_the_guard_of_a_killed_agent_gives_its_seat_back(run):
    run.lease_s = 20 * LEASE_S  # so that nobody takes the end of a lease for the guard's word, on a busy machine either
    a, b = (run.node(name, "1:2") for name in "ab")
    a.said(world=2)
    b.said(world=2)
    began_s = time.monotonic()
    b.kill_agent()
    alone = a.said(world=1, within_s=2 * LEASE_S)
    kept(time.monotonic() - began_s, GUARD_S + REPLACED_S)
    assert (alone["rank"], alone["restarts"]) == (0, 0)
    run.all_end(a)


def test_a_server_that_stands_still_for_longer_than_a_lease_costs_nobody_a_restart(start, tmp_path):
    server = EtcdServer(tmp_path / "etcd", v2=True)
    try:
        run = start(server.start().endpoint)
        a, b = (run.node(name, "2") for name in "ab")
        pids = [node.said(world=2)["pid"] for node in (a, b)]
        server.pause()
        for node in (a, b):
            node.told("store unreachable", within_s=3 * LEASE_S)
        WaitBudget().sleep(LEASE_S)
        server.resume()
        for node in (a, b):
            node.told("store back", within_s=3 * LEASE_S)
        assert [[line["pid"] for line in node.says()] for node in (a, b)] == [[pid] for pid in pids]
        run.all_end(a, b)
    finally:
        server.stop()


def test_a_server_without_the_v2_api_is_one_line(start, tmp_path):
    server = EtcdServer(tmp_path / "etcd")
    try:
        a = start(server.start().endpoint).node("a", "2")
        a.ends(4)
        line = a.agent.err.strip().splitlines()[-1]
        assert "does not speak etcd's v2 API. Try: --enable-v2=true of the server" in line
        assert "--rdzv-backend etcd" in line
    finally:
        server.stop()
