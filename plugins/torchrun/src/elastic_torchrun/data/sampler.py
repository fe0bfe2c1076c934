"""Each rank's share of a data set, from a start index.

Importing this module imports torch, since the class inherits from a sampler of torch's. Torch is named in strings so
that the type checker needs no torch.
"""

import importlib
import math
from collections.abc import Iterator, Sized
from typing import Any, Final

from elastic_torchrun.torch_import import torch_distributed

torch_distributed("ElasticDistributedSampler")
_torch: Any = importlib.import_module("torch")
_Base: Final[Any] = importlib.import_module("torch.utils.data.distributed").DistributedSampler


class ElasticDistributedSampler(_Base):  # type: ignore[misc]  # torch is not known to the type checker
    """Gives each rank its share of a data set from `start_index`, so that a restart resumes within an epoch.

    Every rank gets the same number of indices. If they can't be divided evenly, some of the first are repeated at the
    end. The order depends only on seed and epoch (`set_epoch`), so all ranks have the same order, at any world size.

    Args:
        dataset: The data set; its size must not change.
        num_replicas: The number of ranks. `None` means that of the process group.
        rank: This rank. `None` means that of the process group.
        start_index: The first index; earlier ones are left out. With `shuffle`, the rest is shuffled anew. The number
            of samples already used in an epoch is therefore a correct start only without `shuffle`.
        shuffle: Whether the order is random.
        seed: Added to the epoch, for another order.

    Raises:
        TypeError: the data set has no length.
        ValueError: no index is left from `start_index`, or it is negative.
    """

    def __init__(
        self,
        dataset: Any,  # noqa: ANN401  # torch's Dataset
        num_replicas: int | None = None,
        rank: int | None = None,
        start_index: int = 0,
        *,
        shuffle: bool = True,
        seed: int = 0,
    ) -> None:
        """Check the arguments."""
        if not isinstance(dataset, Sized):
            raise TypeError(f"data set: a {type(dataset).__name__}; expected one with a length")
        super().__init__(dataset=dataset, num_replicas=num_replicas, rank=rank, shuffle=shuffle, seed=seed)
        self.set_start_index(start_index)

    def set_start_index(self, start_index: int) -> None:
        """Start at another index. Use 0 for the epoch after the resumed one.

        Raises:
            ValueError: no index is left from there, or it is negative.
        """
        size = len(self.dataset)
        if not 0 <= start_index < size:
            raise ValueError(f"start_index={start_index}; expected from 0 to less than the data set's size, {size}")
        self.start_index = start_index
        self.num_samples = math.ceil((size - start_index) / self.num_replicas)
        self.total_size = self.num_samples * self.num_replicas

    def __iter__(self) -> Iterator[int]:
        """Return this rank's indices."""
        indices = self._order()
        repeats = math.ceil(self.total_size / len(indices))  # more than two where there are more ranks than indices
        return iter((indices * repeats)[self.rank : self.total_size : self.num_replicas])

    def __len__(self) -> int:
        """Return the number of indices of each rank."""
        count: int = self.num_samples
        return count

    def _order(self) -> list[int]:
        count = len(self.dataset) - self.start_index
        if not self.shuffle:
            return list(range(self.start_index, self.start_index + count))
        generator = _torch.Generator()
        generator.manual_seed(self.seed + self.epoch)
        order: list[int] = _torch.randperm(count, generator=generator).add(self.start_index).tolist()
        return order
