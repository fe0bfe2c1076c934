"""Ends of a run that no worker is to blame for: what class of failure each node writes down."""

import json
import signal

from chaos.multi_node import FULL_FIRST, LEASE_S, Run
from patience import slowness


def incident(node):
    (path,) = node.agent.runtime.glob("elastic-*/*/incident.json")
    return json.loads(path.read_text())


def of_class(node, kind):
    found = incident(node)
    assert (found["failure_class"], found["source"], found["node_count"]) == (kind, "launcher", 2)
    return found


def test_node_lost_beyond_what_is_allowed(redis_run):
    a, b = (redis_run.node(name, "1:2", "--max-membership-changes", "0", conf=FULL_FIRST) for name in "ab")
    a.said(world=2)
    b.kill_agent()
    a.ends(4)
    assert "b lost, and --max-membership-changes is 0" in of_class(a, "node lost")["summary"]


def test_node_that_is_told_to_stop_beyond_what_is_allowed(redis_run):
    a, b = (redis_run.node(name, "1:2", "--max-membership-changes", "0", conf=FULL_FIRST) for name in "ab")
    a.said(world=2)
    b.agent.signal(signal.SIGTERM)
    a.ends(4)
    assert "b left, and --max-membership-changes is 0" in of_class(a, "preempted")["summary"]


def test_host_of_the_store_is_told_to_stop(elastic, tmp_path):
    run = Run(elastic, tmp_path)
    a, b = (run.node(name, "2") for name in "ab")
    for node in (a, b):
        node.said(world=2)
    a.agent.signal(signal.SIGTERM)
    b.ends(4)
    assert "which hosts the rendezvous store" in of_class(b, "preempted")["summary"]


def test_too_few_nodes_come_back(redis_run):
    limit = 2 * slowness(now=True)  # in which both start
    a, b = (redis_run.node(name, "2", conf=f"join_timeout={limit:g}") for name in "ab")
    a.said(world=2)
    b.kill_agent()
    a.ends(4)
    found = incident(a)
    assert (found["failure_class"], found["source"], found["exit_code"]) == ("rendezvous", "launcher", 4)


def test_store_stays_away_for_longer_than_the_user_allows(troubled_run):
    options = ("--store-outage-grace", "1", "--on-store-loss", "fail")
    conf = f"lease_ttl={2 * LEASE_S:g}"  # that nobody is cut off before, on a machine that asks its peers late
    a, b = (troubled_run.node(name, "2", *options, conf=conf) for name in "ab")
    for node in (a, b):
        node.said(world=2)
    troubled_run.server.pause()
    for node in (a, b):
        node.ends(4)
        of_class(node, "store")
    troubled_run.server.resume()
