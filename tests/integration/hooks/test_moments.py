"""What a hook is told of real runs, in which order, and that the incidents of those runs say the same."""

import json
import signal

import pytest

from patience import kept, patience
from ports import free_port
from support import wait_for

LEDGERS = "ledger-high-step"

RECORDER = """
import json, os
from elastic_core.api import AgentHook, Power, Refuse

class Recorder(AgentHook):
    api_version = 1
    powers = frozenset({Power.REFUSAL})

def tell(name):
    def told(self, event):
        fields = {field: getattr(event, field) for field in event.__struct_fields__}
        with open(os.environ["MOMENTS"], "a") as file:
            file.write(json.dumps([name, fields], default=record) + os.linesep)
        first_refused = os.environ.get("REFUSE_FROM")
        if name == "on_workers_starting" and first_refused and event.restart_count >= int(first_refused):
            return Refuse(reason="GPU 3 is too hot")
    return told

def record(value):
    return {field: getattr(value, field) for field in value.__struct_fields__}

for name in [name for name in dir(AgentHook) if name.startswith("on_")]:
    setattr(Recorder, name, tell(name))
"""

FAILS_ONCE = """
import os, signal, sys, time
if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
    if os.environ["RANK"] == "1":
        raise ValueError("boom")
    time.sleep(600)
"""

FAILS_WHILE_THE_OTHER_SAVES = """
import os, pathlib, signal, sys, time
here = pathlib.Path(__file__).parent
if os.environ["RANK"] == "1":
    while not (here / "ready").exists():
        time.sleep(0.01)
    sys.exit(7)
def save(*_):
    (here / "saving").touch()
    while not (here / "finish").exists():
        time.sleep(0.01)
    sys.exit(0)
signal.signal(signal.SIGTERM, save)
(here / "ready").touch()
time.sleep(600)
"""


@pytest.fixture
def told(tmp_path):
    """Install the recorder; return its environment, and a function that reads what it was told."""
    site = tmp_path / "site"
    info = site / "test_recorder-1.0.dist-info"
    info.mkdir(parents=True)
    (site / "test_recorder.py").write_text(RECORDER)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: test-recorder\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[elastic_core.hooks]\ntest-recorder = test_recorder:Recorder\n")
    moments = tmp_path / "moments.jsonl"
    moments.touch()
    env = {"PYTHONPATH": str(site), "MOMENTS": str(moments)}

    def told_so_far():
        found = [json.loads(line) for line in moments.read_text().splitlines()]
        # Another hook's: the ledger's nodes agree on a step.
        return [(name, fields) for name, fields in found if (name, fields.get("topic")) != ("on_agreed", LEDGERS)]

    return env, told_so_far


def incident_of(agent, round_index):
    (path,) = agent.runtime.glob(f"elastic-*/*/attempt_{round_index}/incident.json")
    return json.loads(path.read_text())


def test_restart_is_told_in_the_documented_order_with_the_workers_that_failed(elastic, script, tmp_path, told):
    env, moments = told
    run_dir = tmp_path / "run"
    options = ("--nproc-per-node", "2", "--max-restarts", "1", "--run-dir", run_dir)
    assert elastic(*options, script(FAILS_ONCE), env=env).wait(30) == 0
    names = [name for name, _ in moments()]
    joined = ["on_joining", "on_round_joined", "on_workers_starting", "on_workers_started"]
    ended = ["on_worker_exited", "on_worker_exited", "on_workers_stopping", "on_agent_stopped"]
    failed = ["on_worker_exited", "on_failure", "on_decision", "on_workers_stopping", "on_worker_exited"]
    assert names == ["on_agent_started", *joined, *failed, *joined, *ended]
    (seen,) = [fields for name, fields in moments() if name == "on_failure"]
    exits = [fields["exit"] for name, fields in moments() if name == "on_worker_exited"]
    assert [worker["summary"] for worker in seen["workers"]] == ["ValueError: boom"]
    assert [worker["exit"]["pid"] for worker in seen["workers"]] == [exits[0]["pid"]]
    kept(abs(seen["failure"]["uptime_s"] - exits[0]["runtime_s"]), 0.05)  # the others' start is between them


def test_incident_says_at_last_what_the_restart_took(elastic, script, tmp_path):
    run_dir = tmp_path / "run"
    agent = elastic("--nproc-per-node", "2", "--max-restarts", "1", "--run-dir", run_dir, script(FAILS_ONCE))
    assert agent.wait(30) == 0, agent.err
    for path in (run_dir / "incident.json", run_dir / "attempt_0" / "incident.json"):
        phases = json.loads(path.read_text())["phases"]
        assert set(phases) == {"detect_s", "stop_s", "rendezvous_s", "start_s"}
        assert all(0 <= seconds < patience(10) for seconds in phases.values()), phases


def test_stop_signal_during_a_restart_is_told(elastic, script, tmp_path, told):
    env, moments = told
    path = script(FAILS_WHILE_THE_OTHER_SAVES)
    agent = elastic("--nproc-per-node", "2", "--max-restarts", "3", path, env=env)
    wait_for((tmp_path / "saving").exists)
    agent.signal(signal.SIGTERM)
    wait_for(lambda: "SIGTERM: stopping 1 worker" in agent.err)
    (tmp_path / "finish").touch()
    assert agent.wait(30) == 128 + signal.SIGTERM
    (drain,) = [fields for name, fields in moments() if name == "on_drain"]
    assert drain["signum"] == signal.SIGTERM
    assert 0 < drain["deadline_s"] < 30.0
    assert [name for name, _ in moments()][-3:] == ["on_drain", "on_worker_exited", "on_agent_stopped"]


def test_stop_signal_is_told_where_no_worker_runs_too(elastic, script, told):
    env, moments = told
    options = ("--rdzv-backend", "c10d", "--rdzv-endpoint", f"127.0.0.1:{free_port()}", "--nnodes", "2")
    agent = elastic(*options, script(FAILS_ONCE), env=env)
    wait_for(lambda: "on_joining" in [name for name, _ in moments()])
    agent.signal(signal.SIGTERM)
    assert agent.wait(30) == 128 + signal.SIGTERM
    names = [name for name, _ in moments()]
    assert names == ["on_agent_started", "on_joining", "on_drain", "on_agent_stopped"]
    assert moments()[2][1] == {"signum": signal.SIGTERM, "deadline_s": 0.0}


def test_refused_start_is_asked_about_in_its_round_and_blames_no_earlier_worker(elastic, script, told):
    env, moments = told
    options = ("--nproc-per-node", "2", "--max-restarts", "2", "--restart-backoff", "0", "--join-timeout", "2.5")
    agent = elastic(*options, script(FAILS_ONCE), env=env | {"REFUSE_FROM": "1"})
    assert agent.wait(30) == 1
    names = [name for name, _ in moments()]
    joined = [fields["round"]["index"] for name, fields in moments() if name == "on_round_joined"]
    assert joined == [0, 1]
    asked = [fields["round"]["index"] for name, fields in moments() if name == "on_workers_starting"]
    assert asked == [0, 1, 1, 1][: len(asked)]
    assert len(asked) >= 3
    assert (names.count("on_failure"), names.count("on_workers_started")) == (1, 1)
    assert incident_of(agent, 0)["first"]["exit"]["global_rank"] == 1
    incident = incident_of(agent, 1)
    assert incident["failure_class"] == "health check"
    assert (incident["restart_count"], incident["round_index"]) == (1, 1)
    assert (incident["first"], incident["secondary"], incident["stopped"]) == (None, [], [])
    line = (
        "this node stays out: hook 'test-recorder' (test-recorder 1.0) refused: GPU 3 is too hot; it is asked again in "
    )
    assert agent.err.count("this node stays out") == agent.err.count(line) == 1
