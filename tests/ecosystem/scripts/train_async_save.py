"""DDP with torch.distributed.checkpoint's async_save, in a thread."""

import os
import shutil
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from fault import SAVE_EVERY, STEPS, step
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
savers = dist.new_group(backend="gloo")  # the thread's own: the model's collectives go on meanwhile
model = DistributedDataParallel(torch.nn.Linear(8, 8))
optimizer = torch.optim.Adam(model.parameters())


def state():
    of_model, of_optimizer = get_state_dict(model, optimizer)
    return {"model": of_model, "optimizer": of_optimizer}


def finish(saving, number):
    """Wait for the last save, and give its folder its name."""
    saving.result()
    dist.barrier()
    if dist.get_rank() == 0:
        os.rename("saving", f"step-{number}")
    dist.barrier()


first = max((int(path.name[5:]) for path in Path().glob("step-*")), default=0)
if first:
    found = state()
    dcp.load(found, checkpoint_id=f"step-{first}")
    set_state_dict(model, optimizer, model_state_dict=found["model"], optim_state_dict=found["optimizer"])
saving = None
for number in range(first, STEPS):
    optimizer.zero_grad()
    model(torch.randn(4, 8)).square().mean().backward()
    optimizer.step()
    step(number)
    if saving is not None:
        finish(*saving)
        saving = None
    if (number + 1) % SAVE_EVERY == 0:
        if dist.get_rank() == 0:
            shutil.rmtree("saving", ignore_errors=True)
        dist.barrier()
        saving = dcp.async_save(state(), checkpoint_id="saving", process_group=savers), number + 1
if saving is not None:
    finish(*saving)
dist.destroy_process_group()
