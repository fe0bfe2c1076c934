"""The flags about metrics and events: what they take, and what they refuse, before anything is built."""

import pytest

from elastic_core.api import ConfigError
from elastic_core.options.resolve import resolve
from elastic_ops.exporters.options import address


@pytest.fixture
def run(tmp_path):
    script = tmp_path / "t.py"
    script.touch()

    def run(*, environ=None, **given):
        return resolve(given, str(script), environ=environ or {})

    return run


def refused(run, **options):
    with pytest.raises(ConfigError) as raised:
        run(**options)
    assert "\n" not in str(raised.value)
    assert raised.value.exit_code == 2
    return str(raised.value)


def test_metrics_and_events_go_nowhere_unless_asked_for(run):
    assert run().settings.hook_options == {}


def test_handlers_are_names_with_what_they_take(run):
    settings = run(metrics_handler=("console", "jsonl:/tmp/m"), event_log_handler="jsonl:/tmp/e").settings
    assert settings.hook_options == {
        "metrics_handler": ("console", "jsonl:/tmp/m"),
        "event_log_handler": "jsonl:/tmp/e",
    }
    resolution = run(environ={"PET_METRICS_HANDLER": "console", "PET_EVENT_LOG_HANDLER": "console"})
    assert resolution.settings.hook_options == {"metrics_handler": ("console",), "event_log_handler": "console"}
    assert resolution.origins["event_log_handler"] == "env PET_EVENT_LOG_HANDLER"
    assert refused(run, metrics_handler=(":x",)).startswith("--metrics-handler")
    assert refused(run, event_log_handler=" ").endswith("expected the name of a handler. Try: console, or jsonl:FILE")


@pytest.mark.parametrize(
    ("typed", "expected"),
    [
        ("9400", ("127.0.0.1", 9400)),
        ("0", ("127.0.0.1", 0)),
        ("0.0.0.0:9400", ("0.0.0.0", 9400)),
        ("[::1]:9400", ("::1", 9400)),
    ],
)
def test_metrics_are_served_on_the_loopback_address_unless_told_otherwise(run, typed, expected):
    assert address(str(run(metrics_port=typed).settings.hook_options["metrics_port"])) == expected


@pytest.mark.parametrize("typed", ["x", ":9400", "70000", "-1", "host:"])
def test_other_metrics_ports_are_refused(run, typed):
    line = f"--metrics-port: {typed!r}; expected a port, 0 to 65535, or HOST:PORT. Try: --metrics-port 9400"
    assert refused(run, metrics_port=typed) == line
