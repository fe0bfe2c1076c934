"""What `make demo-elastic` runs: nodes join, leave and are killed, and the training goes on and learns.

Each change starts workers that import torch; half a minute on two cores.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from patience import patience
from support import processes_with, wait_for

DEMO = Path(__file__).parents[4] / "examples/elastic/demo.py"

pytestmark = [pytest.mark.timeout(300)]


def surroundings(torch_python):
    inherited = {k: v for k, v in os.environ.items() if not k.startswith(("PET_", "ELASTIC_", "TORCHELASTIC_"))}
    mark = f"ELASTIC_EXAMPLE_OF={os.getpid()}"
    env = inherited | {
        "PYTHON_EXEC": torch_python,
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
    }
    return env | dict([mark.split("=")]), mark


def test_nodes_come_and_go_and_the_digits_are_learned(torch_python, tmp_path):
    env, mark = surroundings(torch_python)
    done = subprocess.run(
        [sys.executable, DEMO, tmp_path / "runs"],
        env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        timeout=patience(240),
    )  # fmt: skip
    assert done.returncode == 0, done.stdout
    verdict = done.stdout.splitlines()[-1]
    assert re.match(
        r"demo passed in \d+ s: b joined, c joined, b left, a was killed; 4 membership changes, "
        r"TORCHELASTIC_RESTART_COUNT stayed 0, held-out accuracy 9[5-9]\.\d%$",
        verdict,
    ), verdict
    begun = re.findall(r"^\w \| training from .*: (\d) ranks on cpu, failure restarts 0, membership changes (\d)$",
                       done.stdout, flags=re.MULTILINE)  # fmt: skip
    assert begun == [("1", "0"), ("2", "1"), ("3", "2"), ("2", "3"), ("1", "4")]
    # A round may be stopped between an epoch's checkpoint and its line: then the next one begins with that checkpoint.
    line = r"^\w \| (?:epoch (\d+)/|training from epoch (\d+) of )"
    epochs = [int(a or b) for a, b in re.findall(line, done.stdout, flags=re.MULTILINE)]
    assert sorted(set(epochs)) == list(range(1, max(epochs) + 1))
    wait_for(lambda: not processes_with(mark), what="the end of all that the demo started")


def test_a_demo_that_is_stopped_leaves_nothing(torch_python, tmp_path):
    env, mark = surroundings(torch_python)
    with subprocess.Popen(
        [sys.executable, DEMO, tmp_path / "runs"],
        env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    ) as demo:  # fmt: skip
        next(line for line in demo.stdout if line.startswith("a | training from nothing"))
        demo.terminate()
        assert demo.wait(patience(20)) == 143, demo.stdout.read()
    wait_for(lambda: not processes_with(mark), what="the end of all that the demo started")
