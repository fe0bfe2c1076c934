"""Runs on real GPUs: one worker each, chosen devices, nccl, and memory that is free again before a restart."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from support import lacks

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(300)]

DIGITS = Path(__file__).parents[4] / "examples/digits/train.py"
REPORT = (
    "import json, os, torch\n"
    "torch.cuda.set_device(int(os.environ['LOCAL_RANK']))\n"
    "free, total = torch.cuda.mem_get_info()\n"
    "seen = {'rank': int(os.environ['RANK']), 'world': int(os.environ['WORLD_SIZE']), 'free': free, 'total': total,\n"
    "        'visible': os.environ.get('CUDA_VISIBLE_DEVICES'), 'count': torch.cuda.device_count(),\n"
    "        'round': int(os.environ['ELASTIC_ROUND'])}\n"
    "os.write(1, (json.dumps(seen) + os.linesep).encode())\n"
)


@pytest.fixture(scope="module")
def gpu_count():
    asked = subprocess.run(
        [sys.executable, "-c", "import torch; print(torch.cuda.device_count())"],
        capture_output=True, text=True, timeout=120, check=True,
    )  # fmt: skip
    count = int(asked.stdout)
    if count < 1:
        lacks("a GPU that torch sees")
    return count


def test_one_worker_for_each_gpu(elastic, script, gpu_count):
    agent = elastic("--nproc-per-node", "gpu", script(REPORT))
    assert agent.wait(120) == 0, agent.err
    assert sorted(line["rank"] for line in agent.lines()) == list(range(gpu_count))
    assert {line["world"] for line in agent.lines()} == {gpu_count}


def test_chosen_device_is_the_only_one_that_workers_see(elastic, script, gpu_count):
    agent = elastic("--devices", str(gpu_count - 1), script(REPORT))
    assert agent.wait(120) == 0, agent.err
    (line,) = agent.lines()
    assert line["visible"] == str(gpu_count - 1)
    assert line["count"] == 1


def test_digits_with_nccl_survive_a_crash(elastic, gpu_count, tmp_path):
    agent = elastic(
        "--nproc-per-node", "gpu", "--max-restarts", "2", DIGITS, "--device", "cuda", "--epochs", "12",
        "--checkpoint", tmp_path / "digits.pt", "--crash-at-epoch", "5", "--crash-rank", str(gpu_count - 1),
    )  # fmt: skip
    assert agent.wait(240) == 0, agent.err
    assert f"{gpu_count} ranks on cuda" in agent.out
    assert "training from epoch 5" in agent.out
    assert "held-out accuracy: 9" in agent.out


def test_device_memory_is_free_again_before_the_restart(elastic, script, gpu_count):
    hog = REPORT + (
        "block = torch.empty(int(total * 0.7), dtype=torch.uint8, device='cuda')\n"
        "block.fill_(1)\ntorch.cuda.synchronize()\n"
        "if seen['round'] == 0:\n    os.kill(os.getpid(), 9)\n"
    )
    agent = elastic("--max-restarts", "1", script(hog))
    assert agent.wait(120) == 0, agent.err
    first, second = agent.lines()
    assert second["free"] >= 0.9 * first["free"], json.dumps([first, second])
