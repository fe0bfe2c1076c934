"""transformers' Trainer, `resume_from_checkpoint`."""

from pathlib import Path

import torch
from fault import SAVE_EVERY, STEPS, step
from transformers import Trainer, TrainerCallback, TrainingArguments
from transformers.trainer_utils import get_last_checkpoint


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(8, 8)

    def forward(self, x):
        return {"loss": self.layer(x).square().mean()}


class Steps(TrainerCallback):
    def on_step_begin(self, args, state, control, **more):
        step(state.global_step)


arguments = TrainingArguments(
    "saved",
    max_steps=STEPS,
    per_device_train_batch_size=4,
    save_steps=SAVE_EVERY,
    use_cpu=True,
    report_to="none",
    disable_tqdm=True,
)
data = [{"x": torch.randn(8)} for _ in range(400)]
trainer = Trainer(Model(), arguments, train_dataset=data, callbacks=[Steps()])
trainer.train(resume_from_checkpoint=get_last_checkpoint("saved") if Path("saved").exists() else None)
