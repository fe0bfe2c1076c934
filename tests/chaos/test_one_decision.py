"""Any worker's failure anywhere stops all workers everywhere at once; one decision, one report, one exit code."""

import json
import os
import signal
import time

import pytest

from chaos.multi_node import LEASE_S, SLACK_S, is_alive
from support import wait_for

WORKER = """
import json, os, pathlib, sys, time
env, shared = os.environ, pathlib.Path(os.environ["TEST_SHARED"])
rank = int(env["RANK"])
says = dict(node=env["ELASTIC_NODE_ID"], rank=rank, world=int(env["WORLD_SIZE"]), gen=int(env["ELASTIC_ROUND"]),
            restarts=int(env["TORCHELASTIC_RESTART_COUNT"]), pid=os.getpid())
mark = os.open(shared / f"alive-{os.getpid()}", os.O_CREAT | os.O_WRONLY, 0o600)
os.pwrite(mark, b"%020.6f" % time.monotonic(), 0)
os.write(1, (json.dumps(says) + os.linesep).encode())
def reset():
    raise ConnectionResetError("Connection reset by peer")
def boom():
    raise ValueError(f"label {rank} is not a digit")
while not (shared / "finish").exists():
    order = shared / f"order-{rank}-{says['gen']}"
    if order.exists():
        what, _, at = order.read_text().partition(" ")
        while time.monotonic() < float(at or 0):
            pass
        print(f"failed {time.monotonic()}", flush=True)
        if what == "done": sys.exit(0)
        if what == "kill": os.kill(os.getpid(), 9)
        {"boom": boom, "reset": reset}.get(what, lambda: sys.exit(int(what)))()
    os.pwrite(mark, b"%020.6f" % time.monotonic(), 0)
    time.sleep(0.002)
"""


@pytest.fixture
def job(redis_run):
    """Return a run whose workers do as they are told."""
    redis_run.script.write_text(WORKER)
    return redis_run


def start(job, names, *options):
    nodes = [job.node(name, str(len(names)), *options) for name in names]
    return nodes, [node.said(world=len(names), gen=0) for node in nodes]


def order(job, rank, what, gen=0):
    file = job.shared / "new-order"
    file.write_text(what)
    file.rename(job.shared / f"order-{rank}-{gen}")


def failed_s(node):
    return float(node.agent.out.partition("failed ")[2].split()[0])


def block(node):
    """Return the report, without the line that names this node's own copy."""
    lines = node.agent.err[node.agent.err.index("── run") :].splitlines()
    return [line for line in lines if not line.startswith("Incident:")]


def rank_of(said, nodes, name):
    return next(line["rank"] for line, node in zip(said, nodes, strict=True) if node.name == name)


def test_four_nodes_stop_within_a_second_and_tell_the_same(job):
    nodes, said = start(job, "abcd")
    order(job, rank_of(said, nodes, "c"), "boom")
    for node in nodes:
        node.agent.wait(10)
    at_s = failed_s(nodes[2])
    late = {node.name: node.last_alive_s(line["pid"]) - at_s for node, line in zip(nodes, said, strict=True)}
    print(late)
    assert max(late.values()) < 1.0, late
    assert {node.agent.wait() for node in nodes} == {1}
    blocks = [block(node) for node in nodes]
    assert all(one == blocks[0] for one in blocks), blocks
    text = "\n".join(blocks[0])
    print(text)
    assert "is not a digit" in text
    assert "in boom" in text
    assert "3 others stopped because of it, on 4 nodes" in text
    assert len(blocks[0]) < 25
