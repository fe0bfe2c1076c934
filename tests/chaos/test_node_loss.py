"""SCENARIOS K2, K3 (a) and K4: a node's death, departure or standstill is an event, and the others go on."""

import os
import signal
import time

import pytest

from chaos.multi_node import FULL_FIRST, LEASE_S, SLACK_S
from patience import kept
from proc_kit import is_alive, state_of
from support import wait_for
from time_limits import GUARD_S, LEFT_S


def pair(run, nnodes="2", **options):
    """Start nodes a and b, in this order; return them when their workers run."""
    a = run.node("a", nnodes, **options)
    if nnodes.startswith("1"):
        a.said(world=1)
    b = run.node("b", nnodes, **options)
    a.said(world=2)
    b.said(world=2)
    return a, b


# --- K2


@pytest.mark.parametrize("how", ["power lost", "agent killed"])
def test_a_dead_node_is_replaced(run, how):
    a = run.node("a", "2")
    b = run.node("b", "2")
    before = a.said(world=2)
    b.said(world=2)
    began_s = time.monotonic()
    b.power_off() if how == "power lost" else b.kill_agent()
    c = run.node("c", "2")
    mine, theirs = a.said(world=2, gen=1), c.said(world=2, gen=1)
    at_once_s = LEASE_S if run.backend == "etcd" else GUARD_S + 0.5  # its requests cost the agents and the server more
    kept(time.monotonic() - began_s, LEASE_S + SLACK_S if how == "power lost" else at_once_s)
    assert mine["rank"] == before["rank"]
    assert {mine["rank"], theirs["rank"]} == {0, 1}
    assert mine["master"] == theirs["master"]
    assert (mine["restarts"], mine["changes"]) == (theirs["restarts"], theirs["changes"]) == (0, 1)
    run.all_end(a, c)


def test_the_guard_of_a_killed_agent_gives_its_seat_back(served_run):
    a, b = pair(served_run, "1:2")
    worker = b.says()[-1]["pid"]
    began_s = time.monotonic()
    b.kill_agent()
    a.said(world=1, gen=2)
    kept(time.monotonic() - began_s, GUARD_S + 0.2)  # and the worker's start
    assert not is_alive(worker)
    served_run.all_end(a)


# --- K3 (a)


def test_the_first_node_is_lost(served_run):
    a, b = pair(served_run, "1:2")
    began_s = time.monotonic()
    a.power_off()
    alone = b.said(world=1, within_s=LEASE_S + SLACK_S)
    kept(time.monotonic() - began_s, LEASE_S + SLACK_S)
    assert (alone["rank"], alone["restarts"]) == (0, 0)
    assert alone["master"] != b.said(world=2)["master"]
    served_run.all_end(b)


# --- K4


def three(run, nnodes="2:3"):
    """Start nodes a, b and c; return them when all are in one round."""
    nodes = [run.node(name, nnodes, conf=FULL_FIRST) for name in "abc"]
    for node in nodes:
        node.said(world=3)
    return nodes


@pytest.mark.parametrize("how", ["power lost", "agent killed"])
def test_three_go_on_as_two(served_run, how):
    nodes = three(served_run)
    lost = nodes.pop(1)
    rank = lost.said(world=3)["rank"]
    before = {node.name: node.said(world=3)["rank"] for node in nodes}
    began_s = time.monotonic()
    lost.power_off() if how == "power lost" else lost.kill_agent()
    after = {node.name: node.said(world=2)["rank"] for node in nodes}
    kept(time.monotonic() - began_s, LEASE_S + SLACK_S)
    assert sorted(after.values()) == [0, 1]
    assert sorted(before, key=before.get) == sorted(after, key=after.get), rank  # the survivors keep their order
    assert all(node.said(world=2)["restarts"] == 0 for node in nodes)
    assert all("failed" not in node.agent.err for node in nodes), [node.agent.err for node in nodes]
    served_run.all_end(*nodes)


def test_a_stopped_agent_is_fenced_and_comes_back(run):
    nodes = three(run)
    stopped = nodes[-1]
    gen = max(line["gen"] for line in stopped.says())
    worker = stopped.says()[-1]["pid"]
    stopped.agent.signal(signal.SIGSTOP)
    others = [node.said(world=2, within_s=LEASE_S + SLACK_S) for node in nodes[:2]]
    assert {line["gen"] for line in others} == {gen + 1}
    assert not is_alive(worker)
    assert stopped.last_alive_s(worker) < min(line["at"] for line in others)
    stopped.agent.signal(signal.SIGCONT)
    again = [node.said(world=3, gen=gen + 2) for node in nodes]
    assert sorted(line["rank"] for line in again) == [0, 1, 2]
    assert {line["restarts"] for line in again} == {0}
    assert len({line["master"] for line in again}) == 1
    run.all_end(*nodes)


def test_a_node_that_its_terminal_stops_reports_the_lease_and_comes_back(redis_run):
    a, b = pair(redis_run, nnodes="1:2")
    worker, gen = b.says()[-1]["pid"], b.says()[-1]["gen"]
    b.agent.signal(signal.SIGTSTP)
    b.told("the agent and 1 worker stop here; unless they are continued within")
    wait_for(lambda: state_of(b.agent.pid) == state_of(worker) == "T", what="agent and worker to stand still")
    alone = a.said(world=1, gen=gen + 1, within_s=LEASE_S + SLACK_S)
    assert b.last_alive_s(worker) < alone["at"]
    wait_for(lambda: not is_alive(worker), what="the guard to end the worker")
    b.agent.signal(signal.SIGCONT)
    again = [node.said(world=2, gen=gen + 2) for node in (a, b)]
    assert {line["restarts"] for line in again} == {0}
    redis_run.all_end(a, b)


def test_a_stopped_leader_is_fenced_and_comes_back(served_run):
    nodes = three(served_run)
    stopped = min(nodes, key=lambda node: node.said(world=3)["rank"])
    gen = max(line["gen"] for line in stopped.says())
    others = [node for node in nodes if node is not stopped]
    worker = stopped.says()[-1]["pid"]
    stopped.agent.signal(signal.SIGSTOP)
    formed = [node.said(world=2, within_s=LEASE_S + SLACK_S) for node in others]
    assert stopped.last_alive_s(worker) < min(line["at"] for line in formed)
    stopped.agent.signal(signal.SIGCONT)
    for node in nodes:
        node.said(world=3, gen=gen + 2)
    served_run.all_end(*nodes)


def test_a_short_standstill_is_nothing(served_run):
    a, b = pair(served_run)
    b.agent.signal(signal.SIGSTOP)
    stopped_s = time.monotonic()
    wait_for(lambda: time.monotonic() - stopped_s > LEASE_S / 4, what="a quarter of the lease")
    b.agent.signal(signal.SIGCONT)
    wait_for(lambda: time.monotonic() - stopped_s > 2 * LEASE_S, what="two leases")
    served_run.all_end(a, b)
    assert len(a.says()) == len(b.says()) == 1


# --- a departure that is announced


def test_a_node_told_to_stop_is_not_waited_for(run):
    nodes = three(run)
    leaving = nodes[-1]
    began_s = time.monotonic()
    leaving.agent.signal(signal.SIGTERM)
    left = [node.said(world=2) for node in nodes[:2]]
    kept(time.monotonic() - began_s, LEFT_S)
    assert {line["restarts"] for line in left} == {0}
    leaving.ends(143)
    run.all_end(*nodes[:2])


STUBBORN = """
import os, signal
if os.environ["ELASTIC_NODE_ID"] == "b":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
"""


def test_the_others_regroup_while_a_node_drains(redis_run):
    redis_run.script.write_text(STUBBORN + redis_run.script.read_text())
    a, b = pair(redis_run, "1:2")
    worker = b.says()[-1]["pid"]
    b.agent.signal(signal.SIGTERM)
    wait_for(lambda: not is_alive(a.says()[-1]["pid"]), within_s=2, what="the end of the others' old workers")
    assert is_alive(worker)  # it has its grace still
    b.ends(143)
    alone = a.said(world=1, gen=2)
    assert b.last_alive_s(worker) < alone["at"]  # two rounds never train at once
    redis_run.all_end(a)


# --- workers that fail


def test_a_worker_fails_and_all_start_again(run):
    a, b = pair_with_restarts(run)
    run.exit_rank(1, 0, 9)
    again = [node.said(world=2, gen=1) for node in (a, b)]
    assert {(line["restarts"], line["changes"]) for line in again} == {(1, 0)}
    run.all_end(a, b)


def pair_with_restarts(run, restarts=1):
    """Start two nodes with a budget; return them when their workers run."""
    nodes = [run.node(name, "2", "--max-restarts", restarts) for name in "ab"]
    for node in nodes:
        node.said(world=2)
    return nodes


def test_the_budget_is_the_runs_and_the_code_is_everybodys(run):
    a, b = pair_with_restarts(run)
    run.exit_rank(1, 0, 9)
    for node in (a, b):
        node.said(world=2, gen=1)
    run.exit_rank(0, 1, 7)
    a.ends(7)
    b.ends(7)
    for node in (a, b):
        assert "exit code 7" in node.agent.err or "exited with 7" in node.agent.err or "exit 7" in node.agent.err
    assert [pid for node in (a, b) for pid in [line["pid"] for line in node.says()] if is_alive(pid)] == []


def test_a_worker_killed_by_a_signal_ends_all_with_its_code(served_run):
    a, b = pair(served_run)
    os.kill(b.says()[0]["pid"], signal.SIGKILL)
    a.ends(137)
    b.ends(137)
