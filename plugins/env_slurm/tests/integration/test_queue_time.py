"""The time in Slurm's queue: one node requests it from a fake scontrol, and all nodes add it to their feeds."""

import os
import sys

import pytest

from elastic_core.api import SYSTEM_CLOCK, AgentStarted, HookSettings, WorkersStarted
from elastic_core.api.feed import Agreed
from elastic_env_slurm.queue_time import TOPIC
from elastic_env_slurm.requeue import Requeue
from elastic_plugin_kit import FakeRun, sample_round
from support import wait_for

SCONTROL = f"""#!{sys.executable}
import os, sys
with open(os.environ["CALLS"], "a") as file:
    file.write(" ".join(sys.argv[1:]) + "\\n")
if sys.argv[2] == "job":
    print("JobId=4711 JobName=x\\n   SubmitTime=2026-11-26T10:00:00 EligibleTime=2026-11-26T10:00:00")
    print("   StartTime=2026-11-26T11:00:00 EndTime=Unknown\\n   Partition=main")
"""


@pytest.fixture
def slurm(tmp_path, monkeypatch):
    """A job of Slurm that started just now, and a scontrol that keeps its calls."""
    (tmp_path / "bin").mkdir()
    program = tmp_path / "bin" / "scontrol"
    program.write_text(SCONTROL)
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"), prepend=os.pathsep)
    monkeypatch.setenv("CALLS", str(tmp_path / "calls"))
    monkeypatch.setenv("SLURM_JOB_ID", "4711")
    monkeypatch.setenv("SLURM_JOB_START_TIME", str(SYSTEM_CLOCK.wall_ns() // 10**9))
    return tmp_path / "calls"


def agent(monkeypatch, node):
    monkeypatch.setenv("SLURM_NODEID", str(node))
    hook = Requeue(
        HookSettings(name="requeue", run_id="4711.0", options={"requeue": "preempted", "requeue_limit": None})
    )
    hook.run = FakeRun()
    hook.on_agent_started(AgentStarted(run_id="4711.0", node_id=f"n{node}", run_dir="", pid=1))
    return hook


def started():
    return WorkersStarted(round=sample_round(), pids=(7,))


def test_one_node_requests_it_and_all_nodes_add_it(slurm, monkeypatch):
    first, second = agent(monkeypatch, 0), agent(monkeypatch, 1)
    since_s = int(os.environ["SLURM_JOB_START_TIME"]) - 3600
    for hook in (first, second):
        hook.on_workers_started(started())
    wait_for(lambda: TOPIC in first.run.stated)
    assert (first.run.stated, second.run.stated) == ({TOPIC: since_s}, {TOPIC: 0})
    assert [line.split()[1] for line in slurm.read_text().splitlines()].count("job") == 1
    for hook in (first, second):
        hook.on_agreed(Agreed(topic=TOPIC, value=since_s))
        assert hook.run.events == [("queued", {"since_ns": since_s * 10**9, "job": "slurm 4711"})]


def test_an_agent_long_after_the_jobs_start_was_not_queued(slurm, monkeypatch):
    monkeypatch.setenv("SLURM_JOB_START_TIME", str(SYSTEM_CLOCK.wall_ns() // 10**9 - 3600))
    hook = agent(monkeypatch, 1)
    hook.on_agreed(Agreed(topic=TOPIC, value=SYSTEM_CLOCK.wall_ns() // 10**9 - 7200))
    assert hook.run.events == []


def test_without_an_answer_the_other_nodes_do_not_wait(slurm, monkeypatch):
    (slurm.parent / "bin" / "scontrol").write_text("#!/bin/sh\nexit 1\n")
    hook = agent(monkeypatch, 0)
    hook.on_workers_started(started())
    wait_for(lambda: hook.run.stated == {TOPIC: 0})
    hook.on_agreed(Agreed(topic=TOPIC, value=0))
    assert hook.run.events == []
