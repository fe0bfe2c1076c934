"""`elastic policy`: for rule files and for anybody's policy; every problem at once, each decision with its reason."""

import io
import json
import sys

import pytest

from elastic_core.cli.main import main
from elastic_core.encoding import encode_json
from elastic_core.errors import ConfigError
from elastic_core.failure.handler import FailureHandler
from elastic_core.plugins import registry
from elastic_core.plugins.registry import PluginRegistry
from elastic_core.types import Ignore, PolicySettings, Restart, Stop
from elastic_plugin_kit.samples import sample_failure


class Patient(FailureHandler):
    """A third party's."""

    api_version = 1

    def decide(self, failure, history):
        match len(history):
            case 0:
                return Restart(delay_s=2.5, exclude_nodes=("n0",), rule="first")
            case 1:
                return Ignore(rule="second")
        return Stop(reason="enough", outcome="done")

    def explain(self, failure, history):
        return [f"{len(history)} before"]


class Broken(Patient):
    def decide(self, failure, history):
        if self.settings.max_restarts:
            return
        raise KeyError("no\nsuch")


@pytest.fixture
def policies(monkeypatch):
    """Let these classes be installed; return what they were asked for."""
    asked = []

    def make(self, name, settings, conf):
        asked.append((name, settings, dict(conf)))
        if name == "rules":
            error = ConfigError("rule file 'r.yaml' has 2 problems")
            error.add_note("r.yaml:1:2: first.\n Try: a")
            error.add_note("r.yaml:3:4: second")
            raise error
        return {"patient": Patient, "broken": Broken}[name](settings)

    monkeypatch.setattr(registry.PluginRegistry, "make_policy", make)
    return asked


@pytest.fixture
def trace(tmp_path):
    path = tmp_path / "failures.jsonl"
    path.write_bytes(b"\n".join(encode_json(sample_failure(at_s=10.0 * n, log_tail="x")) for n in range(4)))
    return str(path)


def test_simulate_tells_each_decision_and_why(policies, trace, capsys):
    assert main(["policy", "simulate", "--policy", "patient", "--trace", trace]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "1. 0 s, rank 1 on n0 up 10 s: ValueError: boom",
        "   -> restart in 2.5 s without n0 (first)",
        "     0 before",
        "2. 10 s, rank 1 on n0 up 10 s: ValueError: boom",
        "   -> ignore: the others run on (second)",
        "     1 before",
        "3. 20 s, rank 1 on n0 up 10 s: ValueError: boom",
        "   -> stop as done: enough",
        "     2 before",
        "the run ends as done at failure 3 of 4; 1 more would not have come",
    ]


def test_simulate_writes_json(policies, trace, capsys):
    assert main(["policy", "simulate", "--policy", "patient", "--trace", trace, "--json"]) == 0
    first, second, third = json.loads(capsys.readouterr().out)
    assert (first["number"], first["why"]) == (1, ["0 before"])
    assert first["failure"]["exception_type"] == "ValueError"
    assert first["decision"]["type"] == "restart"
    assert first["decision"]["exclude_nodes"] == ["n0"]
    assert (second["decision"]["type"], third["decision"]["outcome"]) == ("ignore", "done")


def test_simulate_takes_what_a_run_would_be_told(policies, trace):
    words = ["--policy", "patient", "--policy-conf", "a=1", "--policy-conf", "b=2", "--max-restarts", "4"]
    words += ["--restart-window", "60", "--restart-backoff", "2", "--fatal-exit-codes", "3-4", "--nnodes", "2:5"]
    assert main(["policy", "simulate", *words, "--trace", trace]) == 0
    assert policies == [
        (
            "patient",
            PolicySettings(
                name="patient",
                max_restarts=4,
                restart_window_s=60.0,
                restart_backoff_s=2.0,
                fatal_exit_codes=(3, 4),
                min_nodes=2,
                max_nodes=5,
            ),
            {"a": "1", "b": "2"},
        )
    ]


def test_what_a_worker_wrote_does_not_steer_the_terminal(policies, tmp_path, capsys):
    path = tmp_path / "t.jsonl"
    path.write_bytes(encode_json(sample_failure(summary="\x1b[2J\nboo")))
    assert main(["policy", "simulate", "--policy", "patient", "--trace", str(path)]) == 0
    out = capsys.readouterr().out
    assert "?[2J boo" in out
    assert "1 failure, and the run goes on" in out


def test_the_built_in_policy_can_be_simulated_with_failures_from_stdin(trace, capsys, monkeypatch):
    with open(trace, "rb") as file:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(file.read())))
    assert main(["policy", "simulate", "--policy", "intensity", "--max-restarts", "2", "--trace", "-"]) == 0
    told = [line.strip() for line in capsys.readouterr().out.splitlines() if "->" in line]
    assert told == [
        "-> restart now (max-restarts)",
        "-> restart in 0.5 s (max-restarts)",
        "-> stop as failed: restart budget of 2 used up (max-restarts)",
    ]


@pytest.mark.parametrize(
    ("words", "code", "what"),
    [
        (["--policy", "broken"], 3, "policy 'broken' about failure 1: it raised KeyError: 'no\\nsuch'"),
        (["--policy", "broken", "--max-restarts", "1"], 3, "it answered NoneType; expected Restart, Stop or Ignore"),
        (["--policy", "patient", "--trace", "/no/such"], 2, "--trace '/no/such' can't be read: No such file"),
        (["--policy", "patient", "--max-restarts", "x"], 2, "--max-restarts: 'x'; expected a whole number"),
        ([], 2, "no policy is named; expected a rule file or a policy"),
        (
            ["r.yaml", "--policy", "patient"],
            2,
            "rule file 'r.yaml' and --policy 'patient' are two policies; expected one",
        ),
    ],
)
def test_what_goes_wrong_is_one_line(policies, trace, capsys, words, code, what):
    assert main(["policy", "simulate", "--trace", trace, *words]) == code
    (line,) = capsys.readouterr().err.splitlines()
    assert what in line


def test_check_says_ok_or_every_problem_on_its_own_line(policies, capsys):
    assert main(["policy", "check", "--policy", "patient"]) == 0
    assert capsys.readouterr().out == "policy 'patient': ok\n"
    assert main(["policy", "check", "r.yaml"]) == 2
    assert capsys.readouterr().err.splitlines() == [
        "elastic: error: rule file 'r.yaml' has 2 problems",
        "r.yaml:1:2: first. Try: a",
        "r.yaml:3:4: second",
    ]
    assert [conf for _, _, conf in policies] == [{}, {"file": "r.yaml"}]


def test_a_rule_file_may_be_called_anything(policies):
    main(["policy", "check", "rules"])
    assert policies[0][2] == {"file": "./rules"}


def test_a_rule_file_without_its_plugin_says_what_to_install(monkeypatch, capsys):
    monkeypatch.setattr(PluginRegistry, "entries", lambda self: [])
    assert main(["policy", "check", "r.yaml"]) == 3
    assert "Try: pip install . ./plugins/policy_rules" in capsys.readouterr().err


def test_commands_are_known_by_name(capsys):
    assert main(["policy", "chekc"]) == 2
    assert "elastic policy has no command 'chekc'; it has check, simulate" in capsys.readouterr().err
    assert main(["policy", "--help"]) == 0
    assert "simulate" in capsys.readouterr().out
    assert main(["policy"]) == 2
