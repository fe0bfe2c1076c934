"""Hooks with the run's handle, in real runs: they report, ask, know, publish, and are called later."""

import json
from pathlib import Path

import pytest

from elastic_core.api.records import run_records
from support import wait_for

HOOK = """
import os, json
from elastic_core.api import AgentHook, ErrorRecord, FailureClass, FailureReport, Power, RunOption, WorkerFault
from elastic_core.api.feed import Answer

ACT = RunOption(name="act", hook="acme_act:Act", help="What to do.")

class Act(AgentHook):
    api_version = 1
    powers = frozenset({Power.RUN})
    options = (ACT,)
    rounds = 0

    def on_agent_started(self, event):
        assert self.run.workers() == ()
        self.run.publish({"temperature": 41.5, "gpu": "ok"})
        self.run.call_later(0.0, lambda: self.run.notice("a call of its own"))
        if self.settings.options["act"] != "kept":  # else the run directory stays
            self.run.call_later(0.0, lambda: 1 / 0)
        self.run.call_later(0.0, lambda: self.run.notice("never")).cancel()

    def on_workers_started(self, event):
        self.rounds += 1
        if self.rounds == 1:
            assert [worker.pid for worker in self.run.workers()] == list(event.pids)
            assert self.run.workers(ended=True) == self.run.workers()
            self.run.call_later(0.1, self.act)

    def act(self):
        if not all(os.path.exists(os.environ["READY"] + str(rank)) for rank in (0, 1)):
            self.run.call_later(0.05, self.act)
            return
        getattr(self, self.settings.options["act"])()

    def worker(self):
        error = ErrorRecord(source="acme", type="Stale", message="old", timestamp_ns=0,
                            frames=(("train.py", 3, "step", ""),))
        report = FailureReport(summary="rank 1 is stale", failure_class=FailureClass.HANG, fields={"age": 7},
                               workers=(WorkerFault(local_rank=1, quiet_s=2.0, error=error),))
        self.run.report(report)
        self.run.report(report)

    def node(self):
        self.run.track_progress(lambda: 52)
        self.run.report(FailureReport(summary="GPU 3 fell off the bus", retryable=False, fields={"gpu": 3, "xid": 79}))

    def restart(self):
        self.run.ask_restart("new data")

    def drain(self):
        self.run.ask_drain("the switch is to be replaced", grace_s=1)

    def asked(self):
        self.run.offer("hello", lambda params: Answer(content="hello " + params["who"]))
        def known():
            worker = self.run.workers()[0]
            state = json.loads(self.run.offers()["state"]({}).content)["state"]
            self.run.notice(f"{state}, {self.run.offers()['hello']({'who': 'you'}).content}")
            self.run.notice(f"meets {self.run.store_place()!r}")
            self.run.notice(f"files {os.path.dirname(worker.stdout) == os.path.dirname(worker.error_file)}")
            self.run.notice(f"in {self.run.run_dir()}")
            self.run.notice(f"{self.settings.shutdown_timeout_s} {self.settings.restarts_nodes}")
            self.run.ask_restart("new data", by_user=True)
        self.run.call_later(0.0, known)

    def kept(self):
        assert self.run.record_dir() == self.run.record_dir()
        with open(self.run.record_dir() + "/options.json", "w") as file:
            json.dump([(one.name, one.value, one.origin) for one in self.run.options()], file)
        self.run.ask_restart("new data")

    def ask(self):
        self.run.ask_nodes("act: state")

    def on_nodes_asked(self, event):
        self.run.answer_nodes(event.serial, b"well")

    def on_answers_gathered(self, event):
        self.run.conclude_nodes(event.serial, b"; ".join(event.answers.values()))

    def on_concluded(self, event):
        self.run.notice(f"{event.topic}: {event.data.decode()}")
        self.run.ask_drain("seen")

    def on_agent_stopped(self, event):
        self.run.notice("goodbye")
"""
SCRIPT = """
import os, time
def wait_here():
    open(os.environ["READY"] + os.environ["RANK"], "w").close()
    time.sleep(60)
if os.environ["ELASTIC_ROUND"] == "0":
    wait_here()
"""


@pytest.fixture
def run(elastic, script, tmp_path, monkeypatch):
    info = tmp_path / "acme_act-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: acme-act\nVersion: 1\n")
    (info / "entry_points.txt").write_text("[elastic_core.options]\nact = acme_act:ACT\n")
    (tmp_path / "acme_act.py").write_text(HOOK)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setenv("READY", str(tmp_path / "ready"))

    def run(act, *options, chosen=True):
        place = ("--run-dir", tmp_path / "run") if chosen else ()
        return elastic("--nproc-per-node", "2", *place, "--act", act, *options, script(SCRIPT))

    return run


def test_a_worker_that_a_hook_reports_is_the_first_cause(run, tmp_path):
    agent = run("worker", "--max-restarts", "1")
    assert agent.wait(40) == 0, agent.err
    assert "elastic: act: a call of its own" in agent.err
    assert "act: never" not in agent.err
    assert "hook 'act' (acme-act 1): a call that it had set raised ZeroDivisionError: division by zero" in agent.err
    incident = json.loads((tmp_path / "run" / "incident.json").read_text())
    first = incident["first"]
    assert (incident["failure_class"], incident["summary"]) == ("hang", "rank 1 is stale")
    assert (first["exit"]["global_rank"], first["error"]["type"], incident["restart_count"]) == (1, "Stale", 0)
    assert (incident["reported_by"], incident["fields"]) == ("act", {"age": 7})
    assert incident["hooks"] == {"act": {"temperature": 41.5, "gpu": "ok"}}
    assert incident["phases"]["detect_s"] == 2.0


def test_a_node_that_a_hook_reports_fails_the_run(run, tmp_path):
    agent = run("node")
    assert agent.wait(40) == 1, agent.err
    incident = json.loads((tmp_path / "run" / "incident.json").read_text())
    assert (incident["failure_class"], incident["summary"]) == ("health check", "GPU 3 fell off the bus")
    assert (incident["first"], incident["source"], incident["hooks"]["act"]["gpu"]) == (None, "launcher", "ok")
    assert (incident["reported_by"], incident["fields"]) == ("act", {"gpu": 3, "xid": 79})
    assert incident["progress"] == 52
    assert "source=hook act  round 0" in agent.err
    assert "health check: GPU 3 fell off the bus\n  gpu: 3\n  xid: 79\n" in agent.err


def test_a_restart_that_a_hook_asks_for_costs_nothing(run):
    agent = run("restart")
    assert agent.wait(40) == 0, agent.err
    assert "round 0 is over: hook 'act' requests a restart (new data)" in agent.err


def test_a_drain_that_a_hook_asks_for(run):
    agent = run("drain")
    assert agent.wait(40) == 143, agent.err
    assert "elastic: hook 'act' asks this node to leave: the switch is to be replaced" in agent.err
    assert "elastic: act: goodbye" in agent.err  # the agent's loop has ended by then


def test_a_question_that_reaches_no_other_node_is_answered_and_concluded_here(run):
    agent = run("ask")
    assert agent.wait(40) == 143, agent.err
    assert "elastic: act: act: state: well" in agent.err


def test_what_somebody_asks_a_hook_for(run, tmp_path):
    agent = run("asked", "--redirects", "3", "--shutdown-timeout", "7")
    assert agent.wait(40) == 0, agent.err
    assert "elastic: act: running, hello you" in agent.err
    assert "elastic: act: meets ''" in agent.err
    assert "elastic: act: files True" in agent.err
    assert f"elastic: act: in {tmp_path / 'run'}\n" in agent.err
    assert "elastic: act: 7.0 False" in agent.err
    assert "round 0 is over: a restart was requested on node" in agent.err
    assert "(new data)" in agent.err


def test_files_in_the_record_folder_stay_and_the_options_are_those_of_the_run(run, monkeypatch):
    agent = run("kept", "--max-restarts", "4", "--log-line-prefix-template", "http://me:hunter2@host/", chosen=False)
    assert agent.wait(40) == 0, agent.err
    for variable in ("XDG_RUNTIME_DIR", "TMPDIR"):
        monkeypatch.setenv(variable, str(agent.runtime))
    (record,) = run_records()
    assert not Path(record.run_dir).exists()
    options = {
        name: (value, origin) for name, value, origin in json.loads((Path(record.files) / "options.json").read_text())
    }
    assert options["max_restarts"] == ("4", "flag --max-restarts")
    assert options["act"] == ("kept", "flag --act")
    assert options["log_line_prefix_template"][0] == "http://me:***@host/"
    assert options["monitor_interval"][1] == "default"


def test_the_status_has_what_a_hook_publishes(run, tmp_path):
    run("nothing", "--no-control-plane")
    status = tmp_path / "run" / "status.json"
    wait_for(lambda: status.exists() and json.loads(status.read_text())["hooks"])
    assert json.loads(status.read_text())["hooks"] == {"act": {"temperature": 41.5, "gpu": "ok"}}
