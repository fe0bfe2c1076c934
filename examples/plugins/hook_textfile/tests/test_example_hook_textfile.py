"""The kit, and tests of this hook's own rules."""

import re

import pytest

from elastic_core.api import (
    AgentStarted,
    AgentStopped,
    ConfigError,
    DecisionTaken,
    FailureSeen,
    HookSettings,
    RoundJoined,
    WorkerEnded,
    WorkersStarted,
)
from elastic_example_hook_textfile import METRICS, Textfile
from elastic_plugin_kit import AgentHookConformance, sample_moments, sample_round

METHODS = {
    AgentStarted: "on_agent_started",
    RoundJoined: "on_round_joined",
    WorkersStarted: "on_workers_started",
    WorkerEnded: "on_worker_exited",
    FailureSeen: "on_failure",
    DecisionTaken: "on_decision",
    AgentStopped: "on_agent_stopped",
}
SAMPLE = re.compile(r'[a-z_]+\{run_id="(?:[^"\\\n]|\\["\\n])*",node="[^"]*"(?:,class="[^"]*")?\} -?\d+')


def make(run_dir):
    return Textfile(HookSettings(name="textfile", run_dir=str(run_dir)))


def call(hook, *moments):
    for moment in moments:
        if type(moment) in METHODS:
            getattr(hook, METHODS[type(moment)])(moment)


def started(run_id="r"):
    return AgentStarted(run_id=run_id, node_id="n0", run_dir="", pid=7)


def samples(folder):
    (file,) = folder.iterdir()
    return [line for line in file.read_text().splitlines() if not line.startswith("#")]


class TestTextfile(AgentHookConformance):
    @pytest.fixture
    def make_hook(self):
        return make


def test_a_run_with_failures_and_restarts_is_what_prometheus_can_read(tmp_path):
    call(make(tmp_path), *sample_moments(run_dir=str(tmp_path)))
    lines = samples(tmp_path)
    assert all(SAMPLE.fullmatch(line) for line in lines), lines
    assert len({line.rpartition(" ")[0] for line in lines}) == len(lines)
    assert {line.partition("{")[0] for line in lines} == set(METRICS)
    assert 'elastic_failures_total{run_id="sample",node="n0",class="node lost"} 1' in lines
    assert 'elastic_restarts_total{run_id="sample",node="n0"} 1' in lines


def test_the_end_is_written(tmp_path):
    call(
        make(tmp_path),
        started(),
        WorkersStarted(round=sample_round(), pids=(8, 9)),
        AgentStopped(exit_code=7, reason="failed"),
    )
    labels = 'run_id="r",node="n0"'
    assert samples(tmp_path) == [
        f"elastic_agent_up{{{labels}}} 0",
        f"elastic_exit_code{{{labels}}} 7",
        f"elastic_workers{{{labels}}} 2",
    ]


@pytest.mark.parametrize("run_id", ["digits", 'a "b"\n\\', "../../etc/passwd", "é / ü"])
def test_any_run_id_is_a_label_and_no_path(tmp_path, run_id):
    call(make(tmp_path), started(run_id))
    (file,) = tmp_path.iterdir()
    assert file.suffix == ".prom"
    assert all(SAMPLE.fullmatch(line) for line in samples(tmp_path)), samples(tmp_path)


def test_a_folder_may_be_named(tmp_path, monkeypatch):
    (tmp_path / "collected").mkdir()
    monkeypatch.setenv("TEXTFILE_DIR", str(tmp_path / "collected"))
    call(make(tmp_path / "run"), started())
    assert [path.name for path in (tmp_path / "collected").iterdir()] == ["elastic_r_n0.prom"]


def test_a_folder_that_is_not_there_is_named_before_the_run_begins(tmp_path, monkeypatch):
    monkeypatch.setenv("TEXTFILE_DIR", str(tmp_path / "gone"))
    with pytest.raises(ConfigError, match=r"TEXTFILE_DIR='.*gone' is no directory"):
        make(tmp_path)


def test_nothing_is_written_before_the_agent_has_started(tmp_path):
    call(make(tmp_path), AgentStopped(exit_code=1, reason="never began"))
    assert not list(tmp_path.iterdir())
