"""A rank that does not enter a collective of NCCL, on real GPUs: the device of the other one waits."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from support import lacks

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(300)]

TRAIN = """
import os, time
import torch, torch.distributed as dist

def load_batch():
    time.sleep(600)  # load

rank = int(os.environ["LOCAL_RANK"])
os.environ["NCCL_SOCKET_IFNAME"] = "lo"
if torch.cuda.device_count() < 2:
    os.environ["NCCL_HOSTID"] = f"host-{rank}"  # NCCL refuses two ranks of one host on one device
device = torch.device("cuda", rank % torch.cuda.device_count())
torch.cuda.set_device(device)
dist.init_process_group("nccl", device_id=device)
print("begun", flush=True)
ones = torch.ones(1000, device="cuda")
for step in range(3):
    dist.all_reduce(ones)
torch.cuda.synchronize()
if rank == 1:
    load_batch()
dist.all_reduce(ones)
torch.cuda.synchronize()
"""


@pytest.fixture(scope="module")
def a_gpu():
    if not any(Path(device).exists() for device in ("/dev/nvidia0", "/dev/kfd")):
        lacks("a GPU")
    count = "import torch; print(torch.cuda.device_count())"
    asked = subprocess.run([sys.executable, "-c", count], capture_output=True, text=True, timeout=120, check=True)
    if int(asked.stdout) < 1:
        lacks("a GPU that torch sees")


@pytest.mark.usefixtures("a_gpu")
def test_rank_that_has_not_entered_a_collective_of_nccl_is_named(elastic, script, tmp_path):
    run_dir = tmp_path / "run"
    agent = elastic("--nproc-per-node", "2", "--hang-timeout", "20", "--run-dir", run_dir, script(TRAIN))
    assert agent.wait(240) == 1, agent.err
    incident = json.loads((run_dir / "incident.json").read_text())
    named = r"rank 1 on \S+ has not entered all_reduce #4 of group default_pg; rank 0 waits for it; it is in train.py:"
    assert re.match(named, incident["summary"]), incident["summary"]
    assert "recorder" in incident["hang"]["evidence"]
    assert incident["hang"]["attribution"]["culprits"] == [1]
