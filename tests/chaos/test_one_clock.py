"""What failed on which node, and who leads, makes no difference to what a policy counts."""

import time

from patience import slowness
from support import wait_for


def test_window_counts_failures_of_nodes_that_came_at_different_times_and_a_new_leader_knows_them_all(redis_run):
    """Between the two failures lies about a second; between the ages of the agents, at them, more than the window."""
    window_s = round(4 * slowness(now=True))  # the second is one of an idle machine
    options = ("--max-restarts", "1", "--restart-window", str(window_s))
    leader, old = (redis_run.node(name, "2:3", *options) for name in ("leader", "old"))
    began_s = old.said(world=2)["at"]
    wait_for(lambda: time.monotonic() >= began_s + window_s)
    young = redis_run.node("young", "2:3", *options)
    first = young.said(world=3)
    redis_run.exit_rank(first["rank"], first["gen"], 3)
    old.said(world=3, restarts=1)
    leader.kill_agent()
    for node in (old, young):
        node.said(world=2, restarts=1)
    second = old.said(world=2, restarts=1)
    redis_run.exit_rank(second["rank"], second["gen"], 5)
    for node in (old, young):
        node.ends(5)
        assert f"restart budget of 1 within {window_s} s used up" in node.agent.err
