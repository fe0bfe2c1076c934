"""accelerate, with save_state."""

import shutil
from pathlib import Path

import torch
from accelerate import Accelerator
from fault import SAVE_EVERY, STEPS, step

accelerator = Accelerator(cpu=True)
model = torch.nn.Linear(8, 8)
model, optimizer = accelerator.prepare(model, torch.optim.Adam(model.parameters()))
first = max((int(path.name[5:]) for path in Path().glob("step-*")), default=0)
if first:
    accelerator.load_state(f"step-{first}")
for number in range(first, STEPS):
    optimizer.zero_grad()
    accelerator.backward(model(torch.randn(4, 8)).square().mean())
    optimizer.step()
    step(number)
    if (number + 1) % SAVE_EVERY == 0:
        if accelerator.is_main_process:
            shutil.rmtree("saving", ignore_errors=True)
        accelerator.wait_for_everyone()
        accelerator.save_state("saving")
        accelerator.wait_for_everyone()
        if accelerator.is_main_process:
            Path("saving").rename(f"step-{number + 1}")
        accelerator.wait_for_everyone()
accelerator.end_training()
