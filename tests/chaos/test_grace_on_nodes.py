"""SCENARIO K8 on two nodes: a worker that saves has its grace period, whyever the run stops it."""

import signal
import threading

import pytest

from patience import patience
from support import wait_for

SAVES = """
import json, os, pathlib, signal, sys, time
env, shared = os.environ, pathlib.Path(os.environ["TEST_SHARED"])
node, gen = env["ELASTIC_NODE_ID"], int(env["ELASTIC_ROUND"])
says = dict(node=node, rank=int(env["RANK"]), world=int(env["WORLD_SIZE"]), gen=gen)
def save(*_):
    part = shared / "checkpoint.part"
    with part.open("w") as f:
        for n in range(int(float(env["SAVES_FOR_S"]) / 0.1)):
            f.write(f"{n}" + os.linesep); f.flush(); time.sleep(0.1)
    part.rename(shared / "checkpoint")
    sys.exit(0)
if node == "b" and env["LOCAL_RANK"] == "0" and gen == int(env["SAVES_IN"]):
    signal.signal(signal.SIGTERM, save)
os.write(1, (json.dumps(says) + os.linesep).encode())
while not (shared / "finish").exists():
    if (shared / f"fail-{node}-{env['LOCAL_RANK']}").exists():
        sys.exit(5)
    time.sleep(0.02)
"""
EVERY_DAY_S = 3.0
"""Longer than a lease, and than a failing node is waited for."""
LONG_S = 40.0
"""Longer than the 30 s that are the default, and that torchrun grants at the most."""
SECONDS = [
    pytest.param(EVERY_DAY_S, id="3 s"),
    pytest.param(LONG_S, marks=[pytest.mark.chaos_full, pytest.mark.timeout(180)], id="40 s"),
]


@pytest.fixture
def saving(run):
    """Start two nodes; the first worker of b saves, for so long, when it is told to end."""

    def start(seconds, *, b_first=False):
        run.script.write_text(SAVES)
        more = {"env": {"SAVES_FOR_S": str(seconds), "SAVES_IN": "0"}, "conf": "join_timeout=100"}
        options = ("--nproc-per-node", "2", "--shutdown-timeout", str(patience(seconds * 1.5)), "--max-restarts", "0")
        if b_first:
            b = run.node("b", "1:2", *options, **more)
            b.said(world=2, count=2)  # all have their handlers: who is stopped before it has one just ends
            return run, run.node("a", "1:2", *options, **more), b
        a, b = (run.node(name, "2", *options, **more) for name in "ab")
        for node in (a, b):
            node.said(world=4, count=2)
        return run, a, b

    return start


def complete(run, seconds):
    """Return whether the checkpoint is, as its worker was not killed while it wrote."""
    file = run.shared / "checkpoint"
    return file.exists() and len(file.read_text().splitlines()) == int(seconds / 0.1)


@pytest.mark.parametrize("seconds", SECONDS)
@pytest.mark.parametrize("failing", ["b-1", "a-0"], ids=["sibling", "peer"])
def test_a_worker_may_save_when_another_one_fails(saving, failing, seconds):
    run, a, b = saving(seconds)
    (run.shared / f"fail-{failing}").touch()
    a.ends(5, within_s=seconds + 10)
    b.ends(5, within_s=seconds + 10)
    assert complete(run, seconds)
    assert "SIGKILL" not in b.agent.err


@pytest.mark.parametrize("seconds", SECONDS)
def test_a_worker_may_save_when_a_node_joins(saving, seconds):
    run, a, b = saving(seconds, b_first=True)
    for node in (a, b):
        node.said(world=4, gen=1, within_s=seconds + 10)
    assert complete(run, seconds)
    run.all_end(a, b)


@pytest.mark.parametrize("seconds", SECONDS)
def test_a_worker_may_save_when_its_agent_is_told_to_stop(saving, seconds):
    run, _, b = saving(seconds)
    b.agent.signal(signal.SIGTERM)
    b.ends(143, within_s=seconds + 5)
    assert complete(run, seconds)


@pytest.mark.parametrize("first", ["a peer's failure", "a signal"])
def test_a_second_stop_signal_ends_the_grace_period_at_once(saving, first):
    run, _, b = saving(LONG_S)
    if first == "a signal":
        b.agent.signal(signal.SIGTERM)
    else:
        (run.shared / "fail-a-0").touch()
    wait_for((run.shared / "checkpoint.part").exists, what="it to save")
    if first != "a signal":
        b.agent.signal(signal.SIGTERM)
    wait_for(lambda: "a second signal kills" in b.agent.err, what="the first signal to be taken")
    threading.Event().wait(0.6)  # the second signal counts from 0.5 s on: the rule under test
    b.agent.signal(signal.SIGTERM)
    assert b.agent.wait(3) == (143 if first == "a signal" else b.agent.process.returncode)
    assert not (run.shared / "checkpoint").exists()
    assert run.processes("b") == set()
