"""The interface of metrics: what is put is what a handler gets, whoever configured it for whatever group."""

import json
import urllib.error
import urllib.request

import pytest

from elastic_core.errors import ConfigError
from elastic_ops import metrics
from elastic_ops.metrics import api
from elastic_ops.metrics.choosing import make_handler
from elastic_ops.metrics.prometheus import PrometheusMetricHandler


class Kept(metrics.MetricHandler):
    def __init__(self):
        self.got = []

    def emit(self, metric_data):
        self.got.append(metric_data)

    @property
    def values(self):
        return {(data.group_name, data.name): data.value for data in self.got}


@pytest.fixture
def kept(monkeypatch):
    monkeypatch.setattr(api, "_by_group", {})
    monkeypatch.setattr(api, "_default", [metrics.NullMetricHandler()])
    handler = Kept()
    metrics.configure(handler)
    return handler


def test_a_group_has_its_own_handler_or_that_of_all(kept):
    own = Kept()
    metrics.configure(own, group="mine")
    metrics.put_metric("a", 1)
    metrics.put_metric("b", 2, "mine")
    metrics.getStream("other").add_value("c", 3)
    assert kept.values == {("torchelastic", "a"): 1, ("other", "c"): 3}
    assert own.values == {("mine", "b"): 2}
    assert kept.got[0].timestamp > 1.7e9


def test_nothing_is_configured_at_first(kept):
    assert api.is_configured()
    metrics.configure(metrics.NullMetricHandler())
    assert not api.is_configured()
    metrics.configure(Kept(), group="one")
    assert api.is_configured()


class Model:
    @metrics.prof(group="model")
    def step(self, fail):
        """Do one."""
        if fail:
            raise ValueError("boom")
        return 7


@metrics.prof
def free():
    return 8


def test_prof_tells_how_calls_went(kept):
    assert (Model().step(False), free()) == (7, 8)
    assert Model.step.__doc__ == "Do one."
    names = [(data.group_name, data.name) for data in kept.got]
    module = __name__.rpartition(".")[2]
    assert names == [
        ("model", "Model.step.success"),
        ("model", "Model.step.duration.ms"),
        ("torchelastic", f"{module}.free.success"),
        ("torchelastic", f"{module}.free.duration.ms"),
    ]
    assert 0 <= kept.got[1].value < 5000


def test_prof_lets_the_exception_pass(kept):
    with pytest.raises(ValueError, match="boom"):
        Model().step(True)
    assert [data.name for data in kept.got] == ["Model.step.failure", "Model.step.duration.ms"]


def test_the_old_names_work_and_warn(kept):
    with pytest.warns(FutureWarning, match="prof"):

        @metrics.profile("old")
        def old():
            return 1

    old()
    with pytest.warns(FutureWarning, match="put_metric"):
        metrics.publish_metric("old", "x", 5)
    assert [data.name for data in kept.got] == ["old.success", "old.duration.ms", "x"]


def test_the_console_has_a_line_for_each(capsys):
    metrics.ConsoleMetricHandler().emit(metrics.MetricData(1.5, "g", "n", 3))
    assert capsys.readouterr().out == "[1.5][g]: n=3\n"


@pytest.mark.parametrize("value", ["out of memory", 'a "quote"', "a\\b", "two\nlines", "{x=1}", ""])
def test_series_can_be_taken_apart(value):
    assert metrics.split_series(metrics.series("n", class_=value, b="2")) == ("n", {"class": value, "b": "2"})


def test_what_is_no_series_is_a_name():
    assert metrics.series("n") == "n"
    assert metrics.split_series("a.b{c") == ("a.b{c", {})


def test_json_lines(tmp_path, kept):
    path = tmp_path / "m.jsonl"
    path.write_text("before\n")
    metrics.initialize_metrics(metrics.MetricsConfig({"handler": f"jsonl:{path}"}))
    metrics.put_metric(metrics.series("n", a="1"), 2.5, "g")
    metrics.put_metric("plain", 1)
    api.getStream("g").handler.close()
    before, first, second = path.read_text().splitlines()
    assert before == "before"
    told = json.loads(first)
    assert told.pop("timestamp") > 1.7e9
    assert told == {"group_name": "g", "name": "n", "value": 2.5, "labels": {"a": "1"}}
    assert "labels" not in json.loads(second)


def test_a_config_without_a_handler_changes_nothing(kept):
    metrics.initialize_metrics()
    metrics.initialize_metrics(metrics.MetricsConfig())
    metrics.put_metric("a", 1)
    assert len(kept.got) == 1


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
