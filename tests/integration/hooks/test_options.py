"""A run whose hook was chosen by an option: what it changes is what is started."""

import json
import os
import textwrap

import pytest

HOOK = """
import sys
from elastic_core.api import AgentHook, LaunchChange, Launches, Power, RunOption

WRAP = RunOption(name="wrap", hook="acme_wrap:Wrap", help="Put a command in front.")

class Wrap(AgentHook):
    api_version = 1
    powers = frozenset({Power.LAUNCHES})
    options = (WRAP,)

    def on_workers_starting(self, event):
        processor = frozenset({min(__import__("os").sched_getaffinity(0))})
        code = "import os, sys; os.environ['WRAPPED'] = 'yes'; os.execvp(sys.argv[1], sys.argv[1:])"
        name = {"NAME": str(self.settings.options["wrap"])}
        first = LaunchChange(command=(sys.executable, "-c", code), environment=name, processors=processor)
        return Launches(workers={0: first})
"""
SCRIPT = """
import json, os, sys
names = ("RANK", "NAME", "WRAPPED")
told = {name: os.environ.get(name) for name in names} | {"cpus": len(os.sched_getaffinity(0)), "argv": sys.argv[1:]}
os.write(1, (json.dumps(told) + os.linesep).encode())
"""


@pytest.fixture
def site(tmp_path, monkeypatch):
    info = tmp_path / "acme_wrap-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: acme-wrap\nVersion: 1\n")
    (info / "entry_points.txt").write_text("[elastic_core.options]\nwrap = acme_wrap:WRAP\n")
    (tmp_path / "acme_wrap.py").write_text(HOOK)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))


def told_by(agent):
    return sorted((json.loads(line) for line in agent.out.splitlines()), key=lambda told: told["RANK"])


def test_variables_processors_and_a_command_in_front(elastic, script, site):
    agent = elastic("--nproc-per-node", "2", "--wrap", "box", script(SCRIPT), "--x")
    assert agent.wait(30) == 0, agent.err
    first, second = told_by(agent)
    assert first == {"RANK": "0", "NAME": "box", "WRAPPED": "yes", "cpus": 1, "argv": ["--x"]}
    expected = {"RANK": "1", "NAME": None, "WRAPPED": None, "cpus": len(os.sched_getaffinity(0)), "argv": ["--x"]}
    assert second == expected


def test_a_function_has_no_command_in_front(elastic, script, site):
    agent = elastic("--run-path", "--wrap", "box", script(SCRIPT))
    assert agent.wait(30) == 0, agent.err
    assert [told["WRAPPED"] for told in told_by(agent)] == [None]
    assert "a hook's command can't be put before a function: the workers start without it" in agent.err


def test_without_the_option_the_hook_is_not_there(elastic, script, site, tmp_path):
    (tmp_path / "acme_wrap.py").write_text(textwrap.dedent("raise RuntimeError('nobody asked')"))
    agent = elastic(script(SCRIPT))
    assert (agent.wait(30), agent.err) == (0, "")
