"""Train a small network on handwritten digits; when a worker is killed, the other ones keep running.

In this folder, with elastic-warm, elastic-standby, elastic-ops, torch and scikit-learn:

    $ elastic run --nproc-per-node 2 --max-restarts 3 --standby --timings train.py --step-s 0.02
    round 0: from step 0, 2 ranks
    step 100: loss 0.1370
    step 200: loss 0.0241

and in another terminal `kill -9 PID`, with the pid of rank 1 from `elastic status`:

    elastic: rank 1 failed: killed by SIGKILL (9); restart 1 of 3 now
    round 1: from step 249, 2 ranks
    step 300: loss 0.0385
    ...
    held-out accuracy: 96.9%, weights 13259c1a763c
    elastic: timings: round 1: ... spawn (1 of 2 kept, 1 forked) 1.0 ms, ...

Each step's batch follows from its number alone. So a run whose workers were killed ends with the same weights as one
that was not disturbed, if its number of ranks stays the same. docs/howto/warm-rounds.md describes what is kept, and
when; `torchrun` starts the script as well, and then all workers begin anew.
"""

import argparse
import hashlib
import os
import time
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import elastic_warm as warm

SEED = 7
HELD_OUT = 360  # of 1797 images; never trained on


def main() -> None:
    """Build everything once, then train; `train` is called again in each round that this process survives."""
    parser = argparse.ArgumentParser(description="Train on the digits that scikit-learn ships.")
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--batch-size", type=int, default=64, help="images of all ranks together, in each step")
    parser.add_argument("--log-steps", type=int, default=100, help="log the loss after so many steps")
    parser.add_argument("--step-s", type=float, default=0.0, help="let no step take less than so many seconds")
    options = parser.parse_args()

    data = load_data()
    torch.manual_seed(SEED)
    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    state = warm.State(model=model, optimizer=optimizer, step=0)
    train(state, data, options)


@warm.rounds
def train(state: warm.State, data: tuple[Tensor, ...], options: argparse.Namespace) -> None:
    """Train from the newest committed step to the last one."""
    dist.init_process_group("gloo")
    rank, world_size = dist.get_rank(), dist.get_world_size()
    net = DistributedDataParallel(state.model)
    state.sync()
    if rank == 0:
        print(f"round {os.environ.get('ELASTIC_ROUND', 0)}: from step {state.step}, {world_size} ranks", flush=True)
    images, digits, held_out_images, held_out_digits = data
    while state.step < options.steps:
        begun_s = time.monotonic()
        order = torch.randperm(len(images), generator=torch.Generator().manual_seed(SEED + state.step))
        mine = order[: options.batch_size][rank::world_size]
        state.optimizer.zero_grad()
        loss = nn.functional.cross_entropy(net(images[mine]), digits[mine])
        loss.backward()
        state.optimizer.step()
        state.step += 1
        state.commit()
        if rank == 0 and state.step % options.log_steps == 0:
            print(f"step {state.step}: loss {loss.item():.4f}", flush=True)
        time.sleep(max(0.0, begun_s + options.step_s - time.monotonic()))  # noqa: TID251  # a script of a user's
    if rank == 0:
        with torch.no_grad():
            right = (state.model(held_out_images).argmax(dim=1) == held_out_digits).float().mean()
        print(f"held-out accuracy: {right:.1%}, weights {weights_of(state.model)}", flush=True)


def weights_of(model: nn.Module) -> str:
    """Return a digest of all weights: equal digests, equal bits."""
    digest = hashlib.sha256()
    for parameter in model.parameters():
        digest.update(parameter.detach().numpy().tobytes())
    return digest.hexdigest()[:12]


def load_data() -> tuple[Tensor, ...]:
    """Return images and digits to train on, and those held out: [n, 64] float32 from 0 to 1, [n] int64."""
    found = find_spec("sklearn")
    if found is None or found.origin is None:
        raise SystemExit("The digits come with scikit-learn. Try: pip install scikit-learn")
    # Only the file: importing scikit-learn takes nearly as long as torch.
    table = torch.from_numpy(np.loadtxt(Path(found.origin).parent / "datasets/data/digits.csv.gz", delimiter=","))
    images, digits = table[:, :64].to(torch.float32) / 16, table[:, 64].to(torch.int64)
    order = torch.randperm(len(digits), generator=torch.Generator().manual_seed(SEED))
    train, held_out = order[HELD_OUT:], order[:HELD_OUT]
    return images[train], digits[train], images[held_out], digits[held_out]


if __name__ == "__main__":
    main()
