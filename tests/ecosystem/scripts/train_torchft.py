"""torchft: a replica group of one worker, of which a lighthouse knows two."""

import os

import torch
from fault import STEPS, step
from torchft import Manager, Optimizer, ProcessGroupGloo
from torchft.ddp import DistributedDataParallel

model = torch.nn.Linear(8, 8)
inner = torch.optim.Adam(model.parameters())


def state_dict():
    return {"model": model.state_dict(), "optimizer": inner.state_dict()}


def load_state_dict(state):
    model.load_state_dict(state["model"])
    inner.load_state_dict(state["optimizer"])


manager = Manager(
    pg=ProcessGroupGloo(),
    min_replica_size=1,
    load_state_dict=load_state_dict,
    state_dict=state_dict,
    replica_id=f"group{os.environ['CELL_RANK']}",
)
parallel = DistributedDataParallel(manager, model)
optimizer = Optimizer(manager, inner)
while manager.current_step() < STEPS:
    optimizer.zero_grad()
    parallel(torch.randn(4, 8)).square().mean().backward()
    optimizer.step()
    step(manager.current_step() - 1)  # a group that comes back has its peer's state, and its step, by now
manager.shutdown()
