"""DeepSpeed, ZeRO 1."""

import deepspeed
import torch
from fault import SAVE_EVERY, STEPS, step

deepspeed.init_distributed("gloo")
model = torch.nn.Linear(8, 8)
config = {
    "train_micro_batch_size_per_gpu": 4,
    "zero_optimization": {"stage": 1},
    "zero_allow_untested_optimizer": True,
    "steps_per_print": 1000,
}
engine, _, _, _ = deepspeed.initialize(model=model, optimizer=torch.optim.Adam(model.parameters()), config=config)
_, known = engine.load_checkpoint("saved")
for number in range((known or {}).get("step", 0), STEPS):
    engine.backward(engine(torch.randn(4, 8)).square().mean())
    engine.step()
    step(number)
    if (number + 1) % SAVE_EVERY == 0:
        engine.save_checkpoint("saved", client_state={"step": number + 1})
deepspeed.comm.destroy_process_group()
