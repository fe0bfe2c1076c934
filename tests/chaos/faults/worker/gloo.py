"""The same all-reduce by torch's own gloo."""

from datetime import timedelta

import numpy as np
import numpy.typing as npt
import torch
import torch.distributed as dist

Floats = npt.NDArray[np.float64]


class Gloo:
    """The ranks of one round."""

    def __init__(self) -> None:
        dist.init_process_group("gloo", timeout=timedelta(seconds=300))

    def sum(self, part: Floats) -> Floats:
        """Return the sum of all ranks' arrays, the same on each."""
        total = torch.from_numpy(part.copy())
        dist.all_reduce(total)
        result: Floats = total.numpy()
        return result

    def close(self) -> None:
        """Leave."""
        dist.destroy_process_group()
