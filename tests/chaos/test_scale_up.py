"""SCENARIO K1: nodes come while the run goes on; and what they must agree on."""

from pathlib import Path

import pytest

from support import wait_for


@pytest.mark.parametrize("names", [("a", "b"), ("b", "a")], ids=["sorts behind", "sorts before"])
def test_a_second_node_is_taken_in(run, names):
    first, second = names
    a = run.node(first, "1:2", "--log-dir", run.logs, "--tee", "3")
    alone = a.said(world=1)
    b = run.node(second, "1:2")
    mine, theirs = a.said(world=2, within_s=5), b.said(world=2, within_s=5)
    assert (mine["gen"], theirs["gen"]) == (alone["gen"] + 1,) * 2
    assert mine["master"] == theirs["master"]
    assert (mine["rank"], theirs["rank"]) == (0, 1)  # who was there keeps its place
    assert (mine["restarts"], mine["changes"]) == (theirs["restarts"], theirs["changes"]) == (0, 1)
    run.all_end(a, b)
    logs = sorted(run.logs.glob("*/attempt_0/0/stdout.log"))
    assert any(str(alone["pid"]) in log.read_text() for log in logs), logs


def test_two_nodes_come_one_after_another(run):
    a = run.node("a", "1:3")
    a.said(world=1)
    b = run.node("b", "1:3")
    a.said(world=2)
    c = run.node("c", "1:3")
    ranks = [node.said(world=3)["rank"] for node in (a, b, c)]
    assert ranks == [0, 1, 2]
    assert len({node.said(world=3)["master"] for node in (a, b, c)}) == 1
    run.all_end(a, b, c)


def test_a_fixed_number_forms_at_once(served_run):
    nodes = [served_run.node(name, "2", conf="last_call_timeout=60") for name in "ab"]
    assert {node.said(world=2, within_s=5)["gen"] for node in nodes} == {0}
    served_run.all_end(*nodes)


def test_nodes_come_when_the_first_workers_have_finished_and_are_not_taken_in(redis_run):
    a = redis_run.node("a", "1:2", "--nproc-per-node", "2")
    a.said(world=2, rank=0)
    finished = a.said(world=2, rank=1)["pid"]
    redis_run.exit_rank(1, 0, 0)
    wait_for(lambda: not Path(f"/proc/{finished}").exists(), what="a to know that a worker of its has finished")
    b = redis_run.node("b", "1:2", "--nproc-per-node", "2")
    redis_run.has_seats(2)
    pids = {line["pid"] for line in a.says()}
    redis_run.all_end(a, b)
    assert {line["pid"] for line in a.says()} == pids
    assert b.says() == []


def test_other_sizes_are_refused_unless_allowed(redis_run):
    a = redis_run.node("a", "1:2", "--nproc-per-node", "1")
    a.said(world=1)
    odd = redis_run.node("b", "1:2", "--nproc-per-node", "2")
    odd.ends(4)
    assert "nproc" in odd.agent.err
    assert "--allow-mismatch" in odd.agent.err
    assert a.agent.process.poll() is None
    assert len(a.says()) == 1
    redis_run.all_end(a)


def test_unequal_nodes_have_one_numbering(redis_run):
    a = redis_run.node("a", "2", "--nproc-per-node", "1", "--role", "reader")
    b = redis_run.node("b", "2", "--nproc-per-node", "2", "--role", "trainer")
    b.said(count=2)
    a.said()
    second = "was begun with --nproc-per-node 1 and --role reader, this node has 2 and trainer"
    other = "was begun with --nproc-per-node 2 and --role trainer, this node has 1 and reader"
    wait_for(lambda: (second in b.agent.err) is not (other in a.agent.err), what="a line on the one that came second")
    says = sorted(a.says() + b.says(), key=lambda line: line["rank"])
    assert [line["rank"] for line in says] == [0, 1, 2]
    assert {line["world"] for line in says} == {3}
    assert sorted((line["node"], line["role_rank"], line["role_world"]) for line in says) == [
        ("a", 0, 1),
        ("b", 0, 2),
        ("b", 1, 2),
    ]
    redis_run.all_end(a, b)
