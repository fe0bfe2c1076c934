"""`make mutants`: the seeded faults of this repository apply, and the script tells a caught fault from a survivor."""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest

from support import lacks
from tiers import TEST, tier_of

ROOT = Path(__file__).parents[3]
SCRIPT = ROOT / "scripts/mutants.py"
spec = importlib.util.spec_from_file_location("mutants", SCRIPT)
script = importlib.util.module_from_spec(spec)
spec.loader.exec_module(script)

SOURCE = "def most(a, b):\n    return a if a > b else b\n\n\ndef least(a, b):\n    return a if a < b else b\n"
TESTS = "from thing import most\n\ndef test_most():\n    assert most(1, 2) == 2\n"
FILE, TEST_FILE = "src/thing/__init__.py", "tests/unit/test_most.py"
CAUGHT = {"name": "most-is-least", "line": "a > b", "fault": "a < b"}
SURVIVOR = {"name": "least-is-most", "line": "a < b", "fault": "a > b"}
BROKEN = {"name": "import-fails", "line": "def most", "fault": "import gone\n\n\ndef most"}


@pytest.fixture
def tree(tmp_path):
    """A repository with one package and one test file."""
    root = tmp_path / "tree"
    for name, text in {FILE: SOURCE, TEST_FILE: TESTS, "pyproject.toml": ""}.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    try:
        subprocess.run(["git", "init", "-q", str(root)], check=True)
    except FileNotFoundError:
        lacks("git", install="apt-get install git")
    return root


def write(tree, *tables):
    """Write a file of faults; each has the tree's file and tests unless it names others."""
    path = tree / "faults.toml"
    entries = [{"file": FILE, "tests": [TEST_FILE], **table} for table in tables]
    lines = (f"{key} = {json.dumps(value)}" for entry in entries for key, value in entry.items())  # valid TOML, too
    path.write_text("".join(f"[[mutant]]\n{line}\n" if line.startswith("file") else f"{line}\n" for line in lines))
    return path


def check(tree, *tables):
    """Run the script on the tree; return its exit code and what it printed."""
    command = [sys.executable, str(SCRIPT), "--faults", str(write(tree, *tables)), "--root", str(tree), "--jobs", "1"]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    assert (tree / FILE).read_text() == SOURCE
    return done.returncode, done.stdout.splitlines()


# --- the faults of this repository


def test_every_fault_applies():
    mutants, problems = script.load(ROOT / "tests/mutants.toml", ROOT)
    assert problems == []
    assert [mutant.file for mutant in mutants] == sorted(mutant.file for mutant in mutants)
    fast = [mutant for mutant in mutants if all(tier_of(test) == TEST for test in mutant.tests)]
    assert (len(mutants), len(fast) >= 36) == (64, True)


def test_every_distribution_has_a_fault():
    mutants, _ = script.load(ROOT / "tests/mutants.toml", ROOT)
    distributions = {path.parent.name for path in ROOT.glob("plugins/*/pyproject.toml")} | {"elastic_core"}
    assert distributions == {mutant.file.split("/")[1] for mutant in mutants}


# --- the script


def test_a_caught_fault_is_named_with_the_test_that_caught_it(tree):
    code, lines = check(tree, CAUGHT)
    assert code == 0, lines
    assert any(line.split()[:3] == ["most-is-least", f"{FILE}:2", f"{TEST_FILE}::test_most"] for line in lines)
    assert lines[-1].startswith("make mutants: all 1 fault is caught, 1 of them by files of make test; ")


def test_a_survivor_and_a_test_file_that_can_not_be_imported_are_failures(tree):
    code, lines = check(tree, SURVIVOR, BROKEN)
    assert code == 1, lines
    assert lines[-1] == (
        "make mutants: FAILED: 1 of 2 faults survive: least-is-most; 1 of 2 faults ended in an error: import-fails"
    )
    (line,) = [line for line in lines if line.startswith("import-fails")]
    assert "error: pytest exit code 2 (ModuleNotFoundError: No module named 'gone')" in line


def test_tests_that_fail_without_a_fault_are_named(tree):
    (tree / TEST_FILE).write_text(TESTS.replace("== 2", "== 1"))
    code, lines = check(tree, CAUGHT)
    ending = f"pytest exit code 1 ({TEST_FILE}::test_most); expected passed tests"
    assert code == 2
    assert lines == [f"mutants.py: control run of {TEST_FILE}: {ending}. Try: python -m pytest {TEST_FILE}"]


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"line": "a >= b"}, f"the line occurs 0 times in {FILE}; expected exactly once. Try: the line as it is now, "),
        ({"line": "return a"}, f"the line occurs 2 times in {FILE}; expected exactly once. Try: a longer part"),
        ({"fault": "a > b"}, "the fault equals the line; expected a change"),
        ({"fault": "a >"}, "the fault does not compile ("),
        ({"file": "src/gone.py"}, "source file 'src/gone.py' is missing; expected a file of the tree"),
        ({"tests": ["tests/gone.py"]}, "test file 'tests/gone.py' is missing; expected a file of the tree"),
        ({"tests": []}, "no test file; expected at least one"),
        ({"name": SURVIVOR["name"]}, "2 tables have this name; expected one"),
        ({"name": "Most is least"}, "the name is not kebab-case; expected a-z, 0-9 and dashes"),
        ({"why": "x"}, "Object contains unknown field `why`; expected name, file, line, fault and tests"),
    ],
)
def test_a_fault_that_does_not_apply_is_named_and_nothing_runs(tree, capsys, monkeypatch, change, problem):
    monkeypatch.setattr(script, "check", lambda *args, **options: pytest.fail("a run was started"))
    path = write(tree, CAUGHT | change, SURVIVOR)
    assert script.main(["--faults", str(path), "--root", str(tree)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"mutants.py: mutant {(CAUGHT | change)['name']!r}: {problem}")
    assert "Try: " in line


def test_faults_are_listed_and_one_that_does_not_exist_is_named(tree, capsys):
    own = ["--faults", str(write(tree, CAUGHT, SURVIVOR)), "--root", str(tree)]
    assert script.main([*own, "--list", "--only", "least-is-most"]) == 0
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert rows == [["FAULT", "PLACE", "TESTS"], ["least-is-most", f"{FILE}:6", TEST_FILE]]
    assert script.main([*own, "--only", "gone"]) == 2
    assert "--only 'gone': no fault has this name" in capsys.readouterr().err


def test_a_run_that_exceeds_its_limit_is_killed(tree, tmp_path):
    (tree / TEST_FILE).write_text("import time\n\ndef test_it():\n    time.sleep(600)\n")
    run = script.Runner([script.Copy(tree, tmp_path / "copy")], 0.2).run([TEST_FILE])
    assert (run.code, run.good, run.caught) == (None, False, False)
    assert run.ending.startswith("pytest was killed after ")


def test_a_package_that_python_imports_from_elsewhere_is_an_error(tree, tmp_path):
    package = tree / "plugins/own/src/sys/__init__.py"  # built in, so no path can come before it
    package.parent.mkdir(parents=True)
    package.write_text("")
    with pytest.raises(RuntimeError, match="package 'sys': Python imports built-in; expected a file below"):
        script.Copy(tree, tmp_path / "copy")
