"""SCENARIO K9 on two nodes: exit codes and retries are the run's; where nodes exchange no word, each node's own."""

import itertools
import os
import signal
import time
from contextlib import suppress
from pathlib import Path

import pytest

from patience import kept
from proc_kit import is_alive
from support import lacks, wait_for

COUNTED = """
import json, os, pathlib, signal, sys, time
env, shared = os.environ, pathlib.Path(os.environ["TEST_SHARED"])
says = dict(node=env["ELASTIC_NODE_ID"], rank=int(env["RANK"]), world=int(env["WORLD_SIZE"]), pid=os.getpid(),
            gen=int(env["ELASTIC_ROUND"]), restarts=int(env["TORCHELASTIC_RESTART_COUNT"]), at=time.monotonic())
signal.signal(signal.SIGUSR1, lambda *_: (shared / f"usr1-{says['rank']}").touch())
os.write(1, (json.dumps(says) + os.linesep).encode())
def together():
    (shared / f"there-{says['rank']}-{says['gen']}").touch()
    while not all((shared / f"there-{rank}-{says['gen']}").exists() for rank in range(says["world"])):
        time.sleep(0.005)
"""
WAITS = COUNTED + "while not (shared / 'finish').exists():\n    time.sleep(0.02)\n"
TOGETHER = "if says['rank'] == 1:\n    together()\n    {}\ntogether()\ntime.sleep(600)\n"
"""Rank 1 does something once both are there; in a run whose nodes exchange no word, rank 0 does the same."""


def start(run, script, *options):
    """Start two nodes of a run, rank 0 first."""
    if run.backend == "static":
        script = script.replace("if says['rank'] == 1:", "if True:")
    run.script.write_text(script)
    return [run.node(name, "2", *options) for name in "ab"]


def counts(node):
    return [(line["gen"], line["restarts"]) for line in node.says()]


def test_a_worker_that_always_fails_is_started_four_times_and_all_exit_with_its_code(any_run):
    options = ("--max-restarts", "3", "--restart-backoff", "0.1")
    nodes = start(any_run, COUNTED + TOGETHER.format("sys.exit(42)"), *options)
    for node in nodes:
        node.ends(42, within_s=30)
        assert counts(node) == [(n, n) for n in range(4)]
        assert "restart budget" in node.agent.err
        gaps = [b["at"] - a["at"] for a, b in itertools.pairwise(node.says())]
        assert gaps[1] > 0.1
        assert gaps[2] > 0.2


@pytest.mark.parametrize(
    ("how", "code"), [("sys.exit(42)", 42), ("os.kill(os.getpid(), 9)", 137)], ids=["fatal code", "killed"]
)
def test_the_last_failure_s_code_is_everybody_s(any_run, how, code):
    options = ("--max-restarts", "3", "--fatal-exit-codes", "42,137")
    nodes = start(any_run, COUNTED + TOGETHER.format(how), *options)
    for node in nodes:
        node.ends(code)
        assert counts(node) == [(0, 0)]
        assert "fatal" in node.agent.err


def test_a_missing_script_starts_nothing_on_any_node(any_run):
    any_run.script.unlink()
    began_s = time.monotonic()
    nodes = [any_run.node(name, "2", "--max-restarts", "3") for name in "ab"]
    for node in nodes:
        node.ends(2)
        assert len(node.agent.err.splitlines()) == 1
        assert "train.py" in node.agent.err
    kept(time.monotonic() - began_s, 2)  # two interpreters, on a busy machine


def test_signals_that_stop_nothing_and_one_that_does(any_run):
    """`nohup` and SIGHUP; SIGUSR1; then SIGTERM for one agent, and the other one goes on without it."""
    any_run.script.write_text(WAITS)
    ignored = {"preexec_fn": lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN)}
    nnodes = "2" if any_run.backend == "static" else "1:2"
    a, b = (any_run.node(name, nnodes, "--nproc-per-node", "2", **ignored) for name in "ab")
    pids = [line["pid"] for node in (a, b) for line in (node.said(world=4, count=2), node.says()[-1])]
    for node in (a, b):
        node.agent.signal(signal.SIGHUP)
        node.agent.signal(signal.SIGUSR1)
    wait_for(lambda: len(list(any_run.shared.glob("usr1-*"))) == 4, within_s=5, what="all ranks to have the signal")
    assert all(is_alive(pid) for pid in pids)
    b.agent.signal(signal.SIGTERM)
    b.ends(143)
    if any_run.backend != "static":
        a.said(world=2, restarts=0)
    any_run.all_end(a)


CGROUPS = Path("/sys/fs/cgroup")
LIMIT_BYTES = 150 * 2**20
HUNGRY = (
    WAITS.replace("'finish'", "'eat'")
    + "hoard = [bytearray(2**20) for _ in range(400)] if says['node'] == 'b' else time.sleep(600)\n"
)


@pytest.fixture
def memory_cgroup():
    """Give a control group of this test's own that has little memory, and move everybody out of it afterwards."""
    for root, limit in ((CGROUPS / "memory", "memory.limit_in_bytes"), (CGROUPS, "memory.max")):
        group = root / f"elastic-test-{os.getpid()}-{time.monotonic_ns()}"
        with suppress(OSError):
            group.mkdir()
        if (group / limit).exists():
            break
        with suppress(OSError):
            group.rmdir()
    else:
        lacks("a memory cgroup of our own")
    (group / limit).write_text(str(LIMIT_BYTES))
    yield group
    for pid in (group / "cgroup.procs").read_text().split():
        with suppress(OSError):
            (root / "cgroup.procs").write_text(pid)
    wait_for(lambda: _removed(group), what="the group to be empty")


def _removed(group):
    with suppress(OSError):
        group.rmdir()
    return not group.exists()


def test_a_worker_that_the_kernel_kills_for_memory_is_told_as_that(served_run, memory_cgroup):
    served_run.script.write_text(HUNGRY)
    a = served_run.node("a", "2")
    b = served_run.node("b", "2", preexec_fn=lambda: (memory_cgroup / "cgroup.procs").write_text(str(os.getpid())))
    b.said(world=2)
    (served_run.shared / "eat").touch()
    for node in (a, b):
        node.ends(137)
        assert node.agent.incident()["failure_class"] == "out of memory on host", node.agent.incident()
        assert "out of memory in this node's cgroup" in node.agent.err
