"""The state of a worker's random number generators, as one part of its training state."""

import array
import hashlib
import random
import sys
from typing import Any, Final

import torch

_WORD: Final = "I"


class RandomState:
    """The generators of `random`, of numpy if it is imported, and of torch: the CPU's and the current CUDA device's."""

    def state_dict(self) -> dict[str, Any]:
        """Return the state of all generators."""
        version, words, gauss = random.getstate()
        found: dict[str, Any] = {"python": (version, array.array(_WORD, words).tobytes(), gauss)}
        numpy = sys.modules.get("numpy")
        if numpy is not None:
            found["numpy"] = numpy.random.get_state(legacy=False)
        found["torch"] = torch.get_rng_state()
        if _has_cuda():
            found["cuda"] = torch.cuda.get_rng_state()
        return found

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Set the generators, except those that this process doesn't have."""
        version, words, gauss = state["python"]
        random.setstate((version, tuple(array.array(_WORD, words)), gauss))
        numpy = sys.modules.get("numpy")
        if numpy is not None and "numpy" in state:
            numpy.random.set_state(state["numpy"])
        # Clones, as torch reads a state from the beginning of its storage, even if the tensor is a view into it.
        torch.set_rng_state(state["torch"].clone())
        if "cuda" in state and _has_cuda():
            torch.cuda.set_rng_state(state["cuda"].clone())


def seed_anew(*parts: int) -> None:
    """Seed all generators from numbers: the same seed for the same numbers, and unrelated ones for others."""
    digest = hashlib.sha256(repr(parts).encode()).digest()
    seed = int.from_bytes(digest[:7], "big")
    random.seed(seed)
    if _has_processors_only():
        torch.default_generator.manual_seed(seed)
    else:
        torch.manual_seed(seed)  # all devices, now or when they are used first
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed(seed % (1 << 32))


def _has_processors_only() -> bool:
    """Return whether this build of torch has no kind of device, so that only one generator has to be seeded.

    `torch.manual_seed` would note the seed for each kind nevertheless, with the text of the stack: it reads the source
    files of all frames for that, which takes 6 ms of a process for which all ranks wait.
    """
    accelerator = getattr(torch, "accelerator", None)  # missing before torch 2.6
    return accelerator is not None and accelerator.current_accelerator() is None


def _has_cuda() -> bool:
    return bool(torch.cuda.is_available() and torch.cuda.is_initialized())
