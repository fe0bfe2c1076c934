"""A process that hangs on a file system with its memory locked, which its environment can't be read without."""

import os
import signal
import subprocess
import sys
import time

import pytest

from elastic_core.processes import procfs, sweep
from elastic_core.processes.sweep import Sweeper
from hung_files import HANGER, hung_file, wait_until_hung
from patience import patience
from proc_kit import is_alive
from support import wait_for

WORKER = """
import json, os, signal, subprocess, sys
started = {"worker": os.getpid()}
if os.environ["LOCAL_RANK"] == "0":
    started["hung"] = subprocess.Popen([sys.executable, "-c", sys.argv[1], sys.argv[2]]).pid
else:
    for name, more in (("near", {}), ("kept", {"ELASTIC_KEEP": "1"})):
        started[name] = subprocess.Popen(["sleep", "600"], env={**os.environ, **more}).pid
os.write(1, json.dumps(started).encode() + b"\\n")
signal.pause()
"""


@pytest.fixture
def start():
    """Start a process; it is ended after the test."""
    running = []

    def start(*command, **environment):
        running.append(subprocess.Popen(command, env=os.environ | environment))
        return running[-1].pid

    yield start
    for process in running:
        process.kill()
        process.wait()


@pytest.fixture
def hung(elastic, start, tmp_path):  # after them, so that it ends before: what hangs could not be ended
    with hung_file(tmp_path / "hung") as path:
        yield path


def started_by(run):
    """Every process that the workers have started, by name, when one of them hangs."""
    wait_for(lambda: len(run.lines()) == 2, what="two workers")
    pids = {name: pid for line in run.lines() for name, pid in line.items() if name != "worker"}
    wait_until_hung(pids["hung"])
    return pids | {f"worker {n}": line["worker"] for n, line in enumerate(run.lines())}


def those_alive(pids):
    return {name for name, pid in pids.items() if is_alive(pid)}


def test_a_stop_is_acted_upon_while_the_memory_of_one_can_not_be_read(elastic, script, hung):
    run = elastic("--nproc-per-node", "2", "--shutdown-timeout", "1", script(WORKER), HANGER, str(hung))
    pids = started_by(run)
    run.signal(signal.SIGTERM)
    wait_for(lambda: those_alive(pids) == {"hung", "kept"}, within_s=10, what="the end of all but two")
    assert run.wait(30) == 128 + signal.SIGTERM, run.err


def test_the_guard_ends_the_others_while_the_memory_of_one_can_not_be_read(elastic, script, hung):
    run = elastic("--nproc-per-node", "2", script(WORKER), HANGER, str(hung))
    pids = started_by(run)
    run.signal(signal.SIGKILL)
    wait_for(lambda: those_alive(pids) == {"hung", "kept"}, within_s=10, what="the end of all but two")


def test_a_look_of_the_library_knows_by_the_limit_whom_it_can_not_read(start, hung):
    incarnation = f"test-{os.getpid()}"
    locked = start(sys.executable, "-c", HANGER, str(hung))
    other = start("sleep", "600", ELASTIC_INCARNATION=incarnation)
    assert sweep.set_limit(locked, procfs.limit_mark(incarnation)) is not None
    wait_until_hung(locked)
    sweeper = Sweeper(incarnation, subreaper=False, strangers=False, spared=tuple)
    began_s = time.monotonic()
    assert {found.pid for found in sweeper.look(workers=(), abandoned=())} == {locked, other}
    assert time.monotonic() - began_s < patience(5)
