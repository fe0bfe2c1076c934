"""The first lines of a failure's report: the seed, what was run, and what that printed."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import what_ran

ROOT = Path(__file__).parents[3]
SCREEN = 30
FAILING = """
import subprocess, sys
from pathlib import Path
from support import Elastic

def test_it(tmp_path):
    subprocess.run([sys.executable, "-c", "print('short')"], capture_output=True, text=True, check=True)
    many = "import sys\\nfor n in range(200): print('line', n)\\nsys.exit(7)"
    subprocess.run([sys.executable, "-c", many], capture_output=True, check=False)
    train = tmp_path / "train.py"
    train.write_text("raise ValueError('label 11')")
    agent = Elastic(tmp_path, ["--max-restarts", "0", str(train)])
    agent.wait()
    agent.close()
    assert 1 == 2

def test_that_starts_nothing():
    assert 3 == 4

def test_whose_error_has_a_cause():
    try:
        {}["x"]
    except KeyError as error:
        raise ValueError("y") from error

def test_that_leaves_a_process():
    subprocess.Popen(["sleep", "0"])

def test_that_comes_after_it():
    pass
"""


@pytest.fixture(scope="module")
def reports(tmp_path_factory):
    """The reports of three failed tests, by their names: the lines below each headline."""
    folder = tmp_path_factory.mktemp("failing")
    (folder / "test_failing.py").write_text(FAILING)
    (folder / "pytest.ini").write_text("[pytest]\nfilterwarnings = error\n")
    inherited = {k: v for k, v in os.environ.items() if not k.startswith(("PYTEST", "TESTS_"))}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "whole_suite", "-p", "no:cacheprovider", "-n", "1", "test_failing.py"],
        cwd=folder, env=inherited | {"PYTHONPATH": f"{ROOT}/tests", "TESTS_SEED": "7"},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    parts = re.split(r"^_+ (?:ERROR at setup of )?(test_\w+) _+\n", done.stdout, flags=re.MULTILINE)
    assert parts[1::2], done.stdout
    return dict(zip(parts[1::2], map(str.splitlines, parts[2::2]), strict=True))


def test_a_report_begins_with_seed_commands_and_the_end_of_their_output(reports):
    screen = reports["test_it"][:SCREEN]
    assert "seed: 7; again: make test SEED=7 PYTEST_ARGS=test_failing.py::test_it" in screen
    commands = [line for line in screen if line.startswith("$ ")]
    assert commands[0] == "$ python -c 'print('\"'\"'short'\"'\"')'   # exit code 0"
    assert commands[-1].startswith("$ elastic run --rdzv-id ")
    assert commands[-1].endswith("train.py   # exit code 1")
    assert "  short" in screen
    assert "  line 199" in screen
    assert any("ValueError: label 11" in line for line in screen)


def test_the_traceback_follows_on_the_same_screen_or_the_next(reports):
    assert next(n for n, line in enumerate(reports["test_it"]) if line.startswith(">")) < 2 * SCREEN
    nothing = reports["test_that_starts_nothing"]
    assert "seed: 7; again: make test SEED=7 PYTEST_ARGS=test_failing.py::test_that_starts_nothing" in nothing[:3]
    assert any("assert 3 == 4" in line for line in nothing)
    causes = "\n".join(reports["test_whose_error_has_a_cause"])
    assert causes.index("seed: 7") < causes.index("KeyError") < causes.index("ValueError: y")


@pytest.mark.parametrize(
    ("wanted", "room", "shares"),
    [([], 5, []), ([3], 5, [3]), ([9, 9], 5, [3, 2]), ([1, 9, 1], 6, [1, 4, 1]), ([2, 2], 0, [0, 0])],
)
def test_what_one_command_leaves_goes_to_the_others(wanted, room, shares):
    assert what_ran._shares(wanted, room) == shares


def test_a_report_names_the_test_that_has_left_a_process(reports):
    (line,) = (line for line in reports["test_that_comes_after_it"] if line.startswith("left by "))
    assert line == "left by test_failing.py::test_that_leaves_a_process (call): $ sleep 0"


def test_a_process_is_not_reaped_when_it_is_noted(monkeypatch):
    monkeypatch.setattr(subprocess.Popen, "poll", lambda _: pytest.fail("a starter's process is the starter's to reap"))
    with what_ran.noted(), subprocess.Popen([sys.executable, "-c", ""]) as process:
        assert process.returncode is None
