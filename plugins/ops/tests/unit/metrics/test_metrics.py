"""Handlers of metrics and of events, and series."""

import json
import urllib.error
import urllib.request

import pytest

from elastic_core.errors import ConfigError
from elastic_ops import metrics
from elastic_ops.exporters import event_handlers
from elastic_ops.metrics.choosing import make_handler
from elastic_ops.metrics.prometheus import PrometheusMetricHandler


def test_the_console_has_a_line_for_each(capsys):
    metrics.ConsoleMetricHandler().emit(metrics.MetricData(1.5, "g", "n", 3))
    assert capsys.readouterr().out == "[1.5][g]: n=3\n"


@pytest.mark.parametrize("value", ["out of memory", 'a "quote"', "a\\b", "two\nlines", "{x=1}", ""])
def test_series_can_be_taken_apart(value):
    assert metrics.split_series(metrics.series("n", class_=value, b="2")) == ("n", {"class": value, "b": "2"})


def test_what_is_no_series_is_a_name():
    assert metrics.series("n") == "n"
    assert metrics.split_series("a.b{c") == ("a.b{c", {})


def test_json_lines(tmp_path):
    path = tmp_path / "m.jsonl"
    path.write_text("before\n")
    handler = make_handler("jsonl", str(path))
    handler.emit(metrics.MetricData(1.5, "g", metrics.series("n", a="1"), 2.5))
    handler.emit(metrics.MetricData(1.5, "g", "plain", 1))
    handler.close()
    before, first, second = path.read_text().splitlines()
    assert before == "before"
    assert json.loads(first) == {
        "timestamp": 1.5, "group_name": "g", "name": "n", "value": 2.5, "labels": {"a": "1"}
    }  # fmt: skip
    assert "labels" not in json.loads(second)


@pytest.mark.parametrize(
    ("chosen", "line"),
    [
        (("jsonl", ""), "metrics handler 'jsonl' needs a file. Try: jsonl:metrics.jsonl"),
        (("console", "x"), "metrics handler 'console' takes nothing after its name, 'x' was given. Try: console"),
        (("nowhere", ""), "there is no metrics handler 'nowhere' here. Try: one of console, jsonl, null"),
        (
            ("jsonl", "/nowhere/m"),
            (
                "metrics file '/nowhere/m' can't be opened: No such file or directory. "
                "Try: jsonl:FILE with a file that can be written"
            ),
        ),
    ],
)
def test_mistakes_are_one_line(chosen, line):
    with pytest.raises(ConfigError) as caught:
        make_handler(*chosen)
    assert str(caught.value) == line


@pytest.mark.parametrize(
    ("chosen", "line"),
    [
        (("jsonl", ""), "event handler 'jsonl' needs a file. Try: jsonl:events.jsonl"),
        (("null", "x"), "event handler 'null' takes nothing after its name, 'x' was given. Try: null"),
        (
            ("nowhere", ""),
            "there is no event handler 'nowhere' here. Try: one of console, dynamic_rendezvous, jsonl, null",
        ),
        (
            ("jsonl", "/nowhere/e"),
            (
                "event file '/nowhere/e' can't be opened: No such file or directory. "
                "Try: jsonl:FILE with a file that can be written"
            ),
        ),
    ],
)
def test_mistakes_about_events_are_one_line(chosen, line):
    with pytest.raises(ConfigError) as caught:
        event_handlers.make_handler(*chosen)
    assert str(caught.value) == line


# --- Prometheus


@pytest.fixture
def served():
    handler = PrometheusMetricHandler(0)
    yield handler
    handler.close()


def scraped(handler):
    with urllib.request.urlopen(handler.url, timeout=10) as answer:
        lines = answer.read().decode().splitlines()
    return {
        line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in lines if not line.startswith("#")
    }, lines


def put(handler, name, value, group="elastic"):
    handler.emit(metrics.MetricData(0.0, group, name, value))


def test_a_scrape_has_the_newest_values(served):
    assert served.url.startswith("http://127.0.0.1:")
    put(served, "elastic_round", 0)
    put(served, "elastic_round", 1)
    put(served, metrics.series("elastic_restarts_total", class_="hang"), 2)
    put(served, metrics.series("elastic_phase_seconds", phase="stop"), 0.5)
    put(served, metrics.series("elastic_phase_seconds", phase="stop"), 0.25)
    put(served, "workers.default.run_total", 1, "torchelastic")
    values, lines = scraped(served)
    assert values == {
        "elastic_round": 1.0,
        'elastic_restarts_total{class="hang"}': 2.0,
        'elastic_phase_seconds_count{phase="stop"}': 2.0,
        'elastic_phase_seconds_sum{phase="stop"}': 0.75,
        "torchelastic_workers_default_run_total": 1.0,
    }
    kinds = [line.split()[2:] for line in lines if line.startswith("# TYPE")]
    assert ["elastic_restarts_total", "counter"] in kinds
    assert ["elastic_phase_seconds", "summary"] in kinds


def test_a_port_that_is_taken_is_one_line(served):
    port = int(served.url.rpartition(":")[2].partition("/")[0])
    with pytest.raises(ConfigError) as caught:
        PrometheusMetricHandler(port)
    assert str(caught.value) == (
        f"metrics can't be served on 127.0.0.1:{port}: Address already in use. "
        "Try: --metrics-port with a port that is free, or 0 for any"
    )


def test_after_the_end_nobody_answers(served):
    served.close()
    with pytest.raises(urllib.error.URLError):
        scraped(served)


def test_the_missing_library_is_named_with_its_extra(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "prometheus_client", None)
    with pytest.raises(ConfigError, match=r"needs the library prometheus-client.*Try: pip install 'prometheus-client"):
        PrometheusMetricHandler(0)


def test_what_a_scrape_gets_can_be_had_without_one(served):
    put(served, "elastic_round", 4)
    text, kind = served.text()
    assert "elastic_round 4.0" in text
    assert kind.startswith("text/plain")
