"""Metrics and events of real runs: where they go, what they say, and that no handler is felt by a run."""

import json
import os
import re
import socket
import subprocess
import sys
import time
import urllib.request

import pytest

from elastic_torchrun import events
from patience import patience
from redis_servers import redis_server
from support import wait_for

__all__ = ["redis_server"]

FAILS_ONCE = """
import os
if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0" and os.environ["RANK"] == "1":
    raise ValueError("boom")
"""
BEATS_UNTIL_TOLD = """
import pathlib, time
from elastic_core.worker import heartbeat
here = pathlib.Path(__file__).parent
while not (here / "finish").exists():
    heartbeat(step=7)
    time.sleep(0.05)
"""
MINE = """
import logging, os, time
from elastic_ops.metrics import MetricHandler
from elastic_core.api import AgentHook, Power

class Metrics(MetricHandler):
    def __init__(self, settings):
        self.settings = settings
    def emit(self, metric_data):
        with open("mine.txt", "a") as file:
            file.write(f"{self.settings.conf} {self.settings.role} {metric_data.group_name} {metric_data.name}\\n")

class Raises(MetricHandler):
    def emit(self, metric_data):
        raise ConnectionError("nobody there")

class Hangs(MetricHandler):
    def emit(self, metric_data):
        time.sleep(600)

class Events(logging.Handler):
    def emit(self, record):
        with open("events.txt", "a") as file:
            file.write(record.getMessage() + "\\n")

class Hook(AgentHook):
    api_version = 1
    powers = frozenset({Power.RUN})
    def on_workers_started(self, event):
        self.run.record("metric", {"group": "lab", "name": "temperature", "value": 21})
"""
ENTRY_POINTS = """
[elastic_core.metrics]
mine = my_handlers:Metrics
raises = my_handlers:Raises
hangs = my_handlers:Hangs
broken = my_handlers:Nothing

[elastic_core.events]
mine = my_handlers:Events

[elastic_core.hooks]
thermometer = my_handlers:Hook
"""


@pytest.fixture
def installed(tmp_path):
    """Return the environment of a run for which handlers are installed."""
    site = tmp_path / "site"
    meta = site / "my_handlers-1.2.dist-info"
    meta.mkdir(parents=True)
    (site / "my_handlers.py").write_text(MINE)
    (meta / "METADATA").write_text("Metadata-Version: 2.1\nName: my-handlers\nVersion: 1.2\n")
    (meta / "entry_points.txt").write_text(ENTRY_POINTS)
    return {"PYTHONPATH": str(site)}


def recorded(path):
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    return [events.Event.deserialize(json.dumps(line)) for line in lines if "source" in line], [
        line for line in lines if "source" not in line
    ]


def test_events_of_a_run_that_fails_once(elastic, script, tmp_path):
    before_ms = time.time_ns() // 1_000_000
    path = tmp_path / "e.jsonl"
    agent = elastic(
        "--nproc-per-node", 2, "--max-restarts", 1, "--role", "trainer", "--event-log-handler", f"jsonl:{path}",
        script(FAILS_ONCE),
    )  # fmt: skip
    assert agent.wait() == 0, agent.err
    found, of_rendezvous = recorded(path)
    states = [(event.source.value, event.metadata["state"]) for event in found]
    joined = [("AGENT", "RENDEZVOUS"), ("AGENT", "ASSIGN_WORKER_RANKS"), ("WORKER", "START"), ("WORKER", "START")]
    assert states[:4] == joined
    assert ("WORKER", "FAILED") in states[4:6]
    assert states[6:10] == joined
    assert states[10:] == [("WORKER", "SUCCEEDED"), ("WORKER", "SUCCEEDED"), ("AGENT", "SUCCEEDED")]
    (failed,) = [event for event in found if event.metadata["state"] == "FAILED"]
    assert failed.name == "torchelastic.worker.status.FAILED"
    assert "ValueError: boom" in failed.metadata["raw_error"]
    assert (failed.metadata["global_rank"], failed.metadata["role"]) == (1, "trainer")
    more = json.loads(failed.metadata["metadata"])
    assert (more["local_rank"], more["exit_code"], more["role_world_size"]) == (1, 1, 2)
    assert (found[-1].metadata["agent_restarts"], found[-1].metadata["run_id"]) == (1, agent.run_id)
    times = [event.timestamp for event in found]
    assert before_ms <= min(times) <= max(times) <= time.time_ns() // 1_000_000
    assert [line["node_state"] for line in of_rendezvous] == ["INIT", *["RUNNING"] * 4, "SUCCEEDED"]


def test_the_variable_of_torchrun_holds_and_loglevel_is_heeded(elastic, script):
    agent = elastic(script(""), env={"PET_EVENT_LOG_HANDLER": "console"})
    assert agent.wait() == 0
    assert '"torchelastic.worker.status.SUCCEEDED"' in agent.err
    quiet = elastic("--event-log-handler", "console", script(""), env={"LOGLEVEL": "WARNING"})
    assert quiet.wait() == 0
    assert "torchelastic" not in quiet.err


def test_json_lines_without_a_file_are_in_the_run_directory(elastic, script, tmp_path):
    kept = tmp_path / "run"
    agent = elastic("--run-dir", kept, "--metrics-handler", "jsonl", "--event-log-handler", "jsonl", script(""))
    assert agent.wait() == 0, agent.err
    names = [json.loads(line)["name"] for line in (kept / "metrics.jsonl").read_text().splitlines()]
    assert {"elastic_phase_seconds", "workers.default.run_total", "SimpleElasticAgent.run.success"} <= set(names)
    assert len(recorded(kept / "events.jsonl")[0]) == 5
    assert f"metrics are in {str(kept / 'metrics.jsonl')!r}" in agent.err


def scrape(url):
    with urllib.request.urlopen(url, timeout=10) as answer:
        return answer.read().decode()


def test_prometheus_can_scrape_a_run(elastic, script, tmp_path):
    agent = elastic("--metrics-port", 0, "--hang-timeout", 60, script(BEATS_UNTIL_TOLD))
    url = wait_for(lambda: re.search(r"metrics are served at (http://127\.0\.0\.1:\d+/metrics)", agent.err))[1]
    wait_for(lambda: 'elastic_agent_state{state="running"} 1.0' in scrape(url))
    wait_for(lambda: 'elastic_heartbeat_step{local_rank="0"} 7.0' in scrape(url))
    text = scrape(url)
    assert "elastic_workers_alive 1.0" in text
    assert "# TYPE elastic_phase_seconds summary" in text
    assert f'run_id="{agent.run_id}"' in text
    assert "torchelastic_workers_default_healthy 1.0" in text
    (tmp_path / "finish").touch()
    assert agent.wait() == 0, agent.err


def test_the_store_is_measured(elastic, script, tmp_path, redis_server):
    redis_server.call("CONFIG SET requirepass hush")
    agent = elastic(
        "--nnodes", "1:2", "--rdzv-backend", "redis", "--rdzv-endpoint", f"redis://:hush@{redis_server.endpoint}",
        "--rdzv-conf", "last_call_timeout=0.1", "--metrics-port", 0, "--event-log-handler", "console",
        script(BEATS_UNTIL_TOLD),
    )  # fmt: skip
    url = wait_for(lambda: re.search(r"served at (\S+)", agent.err), what="the address")[1]
    wait_for(lambda: 'elastic_store_latency_seconds{call="enlist"}' in scrape(url), what="the store's latency")
    latencies = re.findall(r'elastic_store_latency_seconds\{call="\w+"\} (\S+)', scrape(url))
    assert all(0 < float(latency) < patience(2) for latency in latencies)
    assert 'elastic_store_calls_total{call="enlist",outcome="answered"} 1.0' in scrape(url)
    (tmp_path / "finish").touch()
    assert agent.wait() == 0, agent.err
    assert f'"master_endpoint": "{redis_server.endpoint}"' in agent.err  # without the password
    assert "hush" not in agent.err


def test_a_port_that_is_taken_is_one_line_and_starts_nothing(elastic, script):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        agent = elastic("--metrics-port", port, script("print('started')"))
        assert agent.wait() == 2
    assert (agent.out, len(agent.err.splitlines())) == ("", 1)
    assert f"metrics can't be served on 127.0.0.1:{port}: Address already in use. Try: " in agent.err


@pytest.mark.parametrize(
    ("args", "line"),
    [
        (
            ("--event-log-handler", "consle"),
            r"event handler 'consle' is not installed; .*Try: --event-log-handler console",
        ),
        (("--metrics-handler", "jsnl:x"), r"metrics handler 'jsnl' is not installed; .*Try: --metrics-handler jsonl"),
        (("--metrics-handler", "prometheus"), r"'prometheus' is not installed; .*Try: --metrics-port 9400"),
        (("--metrics-handler", "broken"), r"'broken' \(my-handlers 1\.2\): importing my_handlers:Nothing raised Attr"),
        (("--metrics-handler", "jsonl:/nowhere/m"), r"metrics file '/nowhere/m' can't be opened: No such file"),
    ],
)
def test_mistakes_are_one_line_and_start_nothing(elastic, script, installed, args, line):
    agent = elastic(*args, script("print('started')"), env=installed)
    assert agent.wait() in (2, 3)
    assert (agent.out, len(agent.err.splitlines())) == ("", 1)
    assert re.search(line, agent.err), agent.err


def test_handlers_of_others_and_what_hooks_publish(elastic, script, installed, tmp_path):
    agent = elastic(
        "--role", "trainer", "--metrics-handler", "mine:/path:1", "--event-log-handler", "mine", script(""),
        env=installed,
    )  # fmt: skip
    assert agent.wait() == 0, agent.err
    lines = (tmp_path / "agent0" / "mine.txt").read_text().splitlines()
    assert "/path:1 trainer torchelastic workers.trainer.succeeded" in lines
    assert "/path:1 trainer lab temperature" in lines
    assert len(recorded(tmp_path / "agent0" / "events.txt")[0]) == 5


def test_a_handler_that_raises_is_not_felt(elastic, script, installed):
    agent = elastic("--metrics-handler", "raises", "-p", "no:thermometer", script("print('trained')"), env=installed)
    assert (agent.wait(), agent.out) == (0, "trained\n")
    name = "metrics handler 'raises' (my-handlers 1.2) raised ConnectionError: nobody there"
    assert agent.err.splitlines() == [
        f"elastic: {name}",
        f"elastic: {name}, 3 times by now; it is off for the rest of the run",
    ]


def test_a_handler_that_hangs_holds_the_end_up_for_a_moment_only(elastic, script, installed):
    agent = elastic("--metrics-handler", "hangs", script("print('trained')"), env=installed)
    assert (agent.wait(), agent.out) == (0, "trained\n")
    assert "a handler of metrics or events has not returned; the run ends without it" in agent.err


def test_installed_handlers_are_listed(installed):
    command = [sys.executable, "-m", "elastic_core", "plugins", "--json"]
    done = subprocess.run(command, env=os.environ | installed, capture_output=True, text=True, timeout=60, check=True)
    found = {(each["kind"], each["name"]): each["status"] for each in json.loads(done.stdout)}
    assert found["metrics handler", "mine"] == found["event handler", "mine"] == "loaded"
    assert "raised AttributeError" in found["metrics handler", "broken"]


def test_nothing_is_loaded_unless_it_is_asked_for(tmp_path):
    command = [sys.executable, "-X", "importtime", "-m", "elastic_core.run", "--run-dir", str(tmp_path)]
    done = subprocess.run([*command, "--no-python", "true"], capture_output=True, text=True, timeout=60, check=True)
    loaded = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines() if line.startswith("import time:")}
    assert "elastic_core.hooks.runner" in loaded
    rooms = (
        "elastic_ops.metrics",
        "elastic_torchrun.metrics",
        "elastic_torchrun.events",
        "elastic_ops.exporters",
        "prometheus_client",
    )
    assert [name for name in loaded if name.startswith(rooms)] == []
