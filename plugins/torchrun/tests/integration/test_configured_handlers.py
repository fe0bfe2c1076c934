"""Handlers of metrics and events that a program has configured, in runs that it starts."""

import subprocess
import sys

PROGRAM = """
import logging, sys, threading
from elastic_core.launcher import launch
from elastic_torchrun import events, metrics
from elastic_torchrun.events.handlers import log_handlers

class Mine(metrics.MetricHandler):
    names = []
    def emit(self, metric_data):
        self.names.append(metric_data.name)

class MyEvents(events.EventHandler):
    states = []
    def record(self, event):
        self.states.append(event.metadata["state"])

class Kept(logging.Handler):
    lines = []
    def emit(self, record):
        self.lines.append(record.getMessage())

metrics.configure(Mine(), group="torchelastic")
events.configure(MyEvents())
log_handlers["kept"] = Kept()
launch([sys.executable, "-c", ""], event_log_handler="kept", metrics_handler="jsonl:metrics.jsonl")
assert "workers.default.run_total" in Mine.names, Mine.names
assert not [name for name in Mine.names if name.startswith("elastic_")]  # the group has no handler
assert MyEvents.states == ["RENDEZVOUS", "ASSIGN_WORKER_RANKS", "START", "SUCCEEDED", "SUCCEEDED"]
assert sum("torchelastic.worker.status" in line for line in Kept.lines) == 5
assert "elastic-observers" not in [thread.name for thread in threading.enumerate()]
"""


def test_a_program_s_handlers_get_what_its_run_measures_and_records(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "run_total" in (tmp_path / "metrics.jsonl").read_text()
