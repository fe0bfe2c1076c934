"""Each rank's share of a data set, from an index on.

Importing it imports torch: the class is one of torch's samplers. torch is named in strings, for the type checker's
sake, which would need torch and minutes.
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
    """Gives each rank its share of what a data set has from `start_index` on, so that a restart goes on in an epoch.

    Every rank gets as many indices: some of the first come again at the end where they don't divide evenly. The order
    depends on seed and epoch alone (`set_epoch`), so that all ranks agree on it, however many they are.

    Args:
        dataset: What is sampled; its size must not change.
        num_replicas: How many ranks; None: those of the process group.
        rank: Which one; None: that of the process group.
        start_index: Where the data set begins: what lies before is left out. With `shuffle` the rest is shuffled anew,
            so that the number of samples trained on in an epoch is a right start without `shuffle` only.
        shuffle: Whether the indices come in random order.
        seed: Added to the epoch, for another order.

    Raises:
        TypeError: the data set has no length.
        ValueError: nothing is left from `start_index` on, or it is negative.
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
        """Check what was asked for."""
        if not isinstance(dataset, Sized):
            raise TypeError(f"data set: a {type(dataset).__name__}; expected one with a length")
        super().__init__(dataset=dataset, num_replicas=num_replicas, rank=rank, shuffle=shuffle, seed=seed)
        self.set_start_index(start_index)

    def set_start_index(self, start_index: int) -> None:
        """Begin at another index: 0 for the epoch after the one that was begun again.

        Raises:
            ValueError: nothing is left from there on, or it is negative.
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
        """Return how many indices each rank gets."""
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
