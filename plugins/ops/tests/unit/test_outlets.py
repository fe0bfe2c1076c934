"""Where metrics and events go: to the run's handlers, and never back into the agent."""

import json
import logging
import threading

import pytest

from elastic_core.api.feed import RunEvent
from elastic_ops import metrics
from elastic_ops.exporters import delivery as delivery
from elastic_ops.exporters import event_handlers
from elastic_ops.exporters.agent_events import AgentEvents, Identity
from elastic_ops.exporters.agent_metrics import AgentMetrics
from elastic_ops.exporters.choosing import NamedHandler
from elastic_ops.exporters.delivery import MOST_WAITING, Delivery
from elastic_ops.exporters.outlets import EventOutlet, MetricOutlet
from support import wait_for

STOPPED = RunEvent(name="agent_stopped", at_s=1.0, at_ns=2_000_000_000, values={"exit_code": 0, "reason": "done"})


class KeptMetrics(metrics.MetricHandler):
    def __init__(self):
        self.got = []
        self.closed = False

    def emit(self, metric_data):
        self.got.append(metric_data.name)

    def close(self):
        self.closed = True


class KeptEvents(logging.Handler):
    def __init__(self):
        super().__init__()
        self.got = []

    def emit(self, record):
        self.got.append(json.loads(record.getMessage())["name"])


@pytest.fixture
def lines(monkeypatch):
    monkeypatch.delenv("LOGLEVEL", raising=False)
    monkeypatch.setattr(delivery, "CLOSE_LIMIT_S", 60.0)  # of which only a handler that hangs needs more
    return []


def metric_outlet(lines, *chosen):
    agent = AgentMetrics(run_id="r", role="default", backend="local", max_restarts=0)
    return MetricOutlet(agent, [NamedHandler(label="mine", handler=each) for each in chosen], notice=lines.append)


def event_outlet(lines, chosen):
    identity = Identity(run_id="r", role="d", backend="local", entry_point="t", hostname="h", pid=1)
    named = NamedHandler(label="mine", handler=chosen)
    return EventOutlet(lambda: AgentEvents(identity), named, notice=lines.append)


def test_metrics_go_to_the_handlers_of_the_run(lines):
    one, two = KeptMetrics(), KeptMetrics()
    outlet = metric_outlet(lines, one, two)
    outlet.observe(STOPPED)
    outlet.close()
    assert "workers.default.run_total" in one.got
    assert one.got == two.got
    assert (one.closed, two.closed, lines) == (True, True, [])


def test_a_metric_that_a_hook_records_is_one_of_the_run(lines):
    own, of_events = KeptMetrics(), KeptEvents()
    values = {"group": "lab", "name": "temperature", "value": 21}
    seen = RunEvent(name="metric", at_s=1.0, at_ns=2, values=values, source="thermometer")
    metric_outlet(lines, own).observe(seen)
    event_outlet(lines, of_events).observe(seen)
    assert (own.got, of_events.got) == (["temperature"], [])


def test_events_go_to_the_handler_of_the_run(lines):
    own = KeptEvents()
    outlet = event_outlet(lines, own)
    outlet.observe(STOPPED)
    outlet.close()
    assert own.got == ["torchelastic.worker.status.SUCCEEDED", "elastic_core:agent_stopped"]
    assert lines == []


def test_what_logging_would_swallow_is_told(lines, capfd):
    handler = event_handlers.make_handler("jsonl", "/dev/full")
    outlet = event_outlet(lines, handler)
    outlet.observe(STOPPED)
    outlet.close()
    assert lines == ["mine raised OSError: [Errno 28] No space left on device"]
    assert capfd.readouterr() == ("", "")


def test_loglevel_keeps_events_away(lines, monkeypatch):
    monkeypatch.setenv("LOGLEVEL", "ERROR")
    own = KeptEvents()
    event_outlet(lines, own).observe(STOPPED)
    assert own.got == []


def test_a_handler_that_hangs_fills_no_memory(lines):
    hold, closed = threading.Event(), []
    calls = Delivery(lambda: closed.append(1), notice=lines.append)
    calls.start()
    for _ in range(MOST_WAITING + 5):
        calls.put(lambda: hold.wait(60))
    hold.set()
    assert calls.close()
    assert calls.close()
    (line,) = lines
    assert line.endswith("metrics and events were dropped: their handlers were too slow")
    calls.put(lambda: closed.append(2))  # after the end, none is made
    assert closed == [1]


def test_a_handler_that_does_not_close_is_left_behind(lines, monkeypatch):
    monkeypatch.setattr(delivery, "CLOSE_LIMIT_S", 0.1)
    hold = threading.Event()

    class Stuck(KeptMetrics):
        def close(self):
            hold.wait(60)

    own = Stuck()
    outlet = metric_outlet(lines, own)
    calls = Delivery(outlet.close, notice=lines.append)
    calls.start()
    calls.put(lambda: outlet.observe(STOPPED))
    assert not calls.close()
    wait_for(lambda: own.got, what="the metrics from before the end")
    hold.set()


@pytest.mark.parametrize("started", [True, False])
def test_handlers_are_closed_with_the_delivery(lines, started):
    own = KeptMetrics()
    calls = Delivery(metric_outlet(lines, own).close, notice=lines.append)
    if started:
        calls.start()
    assert calls.close()
    assert own.closed
