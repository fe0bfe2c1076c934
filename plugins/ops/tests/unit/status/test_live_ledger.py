"""The current ledger that the screen requests from agents: what it replaces, and when no request is sent."""

import pytest
from msgspec.structs import replace

from elastic_core.api import encode_json
from elastic_core.api.tools import AgentIdentity
from elastic_ops.control_plane.client import Reply
from elastic_ops.status import command, live_ledger
from elastic_ops.status.document import STATUS_FILE, AgentStatus
from elastic_ops.status.live_ledger import LEAST_REST, LiveLedgers
from elastic_ops.status.view import AgentView, RunView, VerdictView
from elastic_plugin_kit import ManualClock

PUBLISHED = {"state": "starting", "present_s": 10.0, "starting_s": 10.0}
NOW = {"state": "productive", "present_s": 60.0, "starting_s": 12.0, "productive_s": 48.0, "step": 7}


class Agent:
    """A control plane that replies with `answer` after `took_s`, and keeps the requests."""

    def __init__(self, clock):
        self.clock, self.asked, self.answer, self.took_s = clock, [], encode_json(NOW | {"lines": "{}\n"}), 0.01

    def __call__(self, path, name, params, *, timeout_s):
        self.asked.append((path, name, dict(params)))
        self.clock.advance(self.took_s)
        if isinstance(self.answer, Exception):
            raise self.answer
        return Reply(status=200, content_type="application/json", content=self.answer)


@pytest.fixture
def clock():
    return ManualClock()


@pytest.fixture
def agent(clock, monkeypatch):
    made = Agent(clock)
    monkeypatch.setattr(live_ledger, "call", made)
    return made


@pytest.fixture
def run(tmp_path):
    status = AgentStatus(
        run_id="x", node_id="n", agent=AgentIdentity.own(host="n", started_ns=1), backend="local", state="running",
        control="/run/agent.sock",
    )  # fmt: skip
    (tmp_path / STATUS_FILE).write_bytes(encode_json(status))
    return RunView(
        run_id="x", source="directory", state="running", run_dir=str(tmp_path), hooks={"ledger": PUBLISHED, "a": {}},
        agent=AgentView(pid=77, host="n", alive=True, started=""),
    )  # fmt: skip


def test_a_live_agent_has_its_current_ledger(agent, run, clock):
    (shown,) = LiveLedgers(clock=clock).of([run])
    assert shown.hooks == {"ledger": NOW, "a": {}}
    assert agent.asked == [("/run/agent.sock", "ledger", {"lines": "no"})]


def test_no_request_is_sent_without_the_hook_or_to_an_agent_that_has_ended(agent, run, clock):
    runs = [
        replace(run, hooks={}),
        replace(run, agent=replace(run.agent, alive=False)),
        replace(run, agent=replace(run.agent, alive=None)),
        replace(run, verdict=VerdictView(outcome="done", exit_code=0)),
        replace(run, run_dir="/nope"),
    ]
    assert list(LiveLedgers(clock=clock).of(runs)) == runs
    assert agent.asked == []


def test_a_request_that_takes_long_is_rarely_repeated(agent, run, clock):
    ledgers = LiveLedgers(clock=clock)
    agent.took_s = 0.5
    ledgers.of([run])
    clock.advance(LEAST_REST * 0.5 - 1)
    (shown,) = ledgers.of([run])
    assert shown.hooks["ledger"] == NOW
    assert len(agent.asked) == 1
    clock.advance(1)
    ledgers.of([run])
    assert len(agent.asked) == 2


def test_what_was_published_later_is_newer(agent, run, clock):
    ledgers = LiveLedgers(clock=clock)
    agent.took_s = 5
    ledgers.of([run])
    later = replace(run, hooks={"ledger": PUBLISHED | {"present_s": 61.0}})
    assert ledgers.of([later]) == (later,)


@pytest.mark.parametrize("answer", [OSError("gone"), TimeoutError(), b"[1]", b"no JSON", b"{}", b'{"present_s": "x"}'])
def test_an_agent_that_does_not_answer_keeps_its_published_fields(agent, run, clock, answer):
    agent.answer = answer
    assert LiveLedgers(clock=clock).of([run]) == (run,)


def test_the_text_of_a_run_has_the_current_ledger_of_its_agent(agent, run, monkeypatch, capsys):
    now = replace(run, hooks={"ledger": NOW | {"goodput": 0.8}})
    agent.answer = encode_json(now.hooks["ledger"])
    monkeypatch.setattr(command.NamedSource, "__init__", lambda source, target: None)
    monkeypatch.setattr(command.NamedSource, "look", lambda source: (run,))
    assert command.command.main(["x"], standalone_mode=False) == 0
    assert "time: 80 % productive; lost: 12 s starting; step 7" in capsys.readouterr().out
    assert len(agent.asked) == 1
