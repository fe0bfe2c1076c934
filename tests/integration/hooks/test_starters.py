"""Hooks that start workers, in real runs."""

import json
import os
import re
import signal

import pytest

from support import wait_for

HOOK = """
import os, subprocess
from elastic_core.api import AgentHook, Power, RunOption
from elastic_core.api.starters import StartedProcess, WorkerStarter

HOW = RunOption(name="how", hook="acme_start:Start", help="How it starts workers.")

class Odd(WorkerStarter):
    def __init__(self, loop, how):
        self.loop, self.how = loop, how
        self.helper = subprocess.Popen(["sleep", "600"], start_new_session=True)

    def start(self, worker):
        if worker.local_rank % 2 == 0:
            return None
        if self.how == "fail":
            raise OSError("no image")
        child = subprocess.Popen(worker.argv, env={**worker.environment, "STARTED_BY": "acme"},
                                 stdout=worker.stdout, stderr=worker.stderr, start_new_session=True)
        child.returncode = 0
        return StartedProcess(pid=child.pid)

    def round_started(self):
        self.loop.call_later(0.0, lambda: self.loop.notice("the round began"))

    def round_stopping(self):
        self.loop.notice("it ends")

    def worker_ended(self, pid):
        self.loop.notice(f"ended {pid}")

    def pids(self):
        return {self.helper.pid}

    def close(self):
        self.loop.notice(f"closed, helper {self.helper.poll()}, own process {self.loop.own_process}")
        self.helper.kill()
        self.helper.wait()

class Start(AgentHook):
    api_version = 1
    powers = frozenset({Power.STARTS})
    options = (HOW,)

    def worker_starter(self, loop):
        return Odd(loop, self.settings.options["how"])
"""
SCRIPT = """
import json, os, sys, time
print(json.dumps({"rank": os.environ["RANK"], "round": os.environ["ELASTIC_ROUND"], "pid": os.getpid(),
    "by": os.environ.get("STARTED_BY"), "session": os.getsid(0) == os.getpid()}), flush=True)
if os.environ["ELASTIC_ROUND"] == "0" or "--stay" in sys.argv:
    time.sleep(600)
"""


@pytest.fixture
def run(elastic, script, tmp_path, monkeypatch):
    info = tmp_path / "acme_start-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: acme-start\nVersion: 1\n")
    (info / "entry_points.txt").write_text("[elastic_core.options]\nhow = acme_start:HOW\n")
    (tmp_path / "acme_start.py").write_text(HOOK)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))

    def run(how, *words):
        options = ("--nproc-per-node", "2", "--max-restarts", "1", "--how", how, "--tee", "3")
        return elastic(*options, script(SCRIPT), *words)

    return run


def workers_of(agent, count):
    wait_for(lambda: agent.out.count('"rank"') == count, what=f"{count} workers\n{agent.err}")
    return [json.loads(line[line.index("{") :]) for line in agent.out.splitlines()]


def test_a_hook_starts_workers_of_every_round(run):
    agent = run("well")
    first = {line["rank"]: line for line in workers_of(agent, 2)}
    assert {rank: line["by"] for rank, line in first.items()} == {"0": None, "1": "acme"}
    os.kill(first["1"]["pid"], signal.SIGKILL)
    assert agent.wait(40) == 0, agent.err
    lines = workers_of(agent, 4)
    assert all(line["session"] for line in lines)
    assert sorted((line["round"], line["by"] or "") for line in lines) == [
        ("0", ""),
        ("0", "acme"),
        ("1", ""),
        ("1", "acme"),
    ]
    assert agent.err.count("the round began") == 2
    ended = [line.rpartition(" ")[2] for line in agent.err.splitlines() if " ended " in line]
    assert ended == [str(line["pid"]) for line in lines if line["by"]]
    assert "it ends" in agent.err
    assert "closed, helper None, own process True" in agent.err, "a sweep must leave what is the starter's own alone"
    assert wait_for(lambda: not agent.survivors())


def test_its_workers_are_stopped_as_all_are(run):
    agent = run("well", "--stay")
    workers_of(agent, 2)
    agent.signal(signal.SIGTERM)
    assert agent.wait(40) == 128 + signal.SIGTERM
    assert wait_for(lambda: not agent.survivors())


def test_workers_start_without_one_that_fails(run):
    agent = run("fail", "--stay")
    assert {line["by"] for line in workers_of(agent, 2)} == {None}
    agent.signal(signal.SIGTERM)
    agent.wait(40)
    line = r"hook 'how' \(acme-start 1\): start raised OSError: no image \(\w+\.py:\d+ in start\); workers are started"
    assert len(re.findall(line, agent.err)) == 1
    assert "the round began" not in agent.err
    assert wait_for(lambda: not agent.survivors())
