"""One iterator over several epochs."""

from collections.abc import Callable, Iterable, Iterator
from typing import Generic, Self, TypeVar

T = TypeVar("T")


class CyclingIterator(Iterator[T], Generic[T]):
    """Iterates over the items of `generator_fn(epoch)`, epoch after epoch.

    Args:
        n: The number of all epochs, those before `start_epoch` included.
        generator_fn: Returns the items of an epoch; called with its number when it begins.
        start_epoch: The first epoch, from 0.
    """

    def __init__(self, n: int, generator_fn: Callable[[int], Iterable[T]], start_epoch: int = 0) -> None:
        """Begin the first epoch."""
        self._n = n
        self._generator_fn = generator_fn
        self._epoch = start_epoch
        self._iterator = iter(generator_fn(start_epoch))

    @property
    def epoch(self) -> int:
        """The epoch of the last item, for a checkpoint to store as `start_epoch`."""
        return self._epoch

    def __iter__(self) -> Self:
        """Return itself."""
        return self

    def __next__(self) -> T:
        """Return the next item. Empty epochs are skipped."""
        while True:
            try:
                return next(self._iterator)
            except StopIteration:
                if self._epoch >= self._n - 1:
                    raise
                self._epoch += 1
                self._iterator = iter(self._generator_fn(self._epoch))
