"""What ranks of real process groups do with one folder of checkpoints; run by `test_checkpoints.py`."""

import logging
import os
import resource
import shutil
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor, init_device_mesh

from elastic_train import Checkpointer, CheckpointError, init_process_group

FOLDER = Path(sys.argv[2])
SIZE = 12


def raised(call, *words):
    """Check that all ranks raise the same line."""
    try:
        call()
    except (CheckpointError, ValueError) as error:
        line = str(error)
    else:
        raise AssertionError("nothing was raised")
    assert all(word in line for word in words), line
    assert "\n" not in line
    lines = [None] * dist.get_world_size()
    dist.all_gather_object(lines, line)
    return lines


def sharded(mesh, fill):
    """A tensor with a part on each rank, and one that each has whole."""
    part = distribute_tensor(torch.arange(float(SIZE)) * fill, mesh, [Shard(0)])
    return {"part": part, "whole": distribute_tensor(torch.full((3,), float(fill)), mesh, [Replicate()])}


class Training:
    """A model and an optimizer sharded by FSDP, as one object of a state."""

    def __init__(self, world_size, seed):
        torch.manual_seed(seed)
        self.model = torch.nn.Sequential(torch.nn.Linear(6, 5), torch.nn.ReLU(), torch.nn.Linear(5, 3))
        fully_shard(self.model, mesh=init_device_mesh("cpu", (world_size,)))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.1)

    def step(self):
        self.optimizer.zero_grad()
        loss = self.model(torch.ones(4, 6)).square().sum()
        loss.backward()
        self.optimizer.step()
        return round(loss.item(), 3)

    def state_dict(self):
        model, optimizer = get_state_dict(self.model, self.optimizer)
        return {"model": model, "optimizer": optimizer}

    def load_state_dict(self, state):
        set_state_dict(self.model, self.optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])


def three(group):
    """Save with three ranks, in all ways."""
    one = Checkpointer(FOLDER / "one", keep=2, timeout="2m")
    assert one.latest() is None
    assert one.load() is None
    for step in (1, 2, 3):
        values = torch.full((4,), float(step))
        one.save({"values": values, "rank": group.rank}, step=step, wait=step != 3)
        values.fill_(-1)  # what is saved in the background is what it was
    assert one.latest() == 3
    loaded = one.load()
    assert (loaded.step, loaded.world_size, loaded.state["rank"]) == (3, 3, 0)
    assert loaded.state["values"].tolist() == [3.0] * 4

    each = Checkpointer(FOLDER / "each", files="each")
    each.save({"rank": group.rank}, step=1)
    each.save({"rank": group.rank}, step=2, wait=False)
    each.wait()
    assert each.load().state == {"rank": group.rank}

    parts = Checkpointer(FOLDER / "parts")
    mesh = init_device_mesh("cpu", (3,))
    state = sharded(mesh, 5)
    parts.save({"model": state, "step": 7}, step=7)
    parts.save({"model": state, "step": 8}, step=8, wait=False)
    state["part"].to_local().fill_(-1)
    found = parts.load({"model": sharded(mesh, 0)})
    assert found.state["step"] == 8
    assert found.state["model"]["part"].full_tensor().tolist() == [5.0 * index for index in range(SIZE)]

    training = Training(3, seed=0)
    training.step()
    behind = Checkpointer(FOLDER / "fsdp")
    behind.save({"training": training}, step=1, wait=False)
    losses = torch.tensor([training.step(), training.step()])  # while it is saved
    behind.wait()
    behind.save({"losses": losses}, step=0)

    problems(group, one, each)
    lagging(group)


def problems(group, one, each):
    """One rank's problem is everybody's, and costs nothing that was whole."""
    lines = raised(lambda: one.save({"odd": object() if group.rank == 1 else 1}, step=9), "builtins.object")
    assert "(rank 1 on " in lines[0]
    lines = raised(lambda: one.save({}, step=9 + group.rank % 2), "rank 1 is in save(step=10), rank 0 in save(step=9).")
    assert len(set(lines)) == 1
    raised(lambda: one.save({}, step=9, wait=group.rank != 2), "rank 2 is in save(step=9, wait=False), rank 0 in save(")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    if group.rank == 2:
        resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, limits[1]))
    lines = raised(lambda: each.save({"big": torch.zeros(10_000)}, step=9), "step 9 was not saved", "File too large")
    assert len(set(lines)) == 1
    assert "(rank 2 on " in lines[0]
    assert "Try: more room there" in lines[0]
    if group.rank == 2:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert (one.latest(), each.latest()) == (3, 2)
    each.save({"rank": group.rank}, step=10)
    assert each.latest() == 10


def lagging(group):
    """Each rank has a disk of its own here, and what is saved comes to them one after another."""
    source = FOLDER / "one"
    disk = FOLDER / f"disk{group.rank}"
    names = sorted(entry.name for entry in source.glob("*-step-*"))
    older, newer = names
    shutil.copytree(source / older, disk / older)
    if group.rank != 1:
        shutil.copytree(source / newer, disk / newer)
    mine = Checkpointer(disk)
    assert mine.latest() == 2
    assert mine.load().state["values"].tolist() == [2.0] * 4
    if group.rank == 1:
        shutil.copytree(source / newer, disk / newer)
    assert mine.latest() == 3
    if group.rank == 2:
        file = disk / newer / "state.pt"
        file.write_bytes(file.read_bytes()[:-1] + b"?")
    assert mine.load().step == 2  # its checksum differs for one of them: nobody takes it
    assert mine.latest() == 2
    if group.rank == 0:
        shutil.rmtree(disk)
    dist.barrier()
    raised(
        mine.latest, "sees the checkpoint '00000002-step-2'", "rank 0 on ", "sees none. Try: a folder that all nodes"
    )


def kept(group):
    """In the next group, rank 0 has its Checkpointer of this one, as a process that was kept, and rank 1 a new one."""
    mine = Checkpointer(FOLDER / "kept")
    mine.save({"step": 1}, step=1)
    dist.destroy_process_group()
    dist.init_process_group("gloo", init_method=f"file://{FOLDER}/next", rank=group.rank, world_size=group.world_size)
    if group.rank != 0:
        mine = Checkpointer(FOLDER / "kept")
    mine.save({"step": 2}, step=2)
    assert mine.load().state == {"step": 2}


def two(group):
    """Load with two ranks what three have saved, and leave with a save in the background."""
    kept(group)
    assert Checkpointer(FOLDER / "one").load().world_size == 3
    assert Checkpointer(FOLDER / "each", files="each").load().state == {"rank": group.rank}
    parts = Checkpointer(FOLDER / "parts")
    mesh = init_device_mesh("cpu", (2,))
    raised(parts.load, "is sharded, and there is no sharded tensor to read", "Try: load(state)")
    found = parts.load({"model": sharded(mesh, 0)})
    tensor = found.state["model"]["part"]
    assert isinstance(tensor, DTensor)
    assert tensor.to_local().numel() == SIZE // 2
    assert tensor.full_tensor().tolist() == [5.0 * index for index in range(SIZE)]
    assert found.state["model"]["whole"].to_local().tolist() == [5.0] * 3
    parts.save({"model": found.state["model"]}, step=20, wait=False)
    training, saved = Training(2, seed=1), Checkpointer(FOLDER / "fsdp")
    losses = saved.load().state["losses"].tolist()
    saved.load({"training": training}, step=1)
    torch.testing.assert_close([training.step(), training.step()], losses, rtol=1e-3, atol=1e-3)
    Checkpointer(FOLDER / "one", keep=None).save({"values": torch.zeros(1 << 20)}, step=20, wait=False)


logging.getLogger("elastic_train").setLevel(logging.ERROR)
with init_process_group(timeout="2m") as joined:
    {"three": three, "two": two}[sys.argv[1]](joined)
os.write(1, b"done\n")
os._exit(0)  # torch's meshes keep their groups, whose threads may abort an interpreter that ends
