"""SCENARIO K6 on two nodes: nothing of a run survives its agents, on whatever backend."""

import signal
import threading

import pytest

from support import wait_for

STUBBORN = """
import json, os, pathlib, signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
signal.signal(signal.SIGINT, signal.SIG_IGN)
sleep = "import time; time.sleep(600)"
detached = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {sleep!r}], start_new_session=True)"
child = subprocess.Popen([sys.executable, "-c", sleep])
subprocess.run([sys.executable, "-c", detached])
env = os.environ
order = pathlib.Path(env["TEST_SHARED"], f"exit-{env['RANK']}-{env['ELASTIC_ROUND']}")
os.write(1, (json.dumps({"rank": int(env["RANK"]), "world": int(env["WORLD_SIZE"])}) + os.linesep).encode())
while not order.exists():
    time.sleep(0.02)
sys.exit(int(order.read_text()))
"""
EACH = 3
"""A worker, its child, and a grandchild in a session of its own."""


@pytest.fixture
def pair(any_run):
    """Return a run of two nodes with one such worker each, and the nodes."""
    any_run.script.write_text(STUBBORN)
    nodes = [any_run.node(name, "2", "--shutdown-timeout", "1") for name in "ab"]
    for node in nodes:
        node.said(world=2)
    wait_for(lambda: len(any_run.processes()) == 2 * EACH, what="six processes")
    return any_run, *nodes


def gone(run, *names, within_s):
    """Wait until no process of these nodes is left."""
    wait_for(lambda: not run.processes(*names), within_s=within_s, what=f"nothing to be left of {names or 'the run'}")


def test_agents_that_are_killed_leave_nothing(pair):
    run, a, b = pair
    b.kill_agent()
    gone(run, "b", within_s=5)
    if run.backend == "static":
        assert len(run.processes("a")) == EACH  # it can't know
    a.kill_agent()
    gone(run, within_s=5)


def test_five_stop_signals_in_two_seconds_end_everything(pair):
    run, *nodes = pair
    for _ in range(5):
        for node in nodes:
            if node.agent.process.poll() is None:
                node.agent.signal(signal.SIGTERM)
        threading.Event().wait(0.4)  # five in two seconds: what is tried
    for node in nodes:
        node.ends(143, within_s=3)
    assert run.processes() == set()


def test_a_worker_that_fails_takes_everything_along(pair):
    run, a, b = pair
    run.exit_rank(b.says()[0]["rank"], 0, 3)
    b.ends(3)
    gone(run, "b", within_s=2)
    if run.backend == "static":
        a.agent.signal(signal.SIGTERM)
    a.ends(143 if run.backend == "static" else 3)
    gone(run, within_s=2)
