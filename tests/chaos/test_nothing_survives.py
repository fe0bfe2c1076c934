"""SCENARIO K6: nothing survives its agent, whatever dies first."""

import os
import signal
import subprocess
import time
from contextlib import suppress

import pytest

from patience import kept
from support import wait_for

STUBBORN = """
import json, os, signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
signal.signal(signal.SIGINT, signal.SIG_IGN)
sleep = "import time; time.sleep(600)"
detached = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {sleep!r}], start_new_session=True)"
child = subprocess.Popen([sys.executable, "-c", sleep])
subprocess.run([sys.executable, "-c", detached])
rank = int(os.environ["RANK"])
os.write(1, (json.dumps({"pid": os.getpid(), "rank": rank}) + os.linesep).encode())
codes = json.loads(sys.argv[1])
if codes[rank] is None:
    time.sleep(600)
sys.exit(codes[rank])
"""


@pytest.fixture
def stubborn(elastic, script):
    """Start two such workers that run until they are killed."""

    def start(*options):
        agent = elastic("--nproc-per-node", "2", *options, script(STUBBORN), "[null, null]")
        wait_for(lambda: len(agent.lines()) == 2, what="every worker's first line")
        wait_for(lambda: len(agent.survivors()) == 6, what="six processes")
        return agent

    return start


def test_agent_killed_nothing_is_left(stubborn):
    agent = stubborn()
    agent.signal(signal.SIGKILL)
    agent.wait()
    began_s = time.monotonic()
    wait_for(lambda: not agent.survivors(), within_s=5, what="every process of the run to be gone")
    kept(time.monotonic() - began_s, 5)


def test_agent_and_guard_cannot_be_outrun_by_a_stopped_worker(stubborn):
    agent = stubborn()
    os.kill(agent.lines()[0]["pid"], signal.SIGSTOP)
    agent.signal(signal.SIGKILL)
    agent.wait()
    wait_for(lambda: not agent.survivors(), within_s=5, what="every process of the run to be gone")


def test_many_stop_signals_end_everything(stubborn):
    agent = stubborn("--shutdown-timeout", "30")
    for _ in range(5):
        if agent.process.poll() is not None:
            break
        agent.signal(signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            agent.process.wait(0.4)
    assert agent.wait(10) == 143
    assert agent.survivors() == []


def test_grace_period_then_kill_after_one_signal(stubborn):
    agent = stubborn("--shutdown-timeout", "1")
    agent.signal(signal.SIGTERM)
    assert agent.wait(10) == 143
    assert agent.survivors() == []
    assert "Traceback" not in agent.err


def test_failed_worker_takes_its_children_along(elastic, script):
    agent = elastic("--nproc-per-node", "2", "--shutdown-timeout", "1", script(STUBBORN), "[null, 3]")
    assert agent.wait(20) == 3
    assert agent.survivors() == []


def test_worker_that_finishes_well_leaves_nothing_either(elastic, script):
    agent = elastic(script(STUBBORN), "[0]")
    assert agent.wait(20) == 0
    assert agent.survivors() == []
