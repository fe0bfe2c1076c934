"""Hooks of strangers that hold a planned stop, in real runs; what a broken one does."""

import pytest

HOOK = """
import os
from elastic_core.api import AgentHook, Power

class Hold(AgentHook):
    api_version = 2
    powers = frozenset({Power.RUN, Power.HOLDS})

    @property
    def hold_s(self):
        return eval(os.environ["TEST_HOLD_S"])

    def on_workers_started(self, event):
        self.run.ask_drain("the switch is to be replaced")

    def on_stop_planned(self, event):
        self.run.notice(f"held for {event.hold_s:g} s: {event.reason}")
        self.run.agree("acme: level", 5)

    def on_agreed(self, event):
        self.run.notice(f"{event.topic} {event.value}")
        self.run.release_stop()
"""


@pytest.fixture
def run(elastic, script, tmp_path, monkeypatch):
    """Return a function that has such a hook hold a stop, by what its `hold_s` is."""
    info = tmp_path / "acme_hold-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: acme-hold\nVersion: 1\n")
    (info / "entry_points.txt").write_text("[elastic_core.hooks]\nhold = acme_hold:Hold\n")
    (tmp_path / "acme_hold.py").write_text(HOOK)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))

    def run(hold_s):
        monkeypatch.setenv("TEST_HOLD_S", hold_s)
        agent = elastic(script("import time\ntime.sleep(600)"))
        assert agent.wait(30) == 143, agent.err
        return agent.err

    return run


def test_a_hook_holds_a_stop_and_lets_it_go_on(run):
    err = run("600.0")
    assert "hold: held for 600 s: stopped by signal 15" in err
    assert "hold: acme: level 5" in err


@pytest.mark.parametrize(
    ("hold_s", "line"),
    [
        ("'long'", "hold_s is 'long'; a number of seconds is needed"),
        ("-1", "hold_s is -1; a number of seconds is needed"),
        ("1 / 0", "hold_s raised ZeroDivisionError: division by zero"),
    ],
)
def test_a_hold_of_no_length_holds_nothing_and_is_told(run, hold_s, line):
    err = run(hold_s)
    assert f"hook 'hold' (acme-hold 1): {line}" in err
    assert "held for" not in err
