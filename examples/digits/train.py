"""Train a small network on handwritten digits with DistributedDataParallel; survive crashes by checkpoints.

An ordinary training script: torch, numpy and scikit-learn's file of digits are all that it knows. It runs under any
launcher that sets torch's variables (RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR, MASTER_PORT):

    elastic run --nproc-per-node 2 --max-restarts 2 train.py --epochs 15 --checkpoint runs/digits.pt
    torchrun    --nproc-per-node 2 --max-restarts 2 train.py --epochs 15 --checkpoint runs/digits.pt

Whenever the workers are started again, they go on from the last whole epoch, with as many ranks as there are then. A
run that was interrupted, and kept its number of ranks, ends with the same weights as one that was not: model,
optimizer, epoch and every rank's random state are in the checkpoint.
"""

import argparse
import os
import sys
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

# DistributedDataParallel imports this module. Imported only then, its default arguments would hold the process group,
# whose threads would outlive destroy_process_group and could abort the process at its very end (torch 2.13, gloo).
import torch.distributed.nn.functional
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

SEED = 7
HELD_OUT = 360  # of 1797 images; never trained on


def main() -> int:
    """Train, then judge on held-out images; return the exit code."""
    options = parse_arguments()
    device = pick_device(options.device)
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    try:
        accuracy = train(options, device)
    finally:
        dist.destroy_process_group()
    if int(os.environ["RANK"]) == 0:
        print(f"held-out accuracy: {accuracy:.1%}", flush=True)
        if accuracy < options.min_accuracy:
            print(f"below --min-accuracy {options.min_accuracy:.1%}", file=sys.stderr)
    return 0 if accuracy >= options.min_accuracy else 1


def parse_arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description="Train a small network on the digits that scikit-learn ships.")
    parser.add_argument("--epochs", type=int, default=15)
    parser.add_argument("--batch-size", type=int, default=16, help="images a rank and step")
    parser.add_argument("--checkpoint", type=Path, default=Path("digits.pt"), help="resumed from if it exists")
    parser.add_argument("--min-accuracy", type=float, default=0.95, help="exit with 1 below this held-out accuracy")
    parser.add_argument(
        "--device",
        choices=["auto", "cpu", "cuda"],
        default="auto",
        help="auto: GPUs if this node has one for each worker, else the CPU",
    )
    demo = parser.add_argument_group("for demonstrations only")
    demo.add_argument("--crash-at-epoch", type=int, help="fail half-way through this epoch, the first time it is run")
    demo.add_argument("--crash-rank", type=int, default=1, help="the rank that fails")
    demo.add_argument("--epoch-s", type=float, default=0.0, help="let no epoch take less than so many seconds")
    demo.add_argument("--last-when", type=Path, help="begin the last epoch when this file is there")
    return parser.parse_args()


def pick_device(choice: str) -> torch.device:
    """Return this worker's device."""
    gpus = torch.cuda.device_count() if choice != "cpu" else 0
    if choice == "cpu" or (choice == "auto" and gpus < int(os.environ["LOCAL_WORLD_SIZE"])):
        return torch.device("cpu")
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    return device


def train(options: argparse.Namespace, device: torch.device) -> float:
    """Train from the last checkpoint, or from nothing, to the last epoch; return the held-out accuracy."""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    train_set, held_out = load_data()
    torch.manual_seed(SEED + rank)  # dropout differs between ranks; DDP sends rank 0's first weights to all
    model = DistributedDataParallel(
        nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Dropout(0.2), nn.Linear(128, 10)).to(device)
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    first_epoch = resume(options.checkpoint, model, optimizer, device)
    check_same_epoch(first_epoch, device)
    if rank == 0:
        begin = f"from epoch {first_epoch} of {options.checkpoint}" if first_epoch else "from nothing"
        print(f"training {begin}: {world_size} ranks on {device.type}{counted()}", flush=True)

    sampler: DistributedSampler[tuple[Tensor, ...]] = DistributedSampler(train_set, seed=SEED)
    batches = DataLoader(train_set, batch_size=options.batch_size, sampler=sampler)
    for epoch in range(first_epoch, options.epochs):
        begun_s = time.monotonic()
        if epoch + 1 == options.epochs and options.last_when:
            wait_for(options.last_when)
        sampler.set_epoch(epoch)
        model.train()
        loss_sum = torch.zeros((), device=device)
        for step, (images, digits) in enumerate(batches):
            if epoch == options.crash_at_epoch and rank == options.crash_rank and step == len(batches) // 2:
                crash_once(options.checkpoint)
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(images.to(device)), digits.to(device))
            loss.backward()
            optimizer.step()
            loss_sum += loss.detach()
        dist.all_reduce(loss_sum)
        accuracy = measure(model, held_out, device)
        save(options.checkpoint, model, optimizer, epoch + 1)
        if rank == 0:
            mean_loss = loss_sum.item() / (world_size * len(batches))
            print(f"epoch {epoch + 1}/{options.epochs}: loss {mean_loss:.6f}, accuracy {accuracy:.4f}", flush=True)
        time.sleep(max(0.0, begun_s + options.epoch_s - time.monotonic()))  # noqa: TID251  # a script of a user's
    return measure(model, held_out, device)


def load_data() -> tuple[TensorDataset, TensorDataset]:
    """Return the training and the held-out images with their digits: [n, 64] float32 from 0 to 1, [n] int64."""
    found = find_spec("sklearn")
    if found is None or found.origin is None:
        raise SystemExit("The digits come with scikit-learn. Try: pip install scikit-learn")
    # Only the file: importing scikit-learn takes nearly as long as torch.
    table = torch.from_numpy(np.loadtxt(Path(found.origin).parent / "datasets/data/digits.csv.gz", delimiter=","))
    images, digits = table[:, :64].to(torch.float32) / 16, table[:, 64].to(torch.int64)
    order = torch.randperm(len(digits), generator=torch.Generator().manual_seed(SEED))
    train, held_out = order[HELD_OUT:], order[:HELD_OUT]
    return TensorDataset(images[train], digits[train]), TensorDataset(images[held_out], digits[held_out])


def measure(model: nn.Module, data: TensorDataset, device: torch.device) -> float:
    """Return the share of images that all ranks together, each with its part, recognise."""
    images, digits = (part[dist.get_rank() :: dist.get_world_size()].to(device) for part in data.tensors)
    model.eval()
    with torch.no_grad():
        right = (model(images).argmax(dim=1) == digits).sum()
    dist.all_reduce(right)
    return float(right.item()) / len(data)


def save(path: Path, model: nn.Module, optimizer: torch.optim.Optimizer, epochs_done: int) -> None:
    """Write a checkpoint from rank 0: whole, or not at all, whenever the power may fail."""
    states = [torch.empty(0, dtype=torch.uint8)] * dist.get_world_size() if dist.get_rank() == 0 else None
    dist.gather_object(torch.get_rng_state(), states)
    if states is None:
        return
    content = {
        "epochs_done": epochs_done,
        "model": model.state_dict(),
        "optimizer": optimizer.state_dict(),
        "rng_states": states,
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(path.name + ".tmp")
    with unfinished.open("wb") as file:
        torch.save(content, file)
        file.flush()
        os.fsync(file.fileno())
    unfinished.replace(path)
    directory = os.open(path.parent, os.O_RDONLY)  # the new name, too, must be on the disk
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def resume(path: Path, model: nn.Module, optimizer: torch.optim.Optimizer, device: torch.device) -> int:
    """Take up the last checkpoint on every rank; return how many epochs are done."""
    if not path.exists():
        return 0
    content: dict[str, Any] = torch.load(path, map_location=device, weights_only=True)
    model.load_state_dict(content["model"])
    optimizer.load_state_dict(content["optimizer"])
    states = content["rng_states"]
    epochs_done = int(content["epochs_done"])
    if dist.get_rank() < len(states):
        torch.set_rng_state(states[dist.get_rank()].cpu())
    else:  # there were fewer ranks: a seed of its own, and not the one with which an earlier rank of this number began
        torch.manual_seed(SEED + dist.get_rank() + 100_003 * epochs_done)
    return epochs_done


def check_same_epoch(first_epoch: int, device: torch.device) -> None:
    """Refuse to train from different checkpoints: a path that not all nodes share."""
    extremes = torch.tensor([first_epoch, -first_epoch], device=device)
    dist.all_reduce(extremes, op=dist.ReduceOp.MAX)
    newest, oldest = int(extremes[0]), -int(extremes[1])
    if newest != oldest:
        raise SystemExit(f"ranks see checkpoints of epochs {oldest} to {newest}: --checkpoint must be a shared path")


def counted() -> str:
    """Return how often this launcher, if it counts, has started the workers again, and for what."""
    restarts, changes = map(os.environ.get, ("TORCHELASTIC_RESTART_COUNT", "ELASTIC_MEMBERSHIP_CHANGES"))
    return "" if changes is None else f", failure restarts {restarts}, membership changes {changes}"


def wait_for(path: Path) -> None:
    """Return when a file is there."""
    while not path.exists():
        time.sleep(0.05)  # noqa: TID251


def crash_once(checkpoint: Path) -> None:
    """Raise, unless a crash was shown before: a file beside the checkpoint remembers it."""
    checkpoint.parent.mkdir(parents=True, exist_ok=True)
    try:
        checkpoint.with_name(checkpoint.name + ".crashed").touch(exist_ok=False)
    except FileExistsError:
        return
    raise RuntimeError("a crash, as --crash-at-epoch asked for")


if __name__ == "__main__":
    sys.exit(main())
