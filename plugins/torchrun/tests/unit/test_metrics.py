"""The interface of metrics: what is put is what a handler gets, whoever configured it for whatever group."""

import pytest

from elastic_core.errors import ConfigError
from elastic_torchrun import metrics
from elastic_torchrun.metrics import api


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


def test_a_config_without_a_handler_changes_nothing(kept):
    metrics.initialize_metrics()
    metrics.initialize_metrics(metrics.MetricsConfig())
    metrics.put_metric("a", 1)
    assert len(kept.got) == 1


def test_a_config_may_name_a_built_in_handler(kept, capsys):
    metrics.initialize_metrics(metrics.MetricsConfig({"handler": "console"}))
    metrics.put_metric("a", 1)
    assert capsys.readouterr().out.endswith("][torchelastic]: a=1\n")
    with pytest.raises(ConfigError, match=r"^there is no metrics handler 'x' here\. Try: one of console, null$"):
        metrics.initialize_metrics(metrics.MetricsConfig({"handler": "x"}))


def test_an_agent_s_metrics_go_to_what_is_configured_for_their_group(kept):
    own = Kept()
    metrics.configure(own, group="elastic")
    api.ConfiguredMetrics().emit((1.5, "elastic", "a", 2))
    api.ConfiguredMetrics().emit((1.5, "other", "b", 3))
    assert own.got == [metrics.MetricData(1.5, "elastic", "a", 2)]
    assert kept.values == {("other", "b"): 3}
