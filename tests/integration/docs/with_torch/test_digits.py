"""The main job on real input: handwritten digits, two workers, gloo, a crash half-way, the checkpoint.

Each run imports torch in two workers; together about twenty seconds on two cores.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from patience import patience
from ports import free_port

DIGITS = Path(__file__).parents[4] / "examples/digits/train.py"
EPOCHS, CRASH_AT = 15, 7

pytestmark = [pytest.mark.timeout(300)]


def train(elastic, *options, workers=2, epochs=EPOCHS, before=(), **kw):
    return elastic(
        *before,
        *("--nproc-per-node", workers, "--max-restarts", 2, "--omp-threads", 1),
        *(DIGITS, "--device", "cpu", "--epochs", epochs, *options),
        **kw,
    )


def losses(text):
    return dict(re.findall(r"^epoch (\d+)/\d+: loss ([\d.]+),", text, flags=re.MULTILINE))


def accuracy(text):
    (percent,) = re.findall(r"^held-out accuracy: ([\d.]+)%$", text, flags=re.MULTILINE)
    return float(percent)


def test_a_crash_costs_half_an_epoch_and_nothing_else(elastic, tmp_path):
    crashed = train(elastic, "--checkpoint", tmp_path / "crashed.pt", "--crash-at-epoch", CRASH_AT)
    assert crashed.wait(120) == 0, crashed.err
    straight = train(elastic, "--checkpoint", tmp_path / "straight.pt")
    assert straight.wait(120) == 0, straight.err

    assert "training from nothing: 2 ranks on cpu" in crashed.out
    assert f"training from epoch {CRASH_AT} of " in crashed.out
    assert (tmp_path / "crashed.pt.crashed").exists()
    assert not (tmp_path / "crashed.pt.tmp").exists()
    assert "RuntimeError: a crash, as --crash-at-epoch asked for" in crashed.err
    assert accuracy(crashed.out) > 95
    # Weights, optimizer and random state were taken up: every epoch is the one of the run that nothing interrupted.
    assert len(losses(crashed.out)) == EPOCHS
    assert losses(crashed.out) == losses(straight.out)
    assert accuracy(crashed.out) == accuracy(straight.out)
    assert not crashed.survivors()
    assert not list(crashed.runtime.glob("elastic-*/*-*")), "a successful run leaves no run directory"


def test_a_run_goes_on_with_another_number_of_workers(elastic, tmp_path):
    checkpoint = tmp_path / "digits.pt"
    first = train(elastic, "--checkpoint", checkpoint, "--min-accuracy", 0, epochs=2)
    assert first.wait(120) == 0, first.err
    second = train(elastic, "--checkpoint", checkpoint, workers=1, epochs=12)
    assert second.wait(120) == 0, second.err
    assert "training from epoch 2 of " in second.out
    assert ": 1 ranks on cpu" in second.out
    assert accuracy(second.out) > 95


def test_two_static_nodes_crash_and_go_on_together(elastic, tmp_path):
    """Each node restarts on its own account: one because its worker raised, the other because its peer was gone."""
    endpoint = f"127.0.0.1:{free_port()}"
    options = ("--checkpoint", tmp_path / "digits.pt", "--crash-at-epoch", 1, "--min-accuracy", 0)
    agents = [
        train(
            elastic,
            *options,
            workers=1,
            epochs=3,
            before=("--nnodes", 2, "--node-rank", n, "--rdzv-endpoint", endpoint),
        )
        for n in (0, 1)
    ]
    for agent in agents:
        assert agent.wait(120) == 0, agent.err
        assert "restart 1 of 2" in agent.err
    assert "training from nothing: 2 ranks on cpu" in agents[0].out
    assert "training from epoch 1 of " in agents[0].out
    assert accuracy(agents[0].out) > 80
    assert agents[1].out == ""


def test_too_little_learned_is_an_exit_code(elastic, tmp_path):
    agent = elastic(
        *("--nproc-per-node", 1, DIGITS, "--device", "cpu", "--epochs", 0),
        *("--checkpoint", tmp_path / "digits.pt"),
    )
    assert agent.wait(120) == 1
    assert accuracy(agent.out) < 50
    assert "below --min-accuracy 95.0%" in agent.err


def test_the_script_runs_under_torchrun_as_it_is(tmp_path, torch_python):
    imports = [line for line in DIGITS.read_text().splitlines() if re.match(r"\s*(import|from) ", line)]
    assert imports
    assert not [line for line in imports if "elastic" in line]
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"]
    options = ["--device", "cpu", "--epochs", str(EPOCHS), "--checkpoint", str(tmp_path / "digits.pt")]
    inherited = {k: v for k, v in os.environ.items() if not k.startswith(("PET_", "ELASTIC_"))}
    done = subprocess.run(
        [*torchrun, str(DIGITS), *options],
        env=inherited | {"OMP_NUM_THREADS": "1", "PYTHON_EXEC": torch_python},
        cwd=tmp_path,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=patience(200),
    )
    assert done.returncode == 0, done.stderr
    assert accuracy(done.stdout) > 95
