"""Differences from torchrun that README names: a black-box test for each."""

import itertools
import signal

import pytest

from patience import kept
from ports import free_port
from support import wait_for

ENDS = """
import os, signal, sys, time
how = sys.argv[1]
if how.startswith("SIG"):
    os.kill(os.getpid(), getattr(signal, how))
if how == "waits":
    print("waits", flush=True)
    time.sleep(600)
sys.exit(int(how))
"""


@pytest.mark.parametrize(
    ("options", "how", "code"),
    [
        ((), "0", 0),
        ((), "42", 42),
        ((), "SIGKILL", 128 + signal.SIGKILL),
        (("--nproc-per-node", "many"), "0", 2),
        (("--policy", "none-such"), "0", 3),
        (("--rdzv-backend", "c10d", "--rdzv-conf", "is_host=0", "--connect-timeout", "0.3"), "0", 4),
        ((), "waits", 128 + signal.SIGTERM),
    ],
    ids=["good end", "own code", "killed", "usage", "plugin", "rendezvous", "told to stop"],
)
def test_exit_code_says_how_the_run_ended(elastic, script, options, how, code):
    endpoint = ("--rdzv-endpoint", f"127.0.0.1:{free_port()}") if "c10d" in options else ()  # where no server listens
    agent = elastic(*options, *endpoint, script(ENDS), how)
    if how == "waits":
        wait_for(lambda: "waits" in agent.out, what="the worker")
        agent.signal(signal.SIGTERM)
    assert agent.wait() == code, agent.err
    assert "Traceback" not in agent.err


def test_script_that_is_missing_or_can_not_be_compiled_is_not_retried(elastic, script, tmp_path):
    missing = elastic("--max-restarts", "3", tmp_path / "trian.py")
    broken = elastic("--max-restarts", "3", script("def broken(:\n"))
    assert missing.wait() == 2
    (line,) = missing.err.splitlines()
    assert "trian.py" in line
    assert list(missing.runtime.glob("elastic-*/*-*")) == []
    assert broken.wait() == 1
    assert "SyntaxError" in broken.err
    assert "; restart" not in broken.err
    assert broken.incident()["restart_count"] == 0


def test_restarts_are_counted_for_the_run_whichever_node_fails(redis_run):
    a, b = (redis_run.node(name, "2", "--max-restarts", "1") for name in "ab")
    first, _ = (node.said(world=2) for node in (a, b))
    redis_run.exit_rank(first["rank"], 0, 9)  # a worker of node a, and next one of node b
    again = [node.said(world=2, gen=1) for node in (a, b)]
    assert [line["restarts"] for line in again] == [1, 1]
    redis_run.exit_rank(again[1]["rank"], 1, 7)
    for node in (a, b):
        node.ends(7)
        assert "restart budget of 1 used up" in node.agent.err


STARTS = """
import os, sys, time
os.write(1, b'{"restarts": %s, "at": %.3f}\\n' % (os.environ["TORCHELASTIC_RESTART_COUNT"].encode(), time.monotonic()))
sys.exit(42)
"""


def test_second_restart_waits_and_the_third_waits_longer(elastic, script):
    agent = elastic("--max-restarts", "3", script(STARTS))
    assert agent.wait() == 42
    at_s = [line["at"] for line in agent.lines()]
    first, second, third = (after - before for before, after in itertools.pairwise(at_s))
    kept(first, 0.5)  # at once
    assert second >= 0.5
    assert third >= 1.0


def test_nodes_that_join_leave_or_die_cost_no_restart(redis_run):
    a = redis_run.node("a", "1:3")
    a.said(world=1)
    b = redis_run.node("b", "1:3")
    joined = [node.said(world=2) for node in (a, b)]
    assert sorted(line["rank"] for line in joined) == [0, 1]
    b.agent.signal(signal.SIGTERM)
    left = a.said(world=1, changes=2)
    b.ends(128 + signal.SIGTERM)
    c = redis_run.node("c", "1:3")
    joined += [node.said(world=2, changes=3) for node in (a, c)]
    c.kill_agent()
    died = a.said(world=1, changes=4)
    assert {line["restarts"] for line in (*joined, left, died)} == {0}
    redis_run.all_end(a)


FIRST_ONE_FAILS = """
import json, os, pathlib, time
shared, rank = pathlib.Path(os.environ["TEST_SHARED"]), os.environ["RANK"]
os.write(1, (json.dumps({"rank": int(rank), "world": int(os.environ["WORLD_SIZE"])}) + os.linesep).encode())
while not all((shared / f"there{each}").exists() for each in "01"):
    (shared / f"there{rank}").touch()
    time.sleep(0.01)
if rank == "1":
    raise ValueError("label 11 is not a digit")
time.sleep(600)
"""


def test_all_nodes_end_with_one_code_and_name_the_same_first_failure(redis_run):
    redis_run.script.write_text(FIRST_ONE_FAILS)
    nodes = [redis_run.node(name, "2") for name in "ab"]
    for node in nodes:
        assert node.agent.wait() == 1
        incident = node.agent.incident()
        assert incident["first"]["exit"]["global_rank"] == 1
        assert incident["summary"] == "ValueError: label 11 is not a digit"
        assert "rank 1" in node.agent.err


HOSTS = """
import json, os, socket, sys
port, attempt = int(os.environ["MASTER_PORT"]), os.environ["TORCHELASTIC_RESTART_COUNT"]
store = socket.socket()
store.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
store.bind(("", port))
store.listen()
os.write(1, (json.dumps({"port": port}) + os.linesep).encode())
sys.exit(3 if attempt in "01" else 0)
"""


def test_each_attempt_has_a_port_of_its_own_on_which_rank_0_can_listen(elastic, script):
    agent = elastic("--max-restarts", "2", "--restart-backoff", "0", script(HOSTS))
    assert agent.wait() == 0, agent.err
    assert len({line["port"] for line in agent.lines()}) == 3


LEAVES = """
import json, os, signal, subprocess, sys, time
for signum in (signal.SIGTERM, signal.SIGINT):
    signal.signal(signum, signal.SIG_IGN)
subprocess.Popen(["sleep", "600"])
subprocess.Popen(["sleep", "600"], start_new_session=True)
os.write(1, b'{"up": 1}\\n')
if sys.argv[1] == "stays":
    time.sleep(600)
"""


@pytest.mark.parametrize("end", ["good end", "agent killed"])
def test_nothing_survives_the_end_of_a_run(elastic, script, end):
    agent = elastic("--nproc-per-node", "2", script(LEAVES), "stays" if end == "agent killed" else "ends")
    if end == "good end":
        assert agent.wait() == 0, agent.err
        assert agent.survivors() == []
        return
    wait_for(lambda: len(agent.survivors()) == 6, what="workers and their children")
    agent.signal(signal.SIGKILL)
    agent.wait()
    wait_for(lambda: not agent.survivors(), within_s=5, what="the end of everything that the run has started")


RAISES = """
def step(batch):
    raise ValueError("label 11 is not a digit")
step(0)
"""


def test_summary_has_exception_message_and_traceback_of_a_script_without_record(elastic, script):
    agent = elastic(script(RAISES))
    assert agent.wait() == 1
    block = agent.err[agent.err.index("── run") :]
    assert len(block.splitlines()) <= 25
    assert "rank 0" in block.splitlines()[0]
    assert "user exception: ValueError: label 11 is not a digit" in block
    assert "train.py:3 in step" in block
