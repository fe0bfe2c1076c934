"""Kept workers with groups of NCCL, on one GPU: left while they wait for the device, with a new group afterwards."""

import os
import signal
from pathlib import Path

import pytest

from fake_agent import WAIT_S, marked
from support import lacks

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(300)]

PROGRAM = """
import os
rank = int(os.environ["LOCAL_RANK"])
os.environ["NCCL_SOCKET_IFNAME"] = "lo"
os.environ["NCCL_HOSTID"] = f"host-{rank}"  # NCCL refuses two ranks of one host on one device
import torch, torch.distributed as dist
import elastic_warm as warm
from threading import Event

device = torch.device("cuda", 0)
torch.cuda.set_device(device)

@warm.rounds
def train():
    dist.init_process_group("nccl", device_id=device)
    ones = torch.ones(1000, device=device)
    dist.all_reduce(ones)
    torch.cuda.synchronize()
    print("sum", int(ones[0]), torch.cuda.memory_reserved(), flush=True)
    warm.should_stop()
    if os.environ["LAST"] == "yes":
        dist.destroy_process_group()
        return
    if dist.get_rank() == 1:
        print("idle", flush=True)
        Event().wait(600)
    print("blocks", flush=True)
    dist.all_reduce(ones)
    torch.cuda.synchronize()

train()
"""


@pytest.fixture(scope="module")
def a_gpu():
    if not Path("/dev/nvidia0").exists():
        lacks("a GPU")


@pytest.fixture(autouse=True)
def kept_with_nccl(monkeypatch):
    monkeypatch.setenv("TRAINING_WARM_NCCL", "1")


@pytest.mark.usefixtures("a_gpu")
@pytest.mark.parametrize("how", ["killed", "stopped", "healthy"])
def test_a_worker_leaves_a_group_of_nccl(agent, how):
    zero, one = agent.begin(PROGRAM, 2, LAST="no")
    last = 2
    for number in range(last + 1):
        marked(zero, number, "sum 2")
        if number == last:
            break
        marked(one, number, "idle")
        marked(zero, number, "blocks")
        if how != "healthy":
            os.kill(one.pid, signal.SIGKILL if how == "killed" else signal.SIGSTOP)
        agent.leave(zero, number)
        if how == "healthy":
            agent.leave(one, number)
            one.expect("left", round=number)
        left = zero.expect("left", round=number)
        print(how, left["ms"], left["held"])
        agent.new_port()
        more = {"LAST": "yes" if number + 1 == last else "no"}
        if how != "healthy":
            agent.end(one)
            (one,) = agent.start(PROGRAM, number + 1, 2, [1], **more)
            agent.accept(1)
        else:
            agent.place(one, number + 1, 1, 2, **more)
        agent.place(zero, number + 1, 0, 2, **more)
    for worker in (zero, one):
        assert worker.process.wait(WAIT_S) == 0
