"""`attempt()`: what variables say, and what the hook leaves for the workers of the next round."""

import os
from dataclasses import FrozenInstanceError

import pytest

from elastic_core.api import (
    ConfigError,
    DecisionTaken,
    HookSettings,
    Ignore,
    MembershipChanged,
    Restart,
    WorkersStarting,
    WorkersStopping,
)
from elastic_core.api.rendezvous import RoundEnded
from elastic_plugin_kit import AgentHookConformance, FakeRun, sample_failure, sample_round
from elastic_train import Attempt, attempt
from elastic_train.hook import Training
from elastic_train.last_round import FILE_VARIABLE

UNKNOWN = {"last_world_size": None, "last_end": None, "last_reason": None}


@pytest.fixture(autouse=True)
def bare(monkeypatch):
    """The environment of a process that nobody has launched."""
    for name in list(os.environ):
        if name.startswith(("ELASTIC_", "TORCHELASTIC_")) or name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "GROUP_RANK"):
            monkeypatch.delenv(name)


def set_all(monkeypatch, **variables):
    for name, value in variables.items():
        monkeypatch.setenv(name, str(value))


def test_bare_python_is_a_process_alone():
    assert attempt() == Attempt(
        run_id=None,
        round_index=None,
        restart_count=None,
        max_restarts=None,
        node_rank=None,
        rank=0,
        local_rank=0,
        world_size=1,
        **UNKNOWN,
    )
    with pytest.raises(FrozenInstanceError):
        attempt().rank = 1


def test_torchruns_variables(monkeypatch):
    set_all(monkeypatch, RANK=5, LOCAL_RANK=1, WORLD_SIZE=8, GROUP_RANK=2, TORCHELASTIC_RUN_ID="none")
    set_all(monkeypatch, TORCHELASTIC_RESTART_COUNT=2, TORCHELASTIC_MAX_RESTARTS=3)
    assert attempt() == Attempt(
        run_id="none",
        round_index=None,
        restart_count=2,
        max_restarts=3,
        node_rank=2,
        rank=5,
        local_rank=1,
        world_size=8,
        **UNKNOWN,
    )


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        ({"RANK": "1"}, "LOCAL_RANK and WORLD_SIZE missing in the environment, where RANK is set"),
        ({"RANK": "0", "WORLD_SIZE": "2"}, "LOCAL_RANK missing in the environment, where RANK, WORLD_SIZE is set"),
        (
            {"RANK": "x", "LOCAL_RANK": "0", "WORLD_SIZE": "2"},
            "RANK='x' in the environment; expected a whole number",
        ),
        (
            {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "0"},
            "WORLD_SIZE='0' in the environment; expected .* 1 at least",
        ),
        ({"RANK": "2", "LOCAL_RANK": "0", "WORLD_SIZE": "2"}, "RANK=2 in .*; expected less than WORLD_SIZE=2"),
        ({"TORCHELASTIC_RESTART_COUNT": "-1"}, "TORCHELASTIC_RESTART_COUNT='-1' in the environment"),
    ],
)
def test_what_is_malformed_is_one_line(monkeypatch, variables, message):
    set_all(monkeypatch, **variables)
    with pytest.raises(ConfigError, match=message) as caught:
        attempt()
    assert "\n" not in str(caught.value)
    assert "Try: elastic run" in str(caught.value)


class Agent:
    """A hook between two rounds, and the workers that come after them."""

    def __init__(self, monkeypatch, folder):
        self.hook = Training(HookSettings(name="training"))
        self.hook.run = FakeRun()
        self.hook.run.directory = str(folder)
        self.monkeypatch = monkeypatch

    def start(self, index, world_size=2, **more):
        self.monkeypatch.setenv("ELASTIC_ROUND", str(index))
        event = WorkersStarting(round=sample_round(index=index, world_size=world_size), restart_count=0, **more)
        answer = self.hook.on_workers_starting(event)
        if answer is not None:
            self.monkeypatch.setenv(FILE_VARIABLE, answer.environment[FILE_VARIABLE])
        found = attempt()
        return found.last_world_size, found.last_end, found.last_reason


@pytest.fixture
def agent(monkeypatch, tmp_path):
    return Agent(monkeypatch, tmp_path)


def test_nothing_is_known_in_the_first_round(agent, tmp_path):
    assert agent.start(0) == (None, None, None)
    assert list(tmp_path.iterdir()) == []


def test_a_round_that_failed(agent):
    agent.start(0, world_size=4)
    agent.hook.on_decision(DecisionTaken(failure=sample_failure(), decision=Ignore(), policy="p"))
    agent.hook.on_decision(DecisionTaken(failure=sample_failure(), decision=Restart(), policy="p"))
    change = RoundEnded(reason="n1 went while the workers were stopped")
    agent.hook.on_membership_changed(MembershipChanged(round_index=0, change=change))
    assert agent.start(1) == (4, "failure", "ValueError: boom")


def test_a_round_whose_nodes_changed_then_one_that_was_restarted(agent):
    agent.start(0, world_size=4)
    change = RoundEnded(reason="node n1 was lost", lost=("n1",))
    agent.hook.on_membership_changed(MembershipChanged(round_index=0, change=change))
    agent.hook.on_workers_stopping(WorkersStopping(round_index=0, reason="nodes came or went", grace_s=30))
    assert agent.start(1, world_size=3) == (4, "membership", "node n1 was lost")
    agent.hook.on_workers_stopping(WorkersStopping(round_index=1, reason="the run decided to restart", grace_s=30))
    assert agent.start(2, world_size=3) == (3, "restart", "the run decided to restart")


def test_a_reason_that_is_no_valid_unicode_is_shown(agent):
    agent.start(0)
    agent.hook.on_workers_stopping(WorkersStopping(round_index=0, reason="no file 'caf\udce9'", grace_s=30))
    assert agent.start(1)[1:] == ("restart", "no file 'caf\\udce9'")


def test_nothing_is_known_of_a_round_elsewhere(agent):
    agent.start(0)
    agent.start(1)
    assert agent.start(3) == (None, None, None)
    assert agent.start(4)[0] == 2


def test_a_start_that_comes_to_nothing_is_no_round(agent):
    agent.start(0, world_size=4)
    agent.start(0, world_size=9, asked_again=True)
    assert agent.start(1)[0] == 4


def test_a_folder_that_has_gone_costs_the_knowledge_alone(agent, tmp_path):
    agent.start(0)
    tmp_path.rmdir()
    assert agent.start(1) == (None, None, None)


@pytest.mark.parametrize("content", ["", "[1]", '{"format": 2, "before": 1}', '{"format": 1, "before": 1}'])
def test_a_file_of_anybody_is_no_error(agent, tmp_path, content):
    agent.start(0)
    agent.start(1)
    (tmp_path / "last_round.json").write_text(content)
    assert attempt().last_end is None


class TestTraining(AgentHookConformance):
    """The kit's checks."""

    @pytest.fixture
    def make_hook(self):
        return lambda run_dir: Training(HookSettings(name="training", run_dir=run_dir))
