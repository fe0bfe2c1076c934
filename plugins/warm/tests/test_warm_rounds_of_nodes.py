"""Warm rounds over two nodes on Redis: each node keeps its own survivors, and no node waits for a worker that hangs."""

import os
import signal
import time

import pytest

from patience import patience
from proc_kit import is_alive
from redis_servers import redis_server
from support import wait_for
from warm_kit import COUNTS, WORKER, Run

__all__ = ["redis_server"]


@pytest.fixture
def node(elastic, tmp_path, redis_server):
    def node(name, *words, options=(), lease_s=3.0, again=0, nodes="1:2", **more):
        folder = tmp_path / f"node-{name}-{again}"
        folder.mkdir()
        agent = elastic(
            "--rdzv-backend", "redis", "--rdzv-endpoint", redis_server.endpoint, "--rdzv-id", "both", "--nnodes", nodes,
            "--rdzv-conf", f"last_call_timeout=0.5,lease_ttl={patience(lease_s):g}", "--node-id", name,
            "--nproc-per-node", "2", "--max-restarts", "3", *options, WORKER, *words, cwd=folder, **more,
        )  # fmt: skip
        return Run(agent, folder)

    return node


def rounds_of(run, local_rank):
    return [round_ for _, round_ in run.noted("began", local_rank)]


def until_together(*runs, above=-1):
    """Wait for a round above an index in which all nodes have workers; return its index."""

    def latest():
        last = [{(rounds_of(run, rank) or [-1])[-1] for run in runs for rank in (0, 1)}]
        (index,) = last[0] if len(last[0]) == 1 else (-1,)
        worlds = {line["world"] for run in runs for line in run.agent.lines() if line["round"] == index}
        return index + 1 if index > above and worlds == {str(2 * len(runs))} else 0

    found = wait_for(latest, what="a round of all\n" + "\n".join(run.agent.err for run in runs), within_s=40)
    return found - 1


def pids_of(run):
    return {rank: run.noted("began", rank)[-1][0] for rank in (0, 1)}


def end(*runs, code=0):
    for run in runs:
        run.finish()
    return [run.ends(code) for run in runs]


def test_a_failure_on_one_node_keeps_the_survivors_of_both(node, tmp_path):
    (tmp_path / "counts.py").write_text(COUNTS)
    options = ("--policy", "counts:Counts")
    a, b = (node(name, options=options, env={"PYTHONPATH": str(tmp_path)}) for name in "ab")
    until_together(a, b)
    before_a, before_b = pids_of(a), pids_of(b)
    a.kill(before_a[1])
    wait_for(lambda: pids_of(a)[1] != before_a[1], what=a.agent.err)
    until_together(a, b)
    assert pids_of(b) == before_b
    assert pids_of(a)[0] == before_a[0]
    err = end(a, b)
    assert all("can't be kept" not in each for each in err), err
    assert all("3 alive, 3 kept" in each for each in err), err


def test_the_workers_that_were_there_run_on_when_a_node_joins(node):
    a = node("a")
    until_together(a)
    before = pids_of(a)
    b = node("b")
    until_together(a, b)
    assert pids_of(a) == before
    restarts = {line["restarts"] for line in a.agent.lines()}
    assert restarts == {"0"}, "a join costs no restart"
    end(a, b)


def test_the_workers_of_a_node_run_on_when_another_is_lost_and_comes_back(node):
    a, b = node("a"), node("b")
    until_together(a, b)
    before = pids_of(a)
    os.kill(b.agent.pid, signal.SIGKILL)
    b.agent.wait()
    until_together(a)
    assert pids_of(a) == before
    b = node("b", again=1)
    until_together(a, b)
    assert pids_of(a) == before
    end(a, b)


def test_kept_workers_wait_for_another_node_for_longer_than_the_lease(node):
    a, b = node("a", nodes="2", lease_s=1.0), node("b", nodes="2", lease_s=1.0)
    until_together(a, b)
    before = pids_of(a)
    os.kill(b.agent.pid, signal.SIGKILL)
    b.agent.wait()
    for rank in (0, 1):
        a.until("left", rank)
    left_s = time.monotonic()
    wait_for(lambda: time.monotonic() - left_s > patience(2.5), what="two leases and a half")
    b = node("b", nodes="2", lease_s=1.0, again=1)
    until_together(a, b)
    assert pids_of(a) == before
    end(a, b)


def test_a_worker_that_hangs_in_its_round_does_not_let_the_next_one_begin(node):
    limits = ("--warm-timeout", f"{patience(1):g}", "--shutdown-timeout", f"{patience(30):g}")
    a = node("a", "0:hang", options=limits)
    b = node("b")
    until_together(a, b)
    before_a, before_b = pids_of(a), pids_of(b)
    b.kill(before_b[1])
    wait_for(lambda: pids_of(a)[0] != before_a[0], what=a.agent.err)
    until_together(a, b)
    assert pids_of(a)[1] == before_a[1]
    assert pids_of(b)[0] == before_b[0]
    err_a, _ = end(a, b)
    assert "it has not left in time" in err_a


def test_the_guard_ends_workers_that_leave_or_are_kept_when_the_lease_ends(node):
    a = node("a", "0:hang", options=("--warm-timeout", "600", "--shutdown-timeout", "1200"), lease_s=1.0)
    b = node("b", lease_s=1.0)
    until_together(a, b)
    before = pids_of(a)
    b.kill(pids_of(b)[1])
    a.until("asked", 0)
    a.until("left", 1)
    a.agent.signal(signal.SIGSTOP)
    wait_for(lambda: not any(map(is_alive, before.values())), what="the guard to end them", within_s=30)
    a.agent.signal(signal.SIGCONT)
    until_together(a, b, above=0)
    assert not set(pids_of(a).values()) & set(before.values())
    end(a, b)


def test_no_worker_is_left_when_the_budget_is_used_up(node):
    options = ("--max-restarts", "0")
    a, b = node("a", options=options), node("b", options=options)
    until_together(a, b)
    a.fail(1)
    for run in (a, b):
        err = run.ends(1)
        assert "boom" in err
