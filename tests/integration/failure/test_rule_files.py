"""Runs under a rule file: each worker's end is answered by the rule that is meant for it."""

import json
import subprocess
import sys

import pytest

from patience import patience

FAILS_IN_MANY_WAYS = """
import os, signal, sys
match os.environ["TORCHELASTIC_RESTART_COUNT"]:
    case "0":
        sys.exit(3)
    case "1":
        os.kill(os.getpid(), signal.SIGKILL)
    case "2":
        os.write(2, b"node:1 NCCL WARN async fatal event\\n")
        sys.exit(5)
    case "3" | "4" as step:
        raise ValueError("step " + step)
raise FloatingPointError("loss is nan at step 19")
"""
RULES = """
rules:
  - {name: nan, match: {exception: FloatingPointError, message: "loss is nan"}, action: fail, reason: lower the rate}
  - {name: crash, match: {exit_code: [3, 64-78]}, action: restart, max: 1}
  - {name: killed, match: {signal: KILL}, action: restart, max: 1, backoff: 100ms}
  - {name: network, match: {log: "NCCL WARN .*fatal"}, action: wait, delay: 200ms, max: 1}
  - {name: again, match: {repeats: 2}, action: restart, max: 1}
  - {name: first, match: {class: user exception, uptime: {under: 1m}}, action: restart, max: 1}
"""


@pytest.fixture
def rules(tmp_path):
    def write(text):
        path = tmp_path / "rules.yaml"
        path.write_text(text)
        return path

    return write


def test_each_end_is_answered_by_its_rule_and_can_be_simulated(elastic, script, rules):
    path = rules(RULES)
    agent = elastic("--policy", path, "--redirects", "2", script(FAILS_IN_MANY_WAYS))
    assert agent.wait(60) == 1, agent.err
    attempts = sorted(agent.runtime.glob("elastic-*/*/attempt_*/incident.json"))
    incidents = [json.loads(attempt.read_text()) for attempt in attempts]
    decided = [(i["decision"]["rule"], i["decision"]["type"], i["decision"].get("delay_s", 0.0)) for i in incidents]
    assert decided == [
        ("crash", "restart", 0.0),
        ("killed", "restart", 0.1),
        ("network", "restart", 0.2),
        ("first", "restart", 0.0),
        ("again", "restart", 0.0),
        ("nan", "stop", 0.0),
    ]
    assert "Decision: stop (lower the rate; nan)" in agent.err
    assert "restart 3 in 0.2 s" in agent.err
    trace = path.with_name("failures.jsonl")
    trace.write_text("\n".join(json.dumps(incident) for incident in incidents))
    command = [sys.executable, "-m", "elastic_core", "policy", "simulate", path, "--trace", trace, "--json"]
    simulated = json.loads(subprocess.run(command, capture_output=True, check=True, timeout=patience(60)).stdout)
    assert [(s["decision"]["rule"], s["decision"]["type"]) for s in simulated] == [(r, k) for r, k, _ in decided]


def test_a_worker_that_is_ignored_stays_down_and_the_others_finish(elastic, script, rules):
    path = rules("rules: [{name: spare, match: {rank: 1}, action: ignore}]")
    text = """
import os, sys, time
if os.environ["RANK"] == "1":
    sys.exit(9)
while "go on" not in open("agent.err").read():
    time.sleep(0.02)
os.write(1, b'{"finished": 0}\\n')
"""
    agent = elastic("--policy", path, "--nproc-per-node", 2, script(text))
    assert agent.wait(60) == 0, agent.err
    assert agent.lines() == [{"finished": 0}]
    assert "rank 1 failed: exit code 9; the others go on without it" in agent.err


def test_the_scripts_own_word_ends_the_run_as_done(elastic, script, rules):
    path = rules("rules: [{name: converged, match: {exit_code: 75}, action: done, reason: good enough}]")
    agent = elastic("--policy", path, "--nproc-per-node", 2, script("import sys\nsys.exit(75)\n"))
    assert agent.wait(60) == 0, agent.err
    assert "ending the run as done: good enough" in agent.err


def test_what_no_rule_speaks_of_is_the_built_in_policys(elastic, script, rules):
    path = rules("rules: [{match: {exit_code: 75}, action: done}]")
    agent = elastic("--policy", "rules", "--policy-conf", f"file={path}", "--max-restarts", 1, script(
        "import os, sys\nos.write(1, b'{\"start\": %s}\\n' % os.environ['TORCHELASTIC_RESTART_COUNT'].encode())\n"
        "sys.exit(7)\n"
    ))  # fmt: skip
    assert agent.wait(60) == 7, agent.err
    assert agent.lines() == [{"start": 0}, {"start": 1}]


def test_a_file_with_problems_is_told_before_any_worker_starts(elastic, script, rules):
    path = rules("rules:\n  - action: retsart\n    max: many\n  - match: {clas: hang}\n    action: fail\n")
    agent = elastic("--policy", path, script("import os\nos.write(1, b'{\"started\": 1}\\n')\n"))
    assert agent.wait(20) == 2
    first, *problems = agent.err.splitlines()
    assert first == f"elastic: error: rule file {str(path)!r} has 3 problems"
    assert problems == [
        f"{path}:2:13: action: 'retsart'; expected one of restart, wait, ignore, fail or done. Try: restart",
        f"{path}:3:10: max: 'many'; expected a whole number from 0 to 50, or 'unlimited'. Try: 3",
        f"{path}:4:13: 'match' has no key 'clas'. Try: class",
    ]
    assert agent.out == ""
    assert list(agent.runtime.glob("elastic-*/*-*")) == []


def test_the_plugin_is_not_imported_unless_it_is_chosen():
    code = (
        "import sys\n"
        "from elastic_core.plugins.registry import PluginRegistry\n"
        "from elastic_core.types import PolicySettings\n"
        "PluginRegistry().make_policy('intensity', PolicySettings(name='intensity'), {})\n"
        "import elastic_core.cli.group, elastic_core.launcher.job\n"
        "print(sorted({'yaml', 're2', 'elastic_policy_rules'} & set(sys.modules)))\n"
        "import elastic_policy_rules.policy, elastic_policy_rules.trial.command\n"
        "print(sorted({'yaml', 're2'} & set(sys.modules)))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=patience(60)
    )
    assert done.stdout.splitlines() == ["[]", "[]"]


CRASHES_AT_STEPS = """
import os
from elastic_core.worker import heartbeat
at = [int(step) for step in os.environ["CRASH_AT"].split(",")]
crash = at[min(int(os.environ["TORCHELASTIC_RESTART_COUNT"]), len(at) - 1)]
for step in range(crash + 1):
    heartbeat(step=step)
raise ValueError("loss went up")
"""
SAME_PLACE = """
rules:
  - {name: stuck, match: {repeats: 2}, action: fail, reason: it gets no further}
  - {name: again, action: restart, max: 3}
"""


@pytest.mark.parametrize(
    ("crash_at", "rules_used"),
    [("5,5", ["again", "stuck"]), ("5,4", ["again", "stuck"]), ("5,6,7,7", ["again", "again", "again", "stuck"])],
    ids=["at the same step", "before that step", "later each time"],
)
def test_crash_that_repeats_ends_the_run_only_if_no_step_was_gained(elastic, script, rules, crash_at, rules_used):
    agent = elastic("--policy", rules(SAME_PLACE), script(CRASHES_AT_STEPS), env={"CRASH_AT": crash_at})
    assert agent.wait(60) == 1, agent.err
    attempts = sorted(agent.runtime.glob("elastic-*/*/attempt_*/incident.json"))
    incidents = [json.loads(attempt.read_text()) for attempt in attempts]
    assert [each["decision"]["rule"] for each in incidents] == rules_used
    assert "Decision: stop (it gets no further; stuck)" in agent.err
