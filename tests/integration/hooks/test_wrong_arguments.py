"""A hook that hands over what nobody can take, in a real run: the error is the hook's, and the run goes on."""

import json

import pytest

from elastic_core.launcher.hook_actions import MOST_RESTARTS
from support import wait_for

HOOK = """
import math
from elastic_core.api import AgentHook, FailureReport, Power, WorkerFault

CALLS = [
%s
]

class Wrong(AgentHook):
    api_version = 1
    powers = frozenset({Power.RUN})

    def on_workers_started(self, event):
        self.run.publish({"before": 1})
        for call in CALLS:
            self.run.call_later(0, lambda call=call: call(self.run))
        self.run.call_later(0.2, lambda: self.run.publish({"after": 2}))
"""
CALLS = {
    "run.report(None)": "report: report: got None; expected a FailureReport",
    "run.report('gpu is sick')": "report: report: got 'gpu is sick'; expected a FailureReport",
    "run.report(FailureReport(summary='x', fields={'f': object()}))": "report: report: got fields that JSON can't hold",
    "run.report(FailureReport(summary=7, failure_class='gpu', workers=[0]))": (
        "report: report: Expected `str`, got `int` - at `$.summary`"
    ),
    "run.ask_drain('', grace_s='x')": "ask_drain: grace_s: got 'x'; expected a number of seconds from 0 up, or None",
    "run.ask_drain('', grace_s=math.nan)": "ask_drain: grace_s: got nan; expected a number of seconds from 0 up",
    "run.track_progress(5)": "track_progress: furthest_step: got 5; expected a function",
    "run.answer_nodes(1, 'x')": "answer_nodes: data: got 'x'; expected bytes",
    "run.publish({'a': object()})": "publish: fields: got values that JSON can't hold",
    "run.agree('wrong: step', '5')": "agree: value: got '5'; expected a whole number of 64 bits",
    "run.call_later('5', print)": "call_later: delay_s: got '5'; expected a number of seconds",
}


@pytest.fixture
def agent(elastic, script, tmp_path, monkeypatch):
    info = tmp_path / "acme_wrong-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: acme-wrong\nVersion: 1\n")
    (info / "entry_points.txt").write_text("[elastic_core.hooks]\nwrong = acme_wrong:Wrong\n")
    (tmp_path / "acme_wrong.py").write_text(HOOK % "\n".join(f"    lambda run: {call}," for call in CALLS))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setenv("GO", str(tmp_path / "go"))
    wait = "import os, time\nwhile not os.path.exists(os.environ['GO']): time.sleep(0.02)"
    return elastic("--run-dir", tmp_path / "run", "--no-control-plane", script(wait))


def test_a_wrong_argument_is_a_line_about_the_hook_and_nothing_else(agent, tmp_path):
    status = tmp_path / "run" / "status.json"
    wait_for(lambda: status.exists() and "after" in json.loads(status.read_text())["hooks"].get("wrong", ()))
    (tmp_path / "go").touch()
    assert agent.wait(30) == 0, agent.err
    for fault in CALLS.values():
        lines = [line for line in agent.err.splitlines() if fault in line]
        assert len(lines) == 1, fault
        assert "hook 'wrong' (acme-wrong 1): a call that it had set raised " in lines[0]
    assert "defect of elastic-core" not in agent.err
    assert "Traceback" not in agent.err


ENDS = """
import os
from elastic_core.api import AgentHook

class Ends(AgentHook):
    api_version = 1

    def on_workers_started(self, event):
        os._exit(0)
"""


def test_a_hook_that_ends_the_agent_is_no_silent_end(elastic, script, tmp_path, monkeypatch):
    (tmp_path / "acme_ends.py").write_text(ENDS)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    agent = elastic("-p", "acme_ends:Ends", script("import time\ntime.sleep(600)"))
    agent.wait(30)
    line = (
        f"elastic: agent {agent.pid} ended without a verdict, whatever its exit code: it was killed, or called os._exit"
    )
    wait_for(lambda: f"{line}; its guard has ended its workers\n" in agent.err)


AGAIN = """
from elastic_core.api import AgentHook, Power

class Again(AgentHook):
    api_version = 1
    powers = frozenset({Power.RUN})

    def on_workers_started(self, event):
        self.run.ask_restart("again")
        self.run.ask_restart("and again")
"""


def test_a_hook_that_wants_a_restart_in_each_round_gets_so_many(elastic, script, tmp_path, monkeypatch):
    (tmp_path / "acme_again.py").write_text(AGAIN)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    wait = (
        f"import os, time\nwhile os.environ['ELASTIC_ROUND'] != '{MOST_RESTARTS}': time.sleep(0.02)\n"
        "while 'ignored, it has ended' not in open('agent.err').read(): time.sleep(0.02)"
    )
    agent = elastic("-p", "acme_again:Again", "--restart-backoff", "0", script(wait))
    assert agent.wait(60) == 0, agent.err
    left = [line for line in agent.err.splitlines() if "ignored, it has ended" in line]
    why = f"ignored, it has ended {MOST_RESTARTS} rounds within 60 minutes"
    assert left == [f"elastic: hook 'acme_again:Again' requests a restart (again): {why}"]
    assert f"round {MOST_RESTARTS - 1} is over: hook 'acme_again:Again' requests a restart (again)" in agent.err
