"""A rule file on several nodes: its counters are the run's; nodes that it leaves out stay so, as long as it says."""

import json
import subprocess
import sys
import time

import pytest

from chaos.multi_node import FULL_FIRST, WORKER
from patience import patience
from support import wait_for

RULES = """
rules:
  - {name: broken-gpu, match: {exit_code: 43}, action: restart, exclude: node, max: 5}
  - {name: rest, action: restart, max: 5, backoff: off}
blame: {times: 2, within: 1h, exclude_for: 1h, classes: [non-zero exit]}
"""


@pytest.fixture
def three(run):
    """Start three nodes of a run that needs two; return them by rank."""
    path = run.shared / "rules.yaml"
    path.write_text(RULES)
    nodes = [run.node(name, "2:3", "--policy", str(path), conf=FULL_FIRST) for name in "abc"]
    return sorted(nodes, key=lambda node: node.said(world=3)["rank"])


def test_counters_are_the_runs(run):
    path = run.shared / "rules.yaml"
    path.write_text("rules: [{name: once, match: {exit_code: 3}, action: restart, max: 1}]")
    a, b = (run.node(name, "2", "--policy", str(path)) for name in "ab")
    run.exit_rank(0, a.said(world=2)["gen"], 3)
    again = [node.said(world=2, restarts=1) for node in (a, b)]
    run.exit_rank(1, again[0]["gen"], 3)
    for node in (a, b):
        node.ends(3)
        assert "stop (rule 'once': 1 time is used up; once)" in node.agent.err


def test_a_node_is_left_out_at_once_and_another_one_only_if_enough_are_left(run, three):
    first, second, bad = three
    run.exit_rank(2, bad.said(world=3)["gen"], 43)
    for node in (first, second):
        node.said(world=2, restarts=1)
    bad.told(f"without {bad.name}")  # it may hear of it after the others have begun
    gen = first.said(world=2, restarts=1)["gen"]
    run.exit_rank(1, gen, 43)  # the second one stays: two are needed
    for node in (first, second):
        node.said(world=2, restarts=2)
    run.all_end(first, second, bad)
    assert max(line["restarts"] for line in bad.says()) == 0


def test_a_node_that_is_blamed_twice_is_left_out(run, three):
    gens = [three[0].said(world=3)["gen"]]
    run.exit_rank(2, gens[0], 9)
    again = [node.said(world=3, restarts=1) for node in three]
    bad = three[2]
    run.exit_rank(again[2]["rank"], again[0]["gen"], 9)
    for node in three[:2]:
        node.said(world=2, restarts=2)
    bad.told(f"restart 2 now without {bad.name}")
    run.all_end(*three)


def test_a_node_comes_back_when_its_time_is_over(run):
    path, out_s = run.shared / "rules.yaml", patience(2)  # in which the others form a round
    path.write_text(RULES.replace("exclude_for: 1h", f"exclude_for: {out_s:g}s"))
    nodes = [run.node(name, "2:3", "--policy", str(path), conf=FULL_FIRST) for name in "abc"]
    (bad,) = [node for node in nodes if node.said(world=3)["rank"] == 2]
    others = [node for node in nodes if node is not bad]
    began_s = time.monotonic()
    before = bad.said(world=3)
    run.exit_rank(2, before["gen"], 43)
    for node in others:
        node.said(world=2, restarts=1)
    back = bad.said(world=3, restarts=1, changes=before["changes"] + 1)
    assert back["at"] > began_s + out_s
    run.all_end(*nodes)


STEPS = WORKER.replace(
    "while not",
    """from elastic_core.worker import heartbeat
gained = says["restarts"] if says["restarts"] < 2 else 1
heartbeat(step=10 * gained + (5 if says["node"] == "b" else 3))
(shared / f"beat-{says['node']}-{says['gen']}").touch()
while not all((shared / f"beat-{node}-{says['gen']}").exists() for node in "ab"):
    time.sleep(0.01)
if says["node"] == "a":
    raise ValueError("loss went up")
while not""",
    1,
)


def test_progress_is_that_of_the_node_that_had_come_furthest(redis_run):
    """One node fails again and again; another one's steps say whether the run had got on meanwhile."""
    redis_run.script.write_text(STEPS)
    path = redis_run.shared / "rules.yaml"
    path.write_text("rules: [{match: {repeats: 2}, action: fail}, {action: restart, max: 5, backoff: off}]")
    nodes = [redis_run.node(name, "2", "--policy", str(path)) for name in "ab"]
    for node in nodes:
        assert node.agent.wait(15) == 1, node.agent.err
        assert max(line["restarts"] for line in node.says()) == 2  # 5, then 15, then 15 again
    incident = json.loads(next(nodes[1].agent.runtime.glob("elastic-*/*/incident.json")).read_text())
    assert (incident["progress"], incident["node_id"]) == (15, "a")


def test_a_node_that_is_left_out_says_so_and_ends_with_what_the_run_has_failed_of(redis_run):
    path = redis_run.shared / "rules.yaml"
    path.write_text(
        RULES.replace("exclude_for: 1h", "exclude_for: 10m").replace(
            "{name: rest, action: restart, max: 5, backoff: off}", "{name: rest, action: fail}"
        )
    )
    nodes = [redis_run.node(name, "2:3", "--policy", str(path), conf=FULL_FIRST) for name in "abc"]
    (bad,) = [node for node in nodes if node.said(world=3)["rank"] == 2]
    others = [node for node in nodes if node is not bad]
    redis_run.exit_rank(2, bad.said(world=3)["gen"], 43)
    again = [node.said(world=2, restarts=1) for node in others]
    bad.told("this node is left out for 10 min by policy 'rules': exit code 43")
    (status,) = wait_for(lambda: list(bad.agent.runtime.glob("elastic-*/*/status.json")), what="its status")
    absence = wait_for(lambda: json.loads(status.read_text())["absence"])
    assert (absence["by"], absence["reason"], absence["refused"]) == ("policy 'rules'", "exit code 43", False)
    assert absence["until_ns"] - absence["since_ns"] == 600 * 10**9
    command = [sys.executable, "-m", "elastic_core", "status", *_store(redis_run)]
    out = f"{bad.name} is left out for 10 min in all by policy 'rules': exit code 43"

    def told():  # its record in the store is written beside its status
        shown = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        return shown if out in shown else ""

    assert "waiting for a place" not in wait_for(told, what=out)
    redis_run.exit_rank(0, again[0]["gen"], 9)
    for node in nodes:
        node.ends(9)
    incident = bad.agent.incident()
    assert (incident["exit_code"], incident["first"]["exit"]["global_rank"]) == (9, 0)
    assert "no round yet" not in bad.agent.err
    (left_out,) = incident["absent"]
    assert (left_out["node_id"], left_out["by"], left_out["reason"]) == (bad.name, "policy 'rules'", "exit code 43")
    assert 0 < left_out["until_ns"] - incident["at_ns"] <= 601 * 10**9  # not 600 s from this failure


def _store(run):
    return ("--rdzv-id", run.id, "--rdzv-backend", run.backend, "--rdzv-endpoint", run.endpoint)
