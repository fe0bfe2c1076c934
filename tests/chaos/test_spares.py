"""Nodes beyond the most that a run takes in: they wait, step in, and are never fatal."""

import time

import pytest

from chaos.multi_node import LEASE_S
from patience import kept
from time_limits import AT_ONCE_S, REPLACED_S

WAITS = "waiting as a spare"


def start(run, names, nnodes, *options):
    """Start nodes one after another, each when the one before it has a seat; return them."""
    nodes = []
    for count, name in enumerate(names, 1):
        nodes.append(run.node(name, nnodes, *options))
        run.has_seats(count)
    return nodes


def test_a_spare_takes_the_place_of_a_lost_node(redis_run):
    a, b, c = start(redis_run, "abc", "2")
    for node in (a, b):
        node.said(world=2)
    c.told(WAITS)
    rank = b.said()["rank"]
    began_s = time.monotonic()
    b.power_off()
    promoted = c.said(world=2)
    kept(time.monotonic() - began_s, LEASE_S + REPLACED_S)
    assert promoted["rank"] == rank
    assert a.said(gen=1)["rank"] == a.said(gen=0)["rank"]
    redis_run.all_end(a, c)


def test_an_unused_spare_ends_well_with_the_run(run):
    a = run.node("a", "2")
    b = run.node("b", "2")
    for node in (a, b):
        node.said(world=2)
    c = run.node("c", "2")
    c.told(WAITS)
    run.all_end(a, b, c)
    assert c.says() == []
    assert len(a.says()) == len(b.says()) == 1


def test_a_spare_that_failed_run_gets_its_verdict(redis_run):
    a, b, c = start(redis_run, "abc", "2")
    for node in (a, b):
        node.said(world=2)
    c.told(WAITS)
    redis_run.exit_rank(0, 0, 5)
    for node in (a, b, c):
        node.ends(5)


def test_surplus_is_sent_home_at_once(redis_run):
    a, b = start(redis_run, "ab", "2", "--spares", "0")
    for node in (a, b):
        node.said(world=2)
    c = redis_run.node("c", "2", "--spares", "0")
    c.ends(0, within_s=5)
    assert "not needed" in c.agent.err
    redis_run.all_end(a, b)
    assert len(a.says()) == len(b.says()) == 1


def test_one_spare_is_kept_and_the_next_sent_home(redis_run):
    a, b = start(redis_run, "ab", "2", "--spares", "1")
    for node in (a, b):
        node.said(world=2)
    c = redis_run.node("c", "2", "--spares", "1")
    c.told(WAITS)
    d = redis_run.node("d", "2", "--spares", "1")
    d.ends(0, within_s=5)
    assert c.agent.process.poll() is None
    redis_run.all_end(a, b, c)


def test_five_nodes_where_four_may_train(redis_run):
    nodes = start(redis_run, "abcde", "2:4")
    spare = nodes.pop()
    spare.told(WAITS)
    for node in nodes:
        node.said(world=4)
    lost = nodes.pop(1)
    rank = lost.says()[-1]["rank"]
    gen = lost.says()[-1]["gen"]
    lost.kill_agent()
    assert spare.said(world=4)["rank"] == rank
    for node in nodes:
        assert node.said(gen=gen + 1)["rank"] == node.said(gen=gen)["rank"]
    redis_run.all_end(*nodes, spare)


def test_spares_leave_on_a_signal(redis_run):
    a, b, c = start(redis_run, "abc", "2")
    for node in (a, b):
        node.said(world=2)
    c.told(WAITS)
    began_s = time.monotonic()
    c.agent.signal(2)
    c.ends(130)
    kept(time.monotonic() - began_s, AT_ONCE_S)
    redis_run.all_end(a, b)
    assert len(a.says()) == len(b.says()) == 1


# --- ranks


def test_a_node_that_comes_back_gets_its_rank(redis_run):
    a, b = start(redis_run, "ab", "2")
    assert [node.said(world=2)["rank"] for node in (a, b)] == [0, 1]
    a.agent.signal(15)
    a.ends(143)
    again = redis_run.node("a", "2")
    assert [node.said(world=2, gen=1)["rank"] for node in (again, b)] == [0, 1]
    assert b.said(gen=1)["master"] == again.said()["master"]
    redis_run.all_end(again, b)


@pytest.mark.parametrize("wishes", [(1, 0), (0, 1)], ids=["crossed", "straight"])
def test_node_rank_is_a_wish(redis_run, wishes):
    nodes = [redis_run.node(name, "2", "--node-rank", wish) for name, wish in zip("ab", wishes, strict=True)]
    assert [node.said(world=2)["rank"] for node in nodes] == list(wishes)
    redis_run.all_end(*nodes)
