"""Plain DDP, a checkpoint of rank 0 by torch.save."""

import os

import torch
import torch.distributed as dist
from fault import SAVE_EVERY, STEPS, step
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
model = DistributedDataParallel(torch.nn.Linear(8, 8))
optimizer = torch.optim.Adam(model.parameters())
first = 0
if os.path.exists("saved.pt"):
    saved = torch.load("saved.pt")
    first = saved["step"]
    model.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
for number in range(first, STEPS):
    optimizer.zero_grad()
    model(torch.randn(4, 8)).square().mean().backward()
    optimizer.step()
    step(number)
    if (number + 1) % SAVE_EVERY == 0:
        if dist.get_rank() == 0:
            state = {"step": number + 1, "model": model.state_dict(), "optimizer": optimizer.state_dict()}
            torch.save(state, "saved.new")
            os.replace("saved.new", "saved.pt")
        dist.barrier()
dist.destroy_process_group()
