"""The example of warm rounds while its workers are killed: it ends with the weights of a run that was not disturbed."""

import json
import os
import random
import re
import signal
import sys
import time
from pathlib import Path

import pytest

from support import wait_for

TRAIN = Path(__file__).parents[3] / "examples/warm/train.py"
OPTIONS = ("--nproc-per-node", "2", "--omp-threads", "1", "--standby")


def weights(text):
    (line,) = re.findall(r"held-out accuracy: (\d+\.\d)%, weights (\w+)", text)
    assert float(line[0]) > 90
    return line[1]


def pids(run_dir):
    """Return the workers of the status; none while it is being written for another round."""
    try:
        workers = json.loads((run_dir / "status.json").read_text())["workers"]
    except (OSError, ValueError, KeyError):
        return []
    return [worker["pid"] for worker in workers if worker.get("pid")]


@pytest.mark.parametrize(
    ("kills", "steps", "pause_s"),
    [
        pytest.param(3, 900, 0.0, id="3"),
        pytest.param(60, 6000, 2.0, marks=[pytest.mark.chaos_full], id="two minutes"),
    ],
)
@pytest.mark.timeout(600)
def test_survivors_keep_running_and_no_bit_differs(elastic, tmp_path, kills, steps, pause_s):
    env = {"PYTHON_EXEC": sys.executable}  # interpreters of their own, which can be killed
    undisturbed = elastic(*OPTIONS, TRAIN, "--steps", steps, env=env)
    assert undisturbed.wait(200) == 0, undisturbed.err
    rng = random.Random(f"{os.environ['TESTS_SEED']} warm digits")
    run_dir = tmp_path / "run"
    budget = ("--max-restarts", kills, "--restart-backoff", 0, "--run-dir", run_dir, "--timings")
    words = ("--steps", steps, "--log-steps", 1, "--step-s", 0.005 + pause_s / 100)
    agent = elastic(*OPTIONS, *budget, TRAIN, *words, env=env)
    killed = set()
    for number in range(kills):
        # At any step but the first of a round, before which no process is kept. Rank 0 prints a step when it has
        # committed it, and the other rank may not have done so before the next one is printed.
        line = f"round {number}: from step "
        wait_for(lambda line=line: agent.out.partition(line)[2].count("\nstep ") > 1, within_s=60, what=line)
        # The status is written beside the run: it may still name the worker that was killed last.
        both = wait_for(
            lambda: len(found := pids(run_dir)) == 2 and killed.isdisjoint(found) and found,
            within_s=60, what="two workers",
        )  # fmt: skip
        if pause_s:  # the kills of the long form come by the clock
            time.sleep(pause_s)  # noqa: TID251
        victim = rng.choice(both)
        killed.add(victim)
        os.kill(victim, signal.SIGKILL)
    assert agent.wait(300) == 0, agent.err
    assert weights(agent.out) == weights(undisturbed.out)
    begun = [int(step) for step in re.findall(r"round \d+: from step (\d+)", agent.out)]
    assert len(begun) == kills + 1
    assert begun == sorted(begun), "no step was lost that was committed"
    assert len(re.findall(r"spawn \(1 of 2 kept", agent.err)) == kills, agent.err
    assert agent.survivors() == []
