"""FSDP2's fully_shard, checkpoints by torch.distributed.checkpoint."""

import os
import shutil
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from fault import SAVE_EVERY, STEPS, step
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

dist.init_process_group("gloo")
mesh = init_device_mesh("cpu", (dist.get_world_size(),))
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 8))
for layer in (model[0], model[2]):
    fully_shard(layer, mesh=mesh)
fully_shard(model, mesh=mesh)
optimizer = torch.optim.Adam(model.parameters())


def state():
    of_model, of_optimizer = get_state_dict(model, optimizer)
    return {"model": of_model, "optimizer": of_optimizer}


first = max((int(path.name[5:]) for path in Path().glob("step-*")), default=0)
if first:
    found = state()
    dcp.load(found, checkpoint_id=f"step-{first}")
    set_state_dict(model, optimizer, model_state_dict=found["model"], optim_state_dict=found["optimizer"])
for number in range(first, STEPS):
    optimizer.zero_grad()
    model(torch.randn(4, 8)).square().mean().backward()
    optimizer.step()
    step(number)
    if (number + 1) % SAVE_EVERY == 0:
        if dist.get_rank() == 0:
            shutil.rmtree("saving", ignore_errors=True)
        dist.barrier()
        dcp.save(state(), checkpoint_id="saving")
        if dist.get_rank() == 0:
            os.rename("saving", f"step-{number + 1}")
        dist.barrier()
dist.destroy_process_group()
