"""A worker that fails because its peer is gone, as gloo's and NCCL's do: the run waits for the reason, and heeds it."""

import pytest

from chaos.multi_node import LEASE_S, SLACK_S

LOSES = """
import json, os, pathlib, sys, time
env, shared = os.environ, pathlib.Path(os.environ["TEST_SHARED"])
node = env["ELASTIC_NODE_ID"]
says = dict(node=node, rank=int(env["RANK"]), world=int(env["WORLD_SIZE"]), gen=int(env["ELASTIC_ROUND"]),
            restarts=int(env["TORCHELASTIC_RESTART_COUNT"]), changes=int(env["ELASTIC_MEMBERSHIP_CHANGES"]))
(shared / f"pid-{node}-{says['gen']}").write_text(str(os.getpid()))
os.write(1, (json.dumps(says) + os.linesep).encode())
peer = shared / f"pid-b-{says['gen']}"
while not (shared / "finish").exists():
    if node == "b" and (shared / "raise").exists() and says["gen"] == 1:
        raise ValueError("label 11 is not a digit")
    if node == "a" and says["world"] == 2 and peer.exists() and peer.read_text():
        if not os.path.exists(f"/proc/{peer.read_text()}"):
            raise RuntimeError("[gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:34207")
    time.sleep(0.002)
"""


@pytest.fixture
def pair(redis_run):
    """Return two nodes in round 1; a's worker fails as soon as b's is gone."""
    redis_run.script.write_text(LOSES)
    a = redis_run.node("a", "1:2")
    a.said(world=1)
    b = redis_run.node("b", "1:2")
    a.said(world=2, gen=1)
    b.said(world=2, gen=1)
    return redis_run, a, b


@pytest.mark.parametrize("how", ["power lost", "agent killed"])
def test_a_lost_node_costs_no_restart_budget_though_workers_fail_of_it(pair, how):
    run, a, b = pair
    b.power_off() if how == "power lost" else b.kill_agent()
    alone = a.said(world=1, gen=2, within_s=LEASE_S + SLACK_S)
    assert (alone["restarts"], alone["changes"]) == (0, 2)
    assert "failed" not in a.agent.err
    run.finish()
    assert a.agent.wait() == 0


def test_the_verdict_names_the_node_that_failed_not_the_one_that_noticed_first(pair):
    run, a, b = pair
    (run.shared / "raise").touch()
    for node in (a, b):
        node.agent.wait(LEASE_S + SLACK_S)
        assert "ValueError: label 11 is not a digit" in node.agent.err
        assert "Connection closed by peer" not in node.agent.err.partition("── run")[2].partition("stopped because")[0]
