"""One iterator over several epochs."""

from collections.abc import Callable, Iterable, Iterator
from typing import Generic, Self, TypeVar

T = TypeVar("T")


class CyclingIterator(Iterator[T], Generic[T]):
    """Goes through what `generator_fn(epoch)` gives, for one epoch after another.

    Args:
        n: How many epochs there are in all, those before `start_epoch` included.
        generator_fn: Gives what an epoch consists of: called with its number when it begins.
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
        """The epoch of the item that came last: what a checkpoint keeps as `start_epoch`."""
        return self._epoch

    def __iter__(self) -> Self:
        """Return itself."""
        return self

    def __next__(self) -> T:
        """Return the next item; empty epochs are passed over."""
        while True:
            try:
                return next(self._iterator)
            except StopIteration:
                if self._epoch >= self._n - 1:
                    raise
                self._epoch += 1
                self._iterator = iter(self._generator_fn(self._epoch))
