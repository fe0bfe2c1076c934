r"""Train a small network on handwritten digits, and lose no step to a stop that somebody plans.

The same digits as in `examples/digits`, with what elastic-train has for scripts: `should_stop`, `Checkpointer`,
`ElasticSampler`, `init_process_group`. Nodes may join, be drained and be taken away by a scheduler: all ranks save
before the same step, and the next round begins there. After a crash, or when a node is lost, it begins at the last
save.

    pip install -r sets/train.txt scikit-learn      # in the checkout's folder, after torch
    cd examples/planned_stops
    elastic run --nnodes 1:3 --nproc-per-node 2 --rdzv-backend c10d --rdzv-endpoint localhost:29411 --rdzv-id digits \
        --rdzv-conf last_call_timeout=2 train.py --folder runs/saved

Repeat the command in another terminal, and a node joins. `elastic drain NODE` takes one out. On several machines, name
one of them in the place of `localhost`.

It runs under torchrun and under bare Python, too: nothing is planned there. Every step takes as many images, however
many ranks there are, so that the result hardly depends on what happened on the way.
"""

import argparse
import json
import os
import sys
import time
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

from elastic_train import Checkpointer, ElasticSampler, attempt, init_process_group, should_stop

SEED = 7
HELD_OUT = 360  # of 1797 images; never trained on
IMAGES_A_STEP = 48  # of all ranks together: for 1, 2, 3, 4, 6, 8 … ranks


def main() -> int:
    """Train, then judge on held-out images; return the exit code."""
    options = parse_arguments()
    with init_process_group(timeout="60s") as group:
        checkpoints = Checkpointer(options.folder, keep=3, job="digits")
        accuracy = train(options, group.device, group.world_size, checkpoints)
        if accuracy is None:
            return 0  # stopped, and saved
        if group.rank == 0:
            print(f"held-out accuracy: {accuracy:.1%}", flush=True)
            if accuracy < options.min_accuracy:
                print(f"below --min-accuracy {options.min_accuracy:.1%}", file=sys.stderr)
    return 0 if accuracy >= options.min_accuracy else 1


def parse_arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description="Train a small network on the digits that scikit-learn ships.")
    parser.add_argument("--folder", type=Path, default=Path("saved"), help="checkpoints, where all nodes see them")
    parser.add_argument("--epochs", type=int, default=15)
    parser.add_argument("--save-every", type=int, default=30, help="steps")
    parser.add_argument("--min-accuracy", type=float, default=0.95, help="exit with 1 below this held-out accuracy")
    demo = parser.add_argument_group("for demonstrations only")
    demo.add_argument("--step-s", type=float, default=0.0, help="let no step take less than so many seconds")
    demo.add_argument("--seen", type=Path, help="a folder: which images each rank has trained on, step by step")
    demo.add_argument("--crash-when", type=Path, help="rank 1 removes this file when it is there, and fails")
    demo.add_argument("--until", type=Path, help="train on, epoch after epoch, until this file is there")
    return parser.parse_args()


def train(
    options: argparse.Namespace, device: torch.device, world_size: int, checkpoints: Checkpointer
) -> float | None:
    """Train from the newest checkpoint to the last epoch; return the accuracy, or None: a stop is planned."""
    train_set, held_out = load_data()
    torch.manual_seed(SEED)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10)).to(device))
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    sampler = ElasticSampler(train_set, batch_size=IMAGES_A_STEP // world_size, seed=SEED)
    state = {"model": model, "optimizer": optimizer, "sampler": sampler}
    loaded = checkpoints.load(into=state)
    step = loaded.step if loaded else 0
    if attempt().rank == 0:
        print(f"training from step {step}: {world_size} ranks{how_it_came(loaded is not None)}", flush=True)
    seen = SeenImages(options.seen)

    batches = DataLoader(train_set, batch_sampler=sampler)
    while sampler.epoch < options.epochs or goes_on(options.until):
        for images, digits, indices in batches:
            begun_s = time.monotonic()
            if should_stop(step=step):
                checkpoints.save(state, step=step)
                return None
            if options.crash_when and attempt().rank == 1 and options.crash_when.exists():
                options.crash_when.unlink()
                raise RuntimeError("a crash, as --crash-when asked for")
            optimizer.zero_grad()
            # The mean over all ranks' images, of which a rank may have fewer than another at an epoch's end.
            loss = nn.functional.cross_entropy(model(images.to(device)), digits.to(device), reduction="sum")
            (loss * world_size / IMAGES_A_STEP).backward()
            optimizer.step()
            seen.note(sampler.epoch, step, indices)
            sampler.advance()
            step += 1
            if step % options.save_every == 0:
                checkpoints.save(state, step=step, wait=False)
            time.sleep(max(0.0, begun_s + options.step_s - time.monotonic()))  # noqa: TID251  # a script of a user's
        if attempt().rank == 0:
            print(f"epoch {sampler.epoch}/{options.epochs}, step {step}: loss {loss.item():.4f}", flush=True)
    if step % options.save_every:
        checkpoints.save(state, step=step)
    return measure(model, held_out, device)


def load_data() -> tuple[TensorDataset, TensorDataset]:
    """Return the training and the held-out images with their digits and their numbers."""
    found = find_spec("sklearn")
    if found is None or found.origin is None:
        raise SystemExit("The digits come with scikit-learn. Try: pip install scikit-learn")
    # Only the file: importing scikit-learn takes nearly as long as torch.
    table = torch.from_numpy(np.loadtxt(Path(found.origin).parent / "datasets/data/digits.csv.gz", delimiter=","))
    images, digits = table[:, :64].to(torch.float32) / 16, table[:, 64].to(torch.int64)
    order = torch.randperm(len(digits), generator=torch.Generator().manual_seed(SEED))
    train, held_out = order[HELD_OUT:], order[:HELD_OUT]
    return (
        TensorDataset(images[train], digits[train], torch.arange(len(train))),
        TensorDataset(images[held_out], digits[held_out], torch.arange(len(held_out))),
    )


def measure(model: nn.Module, data: TensorDataset, device: torch.device) -> float:
    """Return the share of images that all ranks together, each with its part, recognise."""
    images, digits, _ = (part[dist.get_rank() :: dist.get_world_size()].to(device) for part in data.tensors)
    with torch.no_grad():
        right = (model(images).argmax(dim=1) == digits).sum()
    dist.all_reduce(right)
    return float(right.item()) / len(data)


def how_it_came(resumed: bool) -> str:
    """Return what ended the round before, where the launcher says so."""
    before = attempt()
    return f", after: {before.last_reason}" if resumed and before.last_reason else ""


class SeenImages:
    """A file of this process's own that has a line for each step: for whoever wants to count."""

    def __init__(self, folder: Path | None) -> None:
        self._file = None
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True)
            self._file = (folder / f"{attempt().round_index or 0}-{attempt().rank}").open("w", buffering=1)

    def note(self, epoch: int, step: int, indices: Tensor) -> None:
        """Write a line."""
        if self._file is not None:
            self._file.write(json.dumps([epoch, step, indices.tolist()]) + os.linesep)


def goes_on(until: Path | None) -> bool:
    """Return whether a file is not there yet, as rank 0 sees it."""
    missing = torch.tensor(int(until is not None and not until.exists()))
    dist.broadcast(missing, src=0)
    return bool(missing)


if __name__ == "__main__":
    sys.exit(main())
