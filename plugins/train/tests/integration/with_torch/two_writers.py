"""One of two processes that save into one folder at once, as fast as they can; run by `test_checkpoints.py`."""

import sys
from pathlib import Path

import torch

from elastic_train import Checkpointer

folder, mine, steps = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
checkpoints = Checkpointer(folder, keep=2)


def save(step):
    checkpoints.save({"step": step, "values": torch.full((2000,), float(mine))}, step=step, wait=step % 2 == 0)


def meet():
    """Go on together: one that comes late would find a folder in which nobody saves any more."""
    print("ready", flush=True)
    sys.stdin.readline()


meet()
save(0)
meet()
for later in range(1, steps):
    save(later)
checkpoints.wait()
