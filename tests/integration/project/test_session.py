"""How a session of tests runs: what its processes inherit, what it draws from, what it says in the end, its limits."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import patience

ROOT = Path(__file__).parents[3]
TESTS = """
import os, signal, subprocess, sys
import pytest
from support import lacks

ASKED = "import signal; print([int(signal.getsignal(n) is signal.SIG_IGN) for n in (1, 2, 3, 15)])"

def test_child():
    done = subprocess.run([sys.executable, "-c", ASKED], capture_output=True, text=True)
    assert done.stdout == "[0, 0, 0, 0]\\n"

def test_a_hangup_of_the_terminal_ends_no_tests():
    os.kill(os.getpid(), signal.SIGHUP)

@pytest.mark.parametrize("n", range(3))
def test_server(n):
    lacks("redis-server", install="apt-get install redis-server")

def test_device():
    lacks("a GPU")

def test_other():
    pytest.skip("not today")
"""


def session(folder, *args, **env):
    """Run these tests from a shell that ignores signals; return what was printed, and what make's verdict adds."""
    (folder / "test_it.py").write_text(TESTS)
    inherited = {k: v for k, v in os.environ.items() if not k.startswith(("PYTEST_", "TESTS_")) and k != "CI"}
    paths = {"PYTHONPATH": f"{ROOT}/tests", "TESTS_SKIPPED": str(folder / "skipped")}
    pytest_ = [sys.executable, "-m", "pytest", "-p", "whole_suite", "-p", "no:cacheprovider", *args, "test_it.py"]
    done = subprocess.run(
        ["sh", "-c", 'trap "" HUP INT QUIT TERM; exec "$@"', "sh", *pytest_],
        cwd=folder, env=inherited | paths | env, capture_output=True, text=True, check=False,
    )  # fmt: skip
    return done.stdout, (folder / "skipped").read_text()


@pytest.mark.parametrize("jobs", ["0", "1"])
def test_what_tests_start_has_default_signals_and_a_hangup_ends_no_session(tmp_path, jobs):
    out, _ = session(tmp_path, "-n", jobs)
    assert "2 passed" in out, out


def test_it_says_what_was_skipped_for_want_of_what_and_how_to_draw_the_same(tmp_path):
    out, skipped = session(tmp_path, TESTS_SEED="7")
    assert skipped == (
        "; 3 skipped for want of redis-server. Try: apt-get install redis-server"
        "; 1 skipped for want of a GPU; 1 skipped for other reasons"
    )
    assert "seed: 7; again: make test-all SEED=7" in out


def test_in_ci_what_can_be_installed_is_not_skipped(tmp_path):
    out, skipped = session(tmp_path, CI="true")
    assert "not possible for want of redis-server" in out
    assert skipped == "; 1 skipped for want of a GPU; 1 skipped for other reasons"


@pytest.fixture
def machine(monkeypatch):
    """A machine on which the start of a process takes as long as the test says."""
    monkeypatch.delenv("TESTS_SLOWNESS", raising=False)
    monkeypatch.delenv("CI", raising=False)

    def takes(start_s, load=0.0):
        monkeypatch.setattr(patience, "_start_s", lambda: start_s)
        monkeypatch.setattr(os, "getloadavg", lambda: (load * os.cpu_count(), 0.0, 0.0))

    return takes


def test_limits_grow_with_the_start_of_a_process_and_never_shrink(machine):
    machine(0.001)
    assert patience.patience(10) == 10
    machine(0.06)
    assert patience.patience(10) == 10, "measured once"
    assert patience.slowness(now=True) == 3
    machine(0.001)
    assert patience.slowness(now=True) == 3
    machine(0.001, load=4)  # as many want each core: the start of a process is favoured
    assert patience.slowness(now=True) == 4
    machine(60)
    assert patience.slowness(now=True) == patience.MOST


def test_tests_that_will_run_side_by_side_are_counted_before_they_do(machine):
    machine(0.001)
    patience.expect(3 * os.cpu_count())
    assert patience.patience(10) == 30
    patience.expect(1)
    assert patience.patience(10) == 30
    patience.expect(99 * os.cpu_count())
    assert patience.slowness() == patience.MOST


def test_a_promise_is_exact_where_the_machine_is_idle_and_scales_where_it_is_not(machine, monkeypatch):
    machine(0.001)
    patience.kept(1.0, 1.0)
    with pytest.raises(AssertionError, match=r"took 1.10 s; promised are 1 s, here 1.00 s"):
        patience.kept(1.1, 1.0)
    machine(0.04)
    patience.kept(1.9, 1.0)
    with pytest.raises(AssertionError, match="times as slow"):
        patience.kept(2.1, 1.0)
    monkeypatch.setenv("CI", "true")
    patience.kept(19, 1.0)
    with pytest.raises(AssertionError):
        patience.kept(21, 1.0)
