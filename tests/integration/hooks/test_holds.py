"""Hooks of strangers that hold a planned stop, in real runs; what a broken one does."""

import re
import signal
import threading

import pytest

from elastic_core.agent.machine.states import URGE_S
from patience import promised
from support import wait_for

SIGNALS_S = 3.0
"""The agent acts so soon on two signals, whatever a hook does: half a second lies between them."""
DEADLINE_S = 12.0
"""A hook that blocks holds a stop up no longer than its deadline."""

HOOK = """
import os
from elastic_core.api import AgentHook, Power

class Hold(AgentHook):
    api_version = 1
    powers = frozenset({Power.RUN, Power.HOLDS})

    @property
    def hold_s(self):
        return eval(os.environ["TEST_HOLD_S"])

    def on_workers_started(self, event):
        if os.environ["TEST_ASK"]:
            self.run.ask_drain("the switch is to be replaced")

    def on_stop_planned(self, event):
        self.run.notice(f"held for {event.hold_s:g} s: {event.reason}")
        self.run.agree("acme: level", 5)

    def on_agreed(self, event):
        self.run.notice(f"{event.topic} {event.value}")
        self.run.release_stop()
"""


@pytest.fixture
def run(start):
    """Return a function that has such a hook hold a stop, by what its `hold_s` is, and returns what people see."""

    def run(hold_s):
        agent = start(hold_s)
        assert agent.wait(30) == 143, agent.err
        return agent.err

    return run


@pytest.fixture
def start(elastic, script, tmp_path, monkeypatch):
    """Return a function that starts a run with such a hook, which asks for a stop unless told otherwise."""
    info = tmp_path / "acme_hold-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: acme-hold\nVersion: 1\n")
    (info / "entry_points.txt").write_text("[elastic_core.hooks]\nhold = acme_hold:Hold\n")
    (tmp_path / "acme_hold.py").write_text(HOOK)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))

    def start(hold_s, ask="1"):
        monkeypatch.setenv("TEST_HOLD_S", hold_s)
        monkeypatch.setenv("TEST_ASK", ask)
        return elastic(script("import time\nprint('trains', flush=True)\ntime.sleep(600)"))

    return start


def test_a_hook_holds_a_stop_and_lets_it_go_on(run):
    err = run("600.0")
    assert "hold: held for 600 s: stopped by signal 15" in err
    assert "hold: acme: level 5" in err


@pytest.mark.parametrize(
    ("hold_s", "line"),
    [
        ("'long'", "hold_s is 'long'; expected a number of seconds"),
        ("-1", "hold_s is -1; expected a number of seconds"),
        ("1 / 0", "hold_s raised ZeroDivisionError: division by zero"),
    ],
)
def test_a_hold_of_no_length_holds_nothing_and_is_told(run, hold_s, line):
    err = run(hold_s)
    assert f"hook 'hold' (acme-hold 1): {line}" in err
    assert "held for" not in err


def test_a_hold_that_blocks_does_not_keep_the_agent_from_signals(start, tmp_path):
    asked = tmp_path / "asked"
    agent = start(f"__import__('pathlib').Path({str(asked)!r}).touch() or __import__('time').sleep(20)", ask="")
    wait_for(lambda: "trains" in agent.out)
    with promised(SIGNALS_S):
        agent.signal(signal.SIGTERM)
        wait_for(asked.exists, what="the agent to act on the first signal")
        threading.Event().wait(URGE_S + 0.1)  # what comes sooner is the same wish
        agent.signal(signal.SIGTERM)
        wait_for(lambda: "second signal: killing the workers" in agent.err)
    assert agent.wait(30) == 143, agent.err  # the end waits for the hook, no longer than its deadline


def test_a_hold_that_blocks_ends_at_the_deadline_of_hooks(start):
    agent = start("__import__('time').sleep(20)")
    with promised(DEADLINE_S):
        assert agent.wait(30) == 143, agent.err
    line = r"hook 'hold' \(acme-hold 1\): hold_s has not returned after (\d+\.\d) s; it is off for the rest"
    (after_s,) = re.findall(line, agent.err)
    assert float(after_s) >= 5.0


def test_a_hold_without_end_is_bounded_by_name(start):
    agent = start("1e9")
    line = "hook 'hold': hold_s is 1e+09; it holds this stop for 3600 s at most"
    wait_for(lambda: line in agent.err)
    wait_for(lambda: "at most 3630 s (held by hook 'hold'); a second signal kills" in agent.err)
    agent.signal(signal.SIGTERM)
    assert agent.wait(30) == 143, agent.err
