"""A hang on one node is one failure for all of them."""

import re

from chaos.multi_node import WORKER
from patience import kept

HANGS = WORKER.replace(
    "while not",
    """from elastic_core.worker import heartbeat
if says["node"] == "b" and says["restarts"] == 0:
    while not (shared / "further").exists():  # or b would be late alone where a's worker starts late
        time.sleep(0.005)
    heartbeat(step=1)
    time.sleep(60)
heartbeat(step=1)
while not""",
    1,
).replace("    time.sleep(0.02)", "    heartbeat(step=2)\n    (shared / 'further').touch()\n    time.sleep(0.02)")


def stacks_of(node, rank):
    (path,) = node.agent.runtime.glob(f"elastic-*/*/hang/round_0_1/rank_{rank}.txt")
    return path.read_text()


def test_all_nodes_start_again_when_a_rank_of_one_hangs(served_run):
    served_run.script.write_text(HANGS)
    nodes = [served_run.node(name, "2", "--hang-timeout", "1.5", "--max-restarts", "1") for name in ("a", "b")]
    for node in nodes:
        node.said(gen=0, world=2)
        node.said(gen=1, world=2, restarts=1)
    rank = nodes[1].says()[0]["rank"]
    told = rf"elastic: rank {rank} failed: rank {rank} has not reached step 2 \(at 1 for ([\d.]+) s, in train\.py"
    found = re.search(told, nodes[1].agent.err)
    assert found, nodes[1].agent.err
    assert float(found[1]) >= 1.0
    kept(float(found[1]), 2.0)
    elsewhere = rf"elastic: rank {rank} failed on b \(.+\): rank {rank} has not reached step 2 .*; restart 1 of 1 now"
    assert re.search(elsewhere, nodes[0].agent.err), nodes[0].agent.err
    served_run.all_end(*nodes)


WAITS = WORKER.replace(
    "while not",
    """from elastic_core.worker import heartbeat
collective = compile("import time; time.sleep(60)", "/site-packages/torch/distributed/collective.py", "exec")
def load():
    time.sleep(60)  # here
if says["restarts"] == 0:
    while says["node"] == "a" and not (shared / "b-there").exists():
        time.sleep(0.01)
    (shared / "b-there").touch()
    heartbeat(step=1)
    if says["node"] == "a":
        exec(collective)
    time.sleep(0.5)
    heartbeat(step=1)
    load()
while not""",
    1,
).replace("    time.sleep(0.02)", "    heartbeat(step=2)\n    time.sleep(0.02)")


def test_node_whose_ranks_wait_leaves_the_word_to_the_one_that_they_wait_for(redis_run):
    """Though it is silent for longer."""
    redis_run.script.write_text(WAITS)
    nodes = [redis_run.node(name, "2", "--hang-timeout", "1.5", "--max-restarts", "1") for name in ("a", "b")]
    for node in nodes:
        node.said(gen=1, world=2, restarts=1)
    a, b = nodes
    assert "(at step 1, in train.py:" in a.agent.err
    assert "; waiting for other ranks; stacks: " in a.agent.err
    rank = b.says()[0]["rank"]
    assert f"elastic: rank {rank} failed: " in b.agent.err
    assert re.search(rf"elastic: rank {rank} failed on b \(.+\): .+; restart 1 of 1 now", a.agent.err), a.agent.err
    redis_run.all_end(*nodes)


STUCK = WORKER.replace(
    "while not",
    """from elastic_core.worker import heartbeat
def load_batch():
    time.sleep(60)  # stuck
heartbeat(step=1)
if says["node"] == "b":
    load_batch()
while not""",
    1,
).replace("    time.sleep(0.02)", "    heartbeat(step=2)\n    time.sleep(0.02)")


def test_the_line_at_which_a_worker_hangs_is_in_every_node_s_report(run):
    """RESERVE R7."""
    run.script.write_text(STUCK)
    nodes = [run.node(name, "2", "--hang-timeout", "1.5") for name in ("a", "b")]
    rank = nodes[1].said(world=2)["rank"]
    line = next(n for n, text in enumerate(STUCK.splitlines(), 1) if "# stuck" in text)
    codes = {node.agent.wait(15) for node in nodes}
    assert len(codes) == 1
    assert codes != {0}
    report = nodes[1].agent.err[nodes[1].agent.err.index("── run") :]
    assert len(report.splitlines()) <= 25
    assert f"rank {rank}" in report.splitlines()[0]
    assert f"train.py:{line} in load_batch" in report, report
    assert f" failed: rank {rank} on b (" in nodes[0].agent.err
    for node in nodes:
        assert node.agent.incident()["failure_class"] == "hang"


FALLS_BEHIND = WORKER.replace(
    "while not",
    """from elastic_core.worker import heartbeat
def stuck():
    time.sleep(60)
if says["restarts"] == 0:
    (shared / f"begun-{says['rank']}").touch()
    while len(list(shared.glob("begun-*"))) < 4:  # or those that began later would be named later
        time.sleep(0.005)
    if says["rank"] == 0:
        (shared / "at.part").write_text(repr(time.monotonic() + 0.5))
        (shared / "at.part").rename(shared / "at")
    while not (shared / "at").exists():
        time.sleep(0.005)
    at_s = float((shared / "at").read_text())
    # All at the same moment, or a look between them would find one late alone. Who sleeps is let run at once; of
    # four that spin on fewer cores, some would have to wait.
    time.sleep(max(0.0, at_s - time.monotonic()))
    heartbeat(step=1)
    if says["node"] == "a":
        heartbeat(step=2)
    stuck()
while not""",
    1,
).replace("    time.sleep(0.02)", "    heartbeat(step=3)\n    time.sleep(0.02)")


def test_each_node_names_the_ranks_that_did_not_reach_the_step_of_the_others(redis_run):
    """Steps are compared over all nodes: on its own, each node sees ranks that are all at the same one."""
    redis_run.script.write_text(FALLS_BEHIND)
    options = ("--nproc-per-node", "2", "--hang-timeout", "2", "--max-restarts", "1")
    a, b = (redis_run.node(name, "2", *options) for name in "ab")
    for node in (a, b):
        node.said(gen=1, world=4, restarts=1, count=2)
    late = sorted(line["rank"] for line in b.says() if line["gen"] == 0)
    ranks = f"ranks {late[0]}, {late[1]}"
    assert f"waiting for {ranks} on b: step 2 not reached (at 1); stacks: " in a.agent.err, a.agent.err
    told = rf"elastic: {ranks} have not reached step 2 \(at 1 for ([\d.]+) s, in train\.py:\d+\); the others have"
    found = re.search(told, b.agent.err)
    assert found, b.agent.err
    assert float(found[1]) >= 1.0
    kept(float(found[1]), 2.0)
    assert f" failed: {ranks} have not reached step 2" in b.agent.err
    line = (
        rf"rank [{late[0]}{late[1]}] failed on b \(.+\): {ranks} have not .*; 1 other failed after it; restart 1 of 1"
    )
    assert re.search(line, a.agent.err), a.agent.err
    for node in (a, b):
        for line in node.says():
            if line["gen"] == 0:
                assert "in stuck" in stacks_of(node, line["rank"])
    redis_run.all_end(a, b)
