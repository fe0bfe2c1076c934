"""Workers in uninterruptible sleep: seen, told, not waited for, and never a run that ended well."""

import os
import signal
import subprocess
import sys

import pytest

from elastic_watch import vitals
from patience import patience
from support import wait_for

SLEEPS = """
import ctypes, os, signal, time

def sleep_in_the_kernel(seconds):
    '''Wait as vfork's caller does, in state D, for a child that shares this memory and runs no Python.'''
    CLONE_VM, CLONE_VFORK = 0x100, 0x4000
    libc = ctypes.CDLL(None)
    stack = ctypes.create_string_buffer(1 << 16)
    top = ctypes.c_void_p((ctypes.addressof(stack) + len(stack)) & ~15)
    child = ctypes.cast(libc.sleep, ctypes.c_void_p)
    libc.clone(child, top, ctypes.c_int(CLONE_VM | CLONE_VFORK | signal.SIGCHLD), ctypes.c_void_p(seconds))
"""
TOP = SLEEPS + "from elastic_core.worker import heartbeat\nheartbeat(step=5)\n"


@pytest.fixture
def sleeper():
    process = subprocess.Popen(
        [sys.executable, "-c", SLEEPS + "print('there', flush=True)\nsleep_in_the_kernel(60)"],
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    yield process
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()


def test_process_in_uninterruptible_sleep_is_seen(sleeper):
    sleeper.stdout.readline()
    wait_for(lambda: vitals.look_at(sleeper.pid).state == "D")


def test_process_that_is_gone_is_in_no_sleep():
    process = subprocess.Popen([sys.executable, "-c", "pass"])
    process.wait()
    assert vitals.look_at(process.pid) is None


def test_hang_in_uninterruptible_sleep_is_named_and_ends_the_run_with_a_failure(elastic, script):
    agent = elastic(
        "--hang-timeout", "1", "--shutdown-timeout", "0.3", "--max-restarts", "0",
        script(TOP + "sleep_in_the_kernel(60)\n"),
    )  # fmt: skip
    assert agent.wait(40) == 1, agent.err
    assert "it is in uninterruptible sleep" in agent.err
    incident = agent.incident()
    assert (incident["failure_class"], incident["hang"]["ranks"][0]["state"]) == ("hang", "D")
    assert agent.survivors() == []


STUCK = """
import sys
from elastic_core.agent import loop
from elastic_core.processes import ladder
from elastic_core.processes.process import WorkerProcess

ladder.GIVE_UP_S = 0.3
reap = WorkerProcess.reap
WorkerProcess.reap = lambda self: None if self.launch.local_rank == 1 else reap(self)
from elastic_core.cli.main import main
sys.exit(main(["run", *sys.argv[1:]]))
"""


def test_run_is_never_ended_well_with_a_worker_that_kill_did_not_end(script, tmp_path):
    """Not even where a rule says that this failure is its good end."""
    rules = tmp_path / "rules.yaml"
    rules.write_text("rules: [{name: enough, match: {exit_code: 7}, action: done}]")
    worker = script("import os, sys, time\nif os.environ['RANK'] == '0':\n    sys.exit(7)\ntime.sleep(60)")
    agent = subprocess.run(
        [sys.executable, "-c", STUCK, "--nproc-per-node", "2", "--shutdown-timeout", "0.2", "--policy", str(rules),
         "--run-dir", str(tmp_path / "run"), str(worker)],
        capture_output=True, text=True, timeout=patience(60), check=False,
    )  # fmt: skip
    assert "does not end after SIGKILL" in agent.stderr, agent.stderr
    assert agent.returncode == 1, agent.stderr
    assert "a worker is still in uninterruptible sleep" in agent.stderr
