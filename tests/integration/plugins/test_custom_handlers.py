"""Handlers, policies and hooks registered in code or installed, driving real runs."""

import json
import os
import re
import socket
import subprocess
import sys
from pathlib import Path

from patience import patience

CUSTOM = """
import sys
from elastic_core.api import RendezvousHandler
from elastic_core.options.settings import Entrypoint, RunSettings
from elastic_core.types import PolicySettings, RendezvousSettings
from elastic_core.launcher.job import run_job
from elastic_core.rendezvous.registry import register

class Store(dict):
    def set(self, key, value):
        self[key] = value.encode() if isinstance(value, str) else value
    def get(self, key):
        return self[key]

class CustomRendezvous(RendezvousHandler):
    api_version = 1
    joins = 0
    def next_rendezvous(self):
        CustomRendezvous.joins += 1
        return Store(), 0, 1

register("custom", CustomRendezvous)
script = sys.argv[1]
code = run_job(
    RunSettings(
        entrypoint=Entrypoint(argv=(sys.executable, "-u", script), name=script, script=script),
        nodes=RendezvousSettings(run_id="custom-run", backend="custom", local_world_size=2),
        restarts=PolicySettings(name="intensity", max_restarts=1),
    ),
    own_process=False,
)
print("joins", CustomRendezvous.joins)
sys.exit(code)
"""


def test_class_that_only_overrides_next_rendezvous_and_returns_a_tuple(script, tmp_path):
    worker = script(
        "import json, os, sys\n"
        "os.write(1, (json.dumps({k: os.environ[k] for k in ('RANK', 'WORLD_SIZE', 'MASTER_ADDR', 'ELASTIC_ROUND')})"
        " + os.linesep).encode())\n"
        "sys.exit(3 if os.environ['ELASTIC_ROUND'] == '0' and os.environ['RANK'] == '1' else 0)\n"
    )
    launcher = script(CUSTOM, "launch.py")
    done = subprocess.run(
        [sys.executable, str(launcher), str(worker)], capture_output=True, text=True, timeout=patience(60), check=False,
        env=os.environ | {"XDG_RUNTIME_DIR": str(tmp_path), "TMPDIR": str(tmp_path)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    last = [line for line in lines if line["ELASTIC_ROUND"] == "1"]
    assert sorted(line["RANK"] for line in last) == ["0", "1"]
    assert {line["WORLD_SIZE"] for line in last} == {"2"}
    assert done.stdout.splitlines()[-1] == "joins 2"


PLUGINS = """
from elastic_core.api import (
    AgentHook, FailureHandler, Ignore, Launches, Power, Refuse, RendezvousHandler, Restart, Stop
)

class Fragile(RendezvousHandler):
    api_version = 1
    def next_rendezvous(self):
        raise KeyError("no such node")

class Forgiving(FailureHandler):
    api_version = 1
    def decide(self, failure, history):
        return Ignore(rule="forgive") if failure.exit_code == 9 else Stop(reason="not forgiven")

class Broken(FailureHandler):
    api_version = 1
    def decide(self, failure, history):
        raise KeyError("no such rule")

class Slow(FailureHandler):
    api_version = 1
    def decide(self, failure, history):
        import threading
        threading.Event().wait(30)

class Adds(AgentHook):
    api_version = 1
    powers = frozenset({Power.LAUNCHES})
    def on_workers_starting(self, event):
        return Launches(environment={"FROM_HOOK": f"round {event.round.index}"})
    def on_worker_exited(self, event):
        raise RuntimeError("observers may fail")

class Gate(AgentHook):
    api_version = 1
    powers = frozenset({Power.REFUSAL})
    def on_joining(self, event):
        return Refuse(reason="GPU 3 is too hot")
"""


def install(folder, **groups):
    """Make a distribution that brings these entry points, as pip would have."""
    folder.mkdir(exist_ok=True)
    (folder / "test_plugins.py").write_text(PLUGINS)
    info = folder / "test_plugins-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: test-plugins\nVersion: 1.0\n")
    text = "".join(f"[elastic_core.{group}]\n" + "\n".join(names) + "\n" for group, names in groups.items())
    (info / "entry_points.txt").write_text(text)
    return {"PYTHONPATH": str(folder)}


def test_policy_that_ignores_a_failure_lets_the_others_finish(elastic, script, tmp_path):
    env = install(tmp_path / "site", failure=["forgiving = test_plugins:Forgiving"])
    path = script(
        "import os, sys, time\nif os.environ['RANK'] == '0':\n    sys.exit(9)\n"
        "while 'go on' not in open('agent.err').read(): time.sleep(0.02)\n"
        "os.write(1, b'{\"finished\": 1}\\n')\n"
    )
    agent = elastic("--nproc-per-node", "2", "--policy", "forgiving", path, env=env)
    assert agent.wait(30) == 0, agent.err
    assert agent.lines() == [{"finished": 1}]
    assert "rank 0 failed: exit code 9; the others go on without it" in agent.err


def test_policy_that_stops_says_why(elastic, script, tmp_path):
    env = install(tmp_path / "site", failure=["forgiving = test_plugins:Forgiving"])
    agent = elastic("--max-restarts", "5", "--policy", "forgiving", script("raise SystemExit(4)"), env=env)
    assert agent.wait(30) == 4
    assert "not forgiven" in agent.err


def test_broken_and_slow_policies_fall_back_to_the_built_in_one(elastic, script, tmp_path):
    env = install(tmp_path / "site", failure=["broken = test_plugins:Broken", "slow = test_plugins:Slow"])
    for name in ("broken", "slow"):
        agent = elastic("--max-restarts", "1", "--policy", name, script("raise SystemExit(4)"), env=env)
        assert agent.wait(30) == 4
        assert agent.incident()["restart_count"] == 1
        assert "'intensity' decided in its place" in agent.err
        assert f"policy '{name}' (test-plugins 1.0) " in agent.err


def test_backend_that_raises_is_named_with_its_distribution_in_one_line(elastic, script, tmp_path):
    env = install(tmp_path / "site", rendezvous=["fragile = test_plugins:Fragile"])
    agent = elastic("--rdzv-backend", "fragile", script("pass"), env=env)
    assert agent.wait(30) == 4
    where, line = sorted(agent.err.splitlines(), key=lambda line: "error:" in line)
    assert re.fullmatch(
        r"elastic: error: next_rendezvous of backend 'fragile' \(test-plugins 1\.0\) raised KeyError: 'no such node' "
        r"\(test_plugins\.py:\d+ in next_rendezvous\)\. Try: report it to the authors of test-plugins",
        line,
    )
    log = Path(where.removeprefix("elastic: tracebacks of plugins are in '").removesuffix("'"))
    assert "KeyError: 'no such node'" in log.read_text()


def test_hook_adds_variables_and_its_errors_are_named_but_not_felt(elastic, script, tmp_path):
    env = install(tmp_path / "site", hooks=["adds = test_plugins:Adds"])
    path = script("import json, os\nos.write(1, (json.dumps([os.environ['FROM_HOOK']]) + os.linesep).encode())\n")
    agent = elastic(path, env=env)
    assert agent.wait(30) == 0, agent.err
    assert agent.out == '["round 0"]\n'
    assert "adds" in agent.err
    assert "observers may fail" in agent.err
    off = elastic("-p", "no:adds", script("import os\nassert 'FROM_HOOK' not in os.environ\n", "off.py"), env=env)
    assert off.wait(30) == 0, off.err
    assert off.err == ""


def test_hook_that_refuses_ends_the_run_with_its_reason(elastic, script, tmp_path):
    env = install(tmp_path / "site", hooks=["gate = test_plugins:Gate"])
    agent = elastic("--join-timeout", "0.5", script("pass"), env=env)
    assert agent.wait(30) == 1
    assert "GPU 3 is too hot" in agent.err
    assert agent.incident()["decision"]["reason"] == "asked 2 times in 0.5 s (--join-timeout)"
    assert agent.incident()["failure_class"] == "health check"
    assert agent.incident()["source"] == "launcher"


def test_port_that_is_taken_ends_in_one_line_with_nothing_left(elastic, script):
    with socket.socket() as taken:
        taken.bind(("", 0))
        taken.listen()
        port = taken.getsockname()[1]
        agent = elastic("--master-port", port, script("pass"))
        assert agent.wait(30) == 2
    (line,) = agent.err.splitlines()
    assert f"--master-port {port} is in use" in line
    assert list(agent.runtime.glob("elastic-*/*-*")) == []
