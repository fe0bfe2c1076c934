"""Whoever signals all processes of a node at once stops that node: no failure, no restart, and the others go on.

As systemd does it (the main process first, then the rest of the cgroup), a batch system's step kill, `docker stop` with
an init that signals its whole group, or somebody with a list of pids.
"""

import os
import signal
from contextlib import suppress

import pytest

from proc_kit import descendants, is_alive
from support import wait_for

SLEEPS = "import os, time\nos.write(1, b'{}' + os.linesep.encode())\ntime.sleep(600)\n"
CHOOSES = """
import os, signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: os._exit(143))
os.write(1, b'{}' + os.linesep.encode())
time.sleep(600)
"""
DEAF = """
import json, os, pathlib, signal, time
for signum in (signal.SIGTERM, signal.SIGINT):
    signal.signal(signum, signal.SIG_IGN)
env, shared = os.environ, pathlib.Path(os.environ["TEST_SHARED"])
says = dict(node=env["ELASTIC_NODE_ID"], world=int(env["WORLD_SIZE"]), restarts=int(env["TORCHELASTIC_RESTART_COUNT"]))
os.write(1, (json.dumps(says) + os.linesep).encode())
while not (shared / "finish").exists():
    time.sleep(0.02)
"""
ORDERS = ["agent first", "workers first"]
SIGNALS = [signal.SIGTERM, signal.SIGINT, signal.SIGHUP]
TRIES = [
    pytest.param(2, id="2 tries"),
    pytest.param(50, id="50 tries", marks=[pytest.mark.chaos_full, pytest.mark.timeout(900)]),
]


def signal_all(agent_pid, order, signum):
    """Signal a node's agent and everything below it."""
    others = sorted(descendants(agent_pid))
    for pid in [agent_pid, *others] if order == "agent first" else [*others, agent_pid]:
        with suppress(ProcessLookupError):  # a worker's group was signalled by the agent meanwhile
            os.kill(pid, signum)


def assert_drained(agent, code):
    assert agent.wait(30) == code, agent.err
    # Python's own words where the second signal comes while it prints the traceback of the first.
    assert "failed" not in agent.err.replace("<exception str() failed>", ""), agent.err
    assert "restart" not in agent.err, agent.err
    assert agent.survivors() == []


@pytest.mark.parametrize("tries", TRIES)
@pytest.mark.parametrize("budget", [0, 2])
@pytest.mark.parametrize("order", ORDERS)
def test_signal_to_all_of_the_only_node_is_no_failure(elastic, script, order, budget, tries):
    for number in range(tries):
        signum, workers = SIGNALS[number % 3], 1 + 3 * (number % 2)
        agent = elastic("--nproc-per-node", workers, "--max-restarts", budget, "--no-worker-hooks", script(SLEEPS))
        wait_for(lambda agent=agent, workers=workers: len(agent.lines()) == workers)
        signal_all(agent.pid, order, signum)
        assert_drained(agent, 128 + signum)


@pytest.mark.parametrize("order", ORDERS)
def test_code_that_stands_for_the_signal_is_no_failure_either(elastic, script, order):
    agent = elastic("--nproc-per-node", 2, "--max-restarts", "0", script(CHOOSES))
    wait_for(lambda: len(agent.lines()) == 2)
    signal_all(agent.pid, order, signal.SIGTERM)
    assert_drained(agent, 143)


def test_workers_death_by_a_stop_signal_alone_is_a_failure_as_before(elastic, script):
    agent = elastic("--nproc-per-node", 2, "--max-restarts", "1", script(SLEEPS))
    wait_for(lambda: len(agent.lines()) == 2)
    os.kill(min(agent.survivors()), signal.SIGTERM)
    wait_for(lambda: len(agent.lines()) == 4)
    assert "killed by SIGTERM (15); restart 1 of 1 now" in agent.err
    agent.signal(signal.SIGTERM)
    assert agent.wait(30) == 143


def assert_the_other_goes_on(run, budget, codes, stop, **start):
    """Check that node b goes on, with no restart, each time that `stop` has node a end with one of the codes."""
    run.lease_s = 15.0  # no lease is to end here, also where nobody gets a turn for seconds
    options = ("--max-restarts", budget, "--nproc-per-node", "2")
    conf = {"conf": "last_call_timeout=0.2"}
    b = run.node("b", "1:2", *options, **conf)
    b.said(world=2)
    for code in codes:
        a = run.node("a", "1:2", *options, **conf, **start)
        world = a.said(world=4, count=2)
        b.said(world=4, gen=world["gen"], count=2)
        stop(a.agent, code - 128)
        a.ends(code)
        b.told(f"round {world['gen']} is over: a left")
        b.said(world=2, restarts=0, gen=world["gen"] + 1, count=2)
    run.all_end(b)
    assert "failed" not in a.agent.err + b.agent.err


@pytest.mark.parametrize("tries", TRIES)
@pytest.mark.parametrize("budget", ["0", "2"])
@pytest.mark.parametrize("order", ORDERS)
def test_signal_to_all_of_one_node_costs_the_other_no_restart(redis_run, order, budget, tries):
    codes = [128 + SIGNALS[number % 2] for number in range(tries)]
    assert_the_other_goes_on(redis_run, budget, codes, lambda agent, signum: signal_all(agent.pid, order, signum))


@pytest.mark.parametrize("tries", TRIES)
@pytest.mark.parametrize("budget", ["0", "2"])
def test_service_that_systemd_stops_is_no_failure(systemd, script, budget, tries):
    path = script(SLEEPS)
    for number in range(tries):
        workers = 1 + 3 * (number % 2)
        service = systemd.elastic("--nproc-per-node", workers, "--max-restarts", budget, path)
        wait_for(lambda service=service, workers=workers: service.out.count("{}") == workers, what=service.err)
        service.stop()
        assert service.wait() == 128 + signal.SIGTERM
        assert "failed" not in service.err.replace("<exception str() failed>", ""), service.err
        assert "restart" not in service.err, service.err


@pytest.mark.parametrize("tries", TRIES)
@pytest.mark.parametrize("budget", ["0", "2"])
def test_service_that_systemd_stops_costs_the_other_node_no_restart(systemd, redis_run, budget, tries):
    codes = [128 + signal.SIGTERM] * tries
    assert_the_other_goes_on(redis_run, budget, codes, lambda agent, _: agent.stop(), start=systemd.elastic)


@pytest.mark.parametrize("order", ORDERS)
def test_node_that_is_killed_while_it_drains_has_left_all_the_same(redis_run, order):
    redis_run.script.write_text(DEAF)
    options = ("1:2", "--max-restarts", "0", "--shutdown-timeout", "60")
    both = {"conf": "last_call_timeout=60"}  # one that began alone would have to wait for its deaf worker, a minute
    a, b = (redis_run.node(name, *options, **both) for name in "ab")
    for node in (a, b):
        node.said(world=2)
    signal_all(a.agent.pid, order, signal.SIGTERM)
    a.told("SIGTERM: stopping 1 worker")
    b.told("round 0 is over: a left")  # what a says to people comes before what it says to the store
    everybody = [a.agent.pid, *descendants(a.agent.pid)]
    signal_all(a.agent.pid, order, signal.SIGKILL)
    assert a.agent.wait(10) == -signal.SIGKILL
    wait_for(lambda: not any(is_alive(pid) for pid in everybody))
    redis_run.finish()  # its worker is deaf, too: it ends by itself, before the next round or in it
    b.ends(0, within_s=30)
    assert "failed" not in b.agent.err
    assert "lost" not in b.agent.err
