"""The README's training: `make demo`, and the lines that make a script lose no step."""

import os
import re
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from patience import patience
from support import wait_for

ROOT = Path(__file__).resolve().parents[3]
README = (ROOT / "README.md").read_text()

pytestmark = [pytest.mark.timeout(600)]

AROUND = """
import os
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

os.chdir(Path(__file__).parent)
dist.init_process_group("gloo")
data = torch.rand(64, 8)
model = DistributedDataParallel(torch.nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


def train(model, batch, optimizer):
    optimizer.zero_grad()
    model(batch).square().mean().backward()
    optimizer.step()
    os.write(1, f"{dist.get_rank()} {globals().get('step')}{os.linesep}".encode())
    time.sleep(float(os.environ["STEP_S"]))


"""
STEPS = 20
"""Ten epochs of two steps: 64 samples, two ranks, 16 samples a batch."""


@pytest.fixture
def run(elastic, script):
    """Return a function that starts two workers with the README's lines: those before (`-`) or after (`+`)."""
    (block,) = re.findall(r"```diff\n(\+from elastic_train.*?)```", README, re.DOTALL)

    def run(side, *, step_s):
        text = AROUND + "".join(line[1:] for line in block.splitlines(keepends=True) if line[0] in f" {side}")
        words = ("--nproc-per-node", "2", "--omp-threads", "1")
        return elastic(*words, script(text), env={"STEP_S": str(step_s)})

    return run


def test_the_script_trains_before_the_change(run):
    agent = run("-", step_s=0)
    assert agent.wait(120) == 0, agent.err
    assert Counter(agent.out.splitlines()) == {"0 None": STEPS, "1 None": STEPS}


def test_the_changed_script_loses_no_step_to_a_planned_stop(run):
    first = run("+", step_s=0.3)
    wait_for(lambda: "0 2\n" in first.out, within_s=60, what="the third step")
    first.signal(signal.SIGTERM)
    assert first.wait(60) == 143, first.err
    second = run("+", step_s=0)
    assert second.wait(120) == 0, second.err
    assert len(second.out.splitlines()) < 2 * (STEPS - 2)
    done = Counter((first.out + second.out).splitlines())
    assert done == {f"{rank} {step}": 1 for rank in (0, 1) for step in range(STEPS)}


def test_make_demo_trains_through_a_crash(torch_python):
    venv = os.path.relpath(sys.prefix, ROOT)
    inherited = {k: v for k, v in os.environ.items() if not k.startswith(("PET_", "ELASTIC_"))}
    done = subprocess.run(
        ["make", "--no-print-directory", f"VENV={venv}", f"--old-file={venv}/.for-use", "demo"],
        cwd=ROOT, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=patience(200), check=False,
        env=inherited | {"OMP_NUM_THREADS": "1", "PYTHON_EXEC": torch_python},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines()[-1].startswith("demo passed: a worker crashed in epoch 8"), done.stdout
