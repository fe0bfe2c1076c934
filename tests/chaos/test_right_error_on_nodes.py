"""SCENARIO K7 on two nodes of two ranks: every node's report names the first cause, whatever the others say."""

import json
import os
import re
from pathlib import Path

import pytest

from chaos.multi_node import StaticRun

BOOM = """
import atexit, json, os, pathlib, signal, time
rank = int(os.environ["RANK"])
here = pathlib.Path(os.environ["TEST_SHARED"])
os.write(1, (json.dumps({"rank": rank, "world": int(os.environ["WORLD_SIZE"])}) + os.linesep).encode())
def wait_for(name):
    while not (here / name).exists():
        time.sleep(0.001)
def leave():  # its exception is on record; a starved rank 3 would be stopped before it has one
    (here / "boom").touch()
    wait_for("failed3")
def train():
    if rank == 2:
        atexit.register(leave)
        raise ValueError("boom")
    if rank == 3:
        atexit.register((here / "failed3").touch)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # fails by itself, however soon it is told to stop
    wait_for("boom")
    while (pid := (here / "boom").read_text()) and os.path.exists(f"/proc/{pid}"):
        time.sleep(0.001)
    if rank != 3:
        wait_for("failed3")
    raise ConnectionResetError("connection reset by peer")
(here / f"ready{rank}").touch()
for other in range(4):
    wait_for(f"ready{other}")
train()
"""
REPETITIONS = 20 if os.environ.get("CHAOS_FULL") else 1


def start(run, script):
    """Start two nodes of two ranks each; return them in the order of their ranks."""
    run.script.write_text(script)
    logs = ("--tee", "3", "--log-dir", str(run.logs))
    nodes = [run.node(name, "2", "--nproc-per-node", "2", *logs) for name in "ab"]
    return sorted(nodes, key=lambda node: min(line["rank"] for line in (node.said(world=4), *node.says())))


def block(node):
    """Return the report's lines, without the one that names the node's own copy."""
    lines = node.agent.err[node.agent.err.index("── run") :].splitlines()
    assert len(lines) <= 25, node.agent.err
    assert "elastic_core" not in "\n".join(lines)
    return [line for line in lines if not line.startswith("Incident")]


def names_the_node(node, other, rank):
    """Return whether a node says in a line, and no block, that the other one has the report."""
    (line,) = (line for line in node.agent.err.splitlines() if "the report is that node's" in line)
    return "── run" not in node.agent.err and f" failed: rank {rank} on {other.name} (" in line


@pytest.mark.parametrize("repetition", range(REPETITIONS))
def test_first_cause_of_four_ranks_is_named_on_both_nodes(run, repetition):
    nodes = start(run, BOOM)
    assert [node.agent.wait(15) for node in nodes] == [1, 1]
    told = block(nodes[1])
    assert names_the_node(nodes[0], nodes[1], 2)
    text = "\n".join(told)
    assert "rank 2" in told[0]
    assert "ValueError: boom" in text
    assert re.search(r"train\.py:\d+", text)
    for node in nodes:
        incident = node.agent.incident()
        first, secondary, stopped = (incident[name] for name in ("first", "secondary", "stopped"))
        assert (first["exit"]["global_rank"], first["exit"]["code"], first["error"]["type"]) == (2, 1, "ValueError")
        assert (incident["round_index"], incident["exit_code"]) == (0, 1)
        # Those of the other node were about to fail when the order to stop came: they failed, or were stopped.
        assert sorted(one["exit"]["global_rank"] for one in (*secondary, *stopped)) == [0, 1, 3], json.dumps(
            incident, indent=1
        )
        assert 3 in [one["exit"]["global_rank"] for one in secondary]
        for one in (first, *secondary):
            assert one["at_ns"] > 10**18
        assert [path for path in first["log_paths"] if "ValueError: boom" in Path(path).read_text()], first


def test_a_truncated_error_file_changes_nothing_but_the_detail(any_run):
    nodes = start(any_run, BOOM.replace('raise ValueError("boom")', TRUNCATED))
    assert nodes[1].agent.wait(15) == 9
    told = block(nodes[1])
    assert "rank 2" in told[0]
    assert "exit code 9" in "\n".join(told)
    if any_run.backend == "static":  # node 0 knows of its own ranks
        assert nodes[0].agent.wait(15) == 1
        assert "ConnectionResetError" in "\n".join(block(nodes[0]))
    else:
        assert nodes[0].agent.wait(15) == 9
        assert names_the_node(nodes[0], nodes[1], 2)
    for node in nodes:
        assert "JSONDecodeError" not in node.agent.err


TRUNCATED = """pathlib.Path(os.environ["TORCHELASTIC_ERROR_FILE"]).write_text('{"message": {"mess')
        (here / "boom.new").write_text(str(os.getpid()))
        (here / "boom.new").rename(here / "boom")  # the others wait until its agent has seen its end
        os._exit(9)"""


def test_where_nodes_exchange_no_word_each_tells_of_its_own(elastic, tmp_path):
    nodes = start(StaticRun(elastic, tmp_path), BOOM)
    assert [node.agent.wait(15) for node in nodes] == [1, 1]
    assert "ConnectionResetError" in "\n".join(block(nodes[0]))
    told = block(nodes[1])
    assert "rank 2" in told[0]
    assert "ValueError: boom" in "\n".join(told)
    incident = nodes[1].agent.incident()
    assert [one["exit"]["global_rank"] for one in incident["secondary"]] == [3]
