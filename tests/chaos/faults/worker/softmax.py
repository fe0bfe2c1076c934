"""Softmax regression on scikit-learn's digits, by steps that depend on nothing but their number.

The batch of a step is drawn from the step's number and shared by whatever ranks there are; the gradients are summed.
So a run is at the same weights after as many steps (to rounding), however often it was begun again, by any ranks.
"""

import hashlib
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

SEED = 7
HELD_OUT = 360
BATCH = 60  # for 1, 2, 3 … ranks alike
RATE, MOMENTUM = 0.5, 0.9
FEATURES, DIGITS = 65, 10
MARK = ".checkpoint"


class TornError(Exception):
    """A checkpoint is not as it was written."""


@dataclass(frozen=True)
class Data:
    """Images [n, 65] from 0 to 1, the last column 1 for the bias; targets [n, 10], 1 at the digit."""

    images: Floats
    targets: Floats

    @classmethod
    def read(cls, path: Path) -> tuple["Data", "Data"]:
        """Return what to train on, and what to judge by; `path` is scikit-learn's own file, as `numpy.save` has it."""
        table: Floats = np.load(path)
        table = table[np.random.default_rng(SEED).permutation(len(table))]
        images = np.hstack([table[:, :-1] / 16, np.ones((len(table), 1))])
        targets = np.eye(DIGITS)[table[:, -1].astype(int)]
        return cls(images[HELD_OUT:], targets[HELD_OUT:]), cls(images[:HELD_OUT], targets[:HELD_OUT])


@dataclass(frozen=True)
class Model:
    """Weights and their velocity, both [65, 10], after so many steps."""

    step: int
    weights: Floats
    velocity: Floats

    @classmethod
    def new(cls) -> "Model":
        """Return what training begins with."""
        return cls(0, np.zeros((FEATURES, DIGITS)), np.zeros((FEATURES, DIGITS)))

    def gradient(self, data: Data, *, rank: int, world_size: int) -> Floats:
        """Return one rank's part of the next step's gradient; all parts together are the whole."""
        chosen = np.random.default_rng((SEED, self.step)).integers(len(data.images), size=BATCH)[rank::world_size]
        images = data.images[chosen]
        part: Floats = images.T @ (_softmax(images @ self.weights) - data.targets[chosen])
        return part

    def moved(self, gradient: Floats) -> "Model":
        """Return the model after a step with the whole gradient."""
        velocity = MOMENTUM * self.velocity - RATE / BATCH * gradient
        return Model(self.step + 1, self.weights + velocity, velocity)

    def accuracy(self, data: Data) -> float:
        """Return the share of images that it recognises."""
        return float(np.mean(np.argmax(data.images @ self.weights, axis=1) == np.argmax(data.targets, axis=1)))


def _softmax(scores: Floats) -> Floats:
    powers = np.exp(scores - scores.max(axis=1, keepdims=True))
    result: Floats = powers / powers.sum(axis=1, keepdims=True)
    return result


# --- checkpoints


def save(folder: Path, model: Model, **says: Any) -> None:
    """Write a checkpoint, whole or not at all: a digest, a line of JSON, the numbers."""
    numbers = np.stack([model.weights, model.velocity]).tobytes()
    body = json.dumps({"step": model.step, **says}).encode() + b"\n" + numbers
    unfinished = folder / f"unfinished-{os.getpid()}"
    with unfinished.open("wb") as file:
        file.write(hashlib.sha256(body).hexdigest().encode() + b"\n" + body)
        file.flush()
        os.fsync(file.fileno())
    unfinished.rename(folder / f"{model.step:08d}-{says['gen']:04d}{MARK}")


def load(path: Path) -> tuple[Model, dict[str, Any]]:
    """Return a checkpoint, and what was said with it.

    Raises:
        TornError: it is not whole.
    """
    digest, _, body = path.read_bytes().partition(b"\n")
    if hashlib.sha256(body).hexdigest().encode() != digest:
        raise TornError(f"{path.name}: torn")
    line, _, numbers = body.partition(b"\n")
    says = json.loads(line)
    weights, velocity = np.frombuffer(numbers).reshape(2, FEATURES, DIGITS)
    return Model(says["step"], weights, velocity), says


def checkpoints(folder: Path) -> list[Path]:
    """Return all checkpoints, the furthest last."""
    return sorted(folder.glob(f"*{MARK}"))
