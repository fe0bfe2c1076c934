"""What `make test` and its siblings start, count and say: scripts/run_tests.py, in a tree of the test's own."""

import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from patience import patience
from support import wait_for
from tiers import TIERS, not_run, tier_of

ROOT = Path(__file__).parents[3]
HELPERS = ("whole_suite", "tiers", "what_ran", "support", "patience", "ports")
BUSY = """
import pathlib, resource, subprocess, sys, time
ORPHAN = '''
import os, pathlib, sys, time
while time.process_time() < 1.5: pass
pathlib.Path(sys.argv[1]).write_text(str(os.getpid()) + ".")
'''

def test_passes():
    pass

def test_leaves_an_orphan_that_works(tmp_path, request):
    over = tmp_path / "over"
    start = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {ORPHAN!r}, {str(over)!r}])"
    subprocess.run([sys.executable, "-c", start], check=True)
    while not (over.exists() and over.read_text().endswith(".")):
        time.sleep(0.01)
    while pathlib.Path("/proc", over.read_text()[:-1]).exists():  # the runner reaps it
        time.sleep(0.01)
    spent = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    (request.config.rootpath / "spent").write_text(str(sum(each.ru_utime + each.ru_stime for each in spent)))
"""


@pytest.fixture
def tree(tmp_path):
    """A tree with the scripts and helpers of ours, and a test in each of some tiers."""
    for name in ("scripts/run_tests.py", *(f"tests/{name}.py" for name in HELPERS)):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    (tmp_path / "pyproject.toml").write_text(
        "[tool.pytest.ini_options]\n"
        'addopts = "-p whole_suite --import-mode=importlib"\npythonpath = ["tests"]\ntestpaths = ["tests"]\n'
    )
    (tmp_path / "tests/test_busy.py").write_text(BUSY)
    for folder in ("with_torch", "with_servers"):
        (tmp_path / "tests" / folder).mkdir()
        (tmp_path / "tests" / folder / "test_it.py").write_text(f"def test_{folder}():\n    pass\n")
    return tmp_path


def command(tree, *words):
    return [sys.executable, tree / "scripts/run_tests.py", *words]


def environment(**more):
    inherited = {k: v for k, v in os.environ.items() if not k.startswith(("PYTEST", "TESTS_")) and k != "CI"}
    return inherited | {"TESTS_SEED": "7"} | more


def run(tree, *words, **more):
    return subprocess.run(
        command(tree, *words), env=environment(**more), capture_output=True, text=True, check=False,
        timeout=patience(60),
    )  # fmt: skip


def test_a_tier_is_run_alone_and_the_last_line_names_the_others_and_their_targets(tree):
    done = run(tree, "test")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 passed" in done.stdout
    assert "seed: 7; again: make test SEED=7\n" in done.stdout
    last = done.stdout.splitlines()[-1]
    assert re.match(r"make test: all tests passed in \d+ s, \d+ s of CPU; not run: ", last), last
    for tier, what in [*TIERS.items()][1:]:
        assert f"{what} (make {tier})" in last
    assert last.endswith("; make test-all runs everything")


def test_cpu_seconds_include_those_of_orphans(tree):
    done = run(tree, "test", "--", "-k", "orphan")
    assert "1 passed" in done.stdout, done.stdout
    (counted_s,) = map(int, re.findall(r"^CPU: (\d+) s", done.stdout, re.MULTILINE))
    without_s = float((tree / "spent").read_text())  # what pytest itself and what it has reaped had taken by then
    assert counted_s + 0.5 >= without_s + 1.4  # what is counted is rounded; the kernel counts in ticks


def test_pytest_gets_what_stands_behind_the_separator(tree):
    assert run(tree, "test", "--", "--no-such-option").returncode == 4


def test_bytecode_is_written_without_a_test_run(tree):
    done = run(tree, "--compile", "test", PYTHONDONTWRITEBYTECODE="")
    assert (done.returncode, done.stdout) == (0, "compiling the tests\n"), done.stdout + done.stderr
    compiled = {path.name.partition(".")[0] for path in (tree / "tests").rglob("*.pyc")}
    assert {"test_busy", "whole_suite"} <= compiled
    assert "test_it" not in compiled, "it is of other tiers"


def test_apart_the_first_tier_has_a_session_of_its_own_and_all_are_counted(tree):
    done = run(tree, "--apart", "--name", "test-all", *TIERS)
    assert done.returncode == 0, done.stdout + done.stderr
    assert [int(count) for count in re.findall(r"(\d+) passed", done.stdout)] == [2, 2]
    last = done.stdout.splitlines()[-1]
    assert re.fullmatch(r"make test-all: all tests passed in \d+ s, \d+ s of CPU", last), last


def test_a_failure_in_the_first_session_is_the_verdict_of_all(tree):
    (tree / "tests/test_busy.py").write_text("def test_it():\n    assert 0\n")
    done = run(tree, "--apart", "--name", "test-all", *TIERS)
    assert done.returncode == 1
    assert done.stdout.splitlines()[-1] == "make test-all: FAILED in test, pytest's exit code is 1"
    assert "2 passed" in done.stdout, "the other tiers are run all the same"


def test_in_ci_the_last_word_of_a_good_run_is_pytests_summary(tree):
    done = run(tree, "test-torch", CI="true")
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"=+ 1 passed in [\d.]+s =+$", done.stdout.splitlines()[-1]), done.stdout


def test_where_a_selection_is_in_no_tier_it_says_so(tree):
    done = run(tree, "--apart", "--name", "test-all", *TIERS, "--", "-k", "with_servers")
    assert done.returncode == 0, done.stdout
    done = run(tree, "--apart", "--name", "test-all", *TIERS, "--", "-k", "nothing_of_this_name")
    assert done.returncode == 5


def test_a_signal_ends_pytest_which_says_what_it_has_run(tree):
    (tree / "tests/test_busy.py").write_text(
        "import pathlib, time\ndef test_it():\n    pathlib.Path('begun').touch()\n    time.sleep(60)\n"
    )
    with subprocess.Popen(
        command(tree, "test"), env=environment(), stdout=subprocess.PIPE, text=True, cwd=tree
    ) as made:
        wait_for((tree / "begun").exists, what="the test's begin")
        made.send_signal(signal.SIGTERM)
        made.communicate(timeout=patience(30))
    assert made.returncode != 0


def test_an_interrupt_of_all_is_no_failure_of_a_test(tree):
    (tree / "tests/test_busy.py").write_text(
        "import pathlib, time\ndef test_it():\n    pathlib.Path('begun').touch()\n    time.sleep(60)\n"
    )
    with subprocess.Popen(
        command(tree, "test"), env=environment(), stdout=subprocess.PIPE, text=True, cwd=tree, start_new_session=True
    ) as made:
        wait_for((tree / "begun").exists, what="the test's begin")
        os.killpg(made.pid, signal.SIGINT)
        out, _ = made.communicate(timeout=patience(30))
    assert made.returncode == 2
    assert out.splitlines()[-1] == "make test: interrupted in test, pytest's exit code is 2"


@pytest.mark.parametrize(
    ("path", "tier"),
    [
        ("tests/unit/agent/test_machine.py", "test"),
        ("plugins/torchrun/tests/integration/with_torch/test_data.py", "test-torch"),
        ("tests/chaos/test_etcd.py", "test-system"),
        ("tests/chaos/with_torch/test_right_error_of_torch.py", "test-torch"),
        ("plugins/rdzv_etcd/tests/with_servers/test_v2_run.py", "test-servers"),
    ],
)
def test_the_innermost_folder_decides(path, tier):
    assert tier_of(path) == tier
    assert (ROOT / path).exists()


def test_nothing_is_left_out_of_all():
    assert not_run({*TIERS}) == ""
