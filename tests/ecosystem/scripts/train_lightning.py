"""Lightning, `ckpt_path="last"`."""

import os

import torch
from fault import SAVE_EVERY, STEPS, step
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from torch.utils.data import DataLoader


class Model(LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(8, 8)

    def training_step(self, batch):
        step(self.global_step)
        return self.layer(batch).square().mean()

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters())


trainer = Trainer(
    max_steps=STEPS,
    accelerator="cpu",
    devices=int(os.environ["LOCAL_WORLD_SIZE"]),
    num_nodes=int(os.environ["GROUP_WORLD_SIZE"]),  # what an elastic world needs: it is checked against WORLD_SIZE
    logger=False,
    enable_progress_bar=False,
    callbacks=[ModelCheckpoint("saved", every_n_train_steps=SAVE_EVERY, save_last=True)],
)
trainer.fit(Model(), DataLoader(torch.randn(400, 8), batch_size=4), ckpt_path="last")
