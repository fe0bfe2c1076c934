"""Where what is observed goes: to the run's handlers, to what code has configured, and never back into the agent."""

import json
import logging
import threading

import pytest

from elastic_core.api.feed import RunEvent
from elastic_ops import events, metrics
from elastic_ops.events import handlers as event_handlers
from elastic_ops.events import recording
from elastic_ops.exporters import delivery as delivery
from elastic_ops.exporters.agent_events import AgentEvents, Identity
from elastic_ops.exporters.agent_metrics import AgentMetrics
from elastic_ops.exporters.choosing import NamedHandler
from elastic_ops.exporters.delivery import MOST_WAITING, Delivery
from elastic_ops.exporters.outlets import EventOutlet, MetricOutlet, Relay
from elastic_ops.metrics import api

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
    monkeypatch.setattr(api, "_by_group", {})
    monkeypatch.setattr(api, "_default", [metrics.NullMetricHandler()])
    monkeypatch.setattr(recording, "_configured", [events.NullEventHandler()])
    monkeypatch.setattr(recording, "_attached", {})
    monkeypatch.setattr(event_handlers, "log_handlers", dict(event_handlers.log_handlers))
    monkeypatch.delenv("LOGLEVEL", raising=False)
    yield []
    logging.getLogger("torchelastic-events-dynamic_rendezvous").handlers.clear()


def metric_outlet(lines, *chosen):
    agent = AgentMetrics(run_id="r", role="default", backend="local", max_restarts=0)
    return MetricOutlet(agent, [NamedHandler(label="mine", handler=each) for each in chosen], notice=lines.append)


def event_outlet(lines, chosen=None, *, ours=True):
    identity = Identity(run_id="r", role="d", backend="local", entry_point="t", hostname="h", pid=1)
    named = None if chosen is None else NamedHandler(label="mine", handler=chosen, ours=ours)
    return EventOutlet(lambda: AgentEvents(identity), named, notice=lines.append)


def test_metrics_go_to_the_run_and_to_whoever_is_configured_for_the_group(lines):
    own, configured = KeptMetrics(), KeptMetrics()
    metrics.configure(configured, group="elastic")
    outlet = metric_outlet(lines, own)
    outlet.observe(STOPPED)
    outlet.close()
    assert "workers.default.run_total" in own.got
    assert configured.got == ["elastic_exit_code"]
    assert (own.closed, configured.closed, lines) == (True, False, [])


def test_what_others_publish_is_not_published_twice(lines):
    own = KeptMetrics()
    outlet = metric_outlet(lines, own)
    feed = Delivery([outlet], notice=lines.append)
    metrics.configure(Relay(feed, outlet))
    feed.start()
    feed.put(STOPPED)
    metrics.put_metric("mine", 1, "lab")
    assert feed.close()
    assert own.got.count("elastic_exit_code") == own.got.count("mine") == 1


def test_events_go_to_the_run_and_to_whoever_is_configured(lines):
    own, mine, of_rendezvous = KeptEvents(), [], KeptEvents()

    class Mine(events.EventHandler):
        def record(self, event):
            mine.append(event.metadata["state"])

    events.configure(Mine())
    event_handlers.log_handlers["dynamic_rendezvous"] = of_rendezvous
    outlet = event_outlet(lines, own)
    outlet.observe(STOPPED)
    outlet.close()
    assert own.got == ["torchelastic.worker.status.SUCCEEDED", "elastic_core:agent_stopped"]
    assert (mine, of_rendezvous.got, lines) == (["SUCCEEDED"], ["elastic_core:agent_stopped"], [])


def test_the_handler_of_the_rendezvous_may_be_the_chosen_one(lines):
    both = event_handlers.log_handlers["dynamic_rendezvous"] = KeptEvents()
    event_outlet(lines, both, ours=False).observe(STOPPED)
    assert both.got == ["torchelastic.worker.status.SUCCEEDED", "elastic_core:agent_stopped"]


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
    hold = threading.Event()

    class Hangs:
        def observe(self, seen):
            hold.wait(60)

        def close(self):
            pass

    feed = Delivery([Hangs()], notice=lines.append)
    feed.start()
    for _ in range(MOST_WAITING + 5):
        feed.put(STOPPED)
    hold.set()
    assert feed.close()
    assert feed.close()
    (line,) = lines
    assert line.endswith("metrics and events were dropped: their handlers were too slow")
    feed.put(STOPPED)  # after the end, nobody is told


def test_a_feed_that_was_never_started_is_closed_at_once(lines):
    assert Delivery([], notice=lines.append).close()


def test_a_handler_that_does_not_close_is_left_behind(lines, monkeypatch):
    monkeypatch.setattr(delivery, "CLOSE_LIMIT_S", 0.1)
    hold = threading.Event()

    class Stuck(KeptMetrics):
        def close(self):
            hold.wait(60)

    own = Stuck()
    feed = Delivery([metric_outlet(lines, own)], notice=lines.append)
    feed.start()
    feed.put(STOPPED)
    assert not feed.close()
    assert own.got
    hold.set()


@pytest.mark.parametrize("started", [True, False])
def test_handlers_are_closed_with_their_feed(lines, started):
    own = KeptMetrics()
    feed = Delivery([metric_outlet(lines, own)], notice=lines.append)
    if started:
        feed.start()
    assert feed.close()
    assert own.closed
