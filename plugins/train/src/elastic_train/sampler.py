"""Batches of a data set for each rank, with a place in the epoch that is valid at any world size: `ElasticSampler`."""

import logging
from collections.abc import Iterator, Mapping, Sequence, Sized
from typing import Any, Final

from elastic_train.checkpoint.ranks import distributed
from elastic_train.variables import error, place

_logger: Final = logging.getLogger("elastic_train")
_LAST: Final = ("share", "drop")


class ElasticSampler:
    """Batches of indices for each rank: `DataLoader(dataset, batch_sampler=sampler)`.

    An epoch is one order of all indices, the same for all ranks and at any world size. Each step uses the next
    `batch_size * world_size` indices of that order, so one number describes the place in the epoch. Call `advance()`
    after each training step to move it; batches that a loader has fetched ahead don't count. With another world size or
    batch size, a restored sampler goes on from that place, and each index still comes once per epoch.

    Args:
        data: The data set, or its length.
        batch_size: Batch size of one rank.
        shuffle: Whether each epoch has a random order, that of torch's `DistributedSampler`; else the data's order.
        seed: Seed of the order, the same on all ranks.
        last: How to use the end of an epoch, which is too short for full batches on all ranks. `share` divides it into
            smaller batches. If it has fewer indices than there are ranks, the batches of the step before get one index
            more; if the whole rest of the epoch is that short, some indices come twice, as each rank needs a batch.
            `drop` skips it.
        rank: Rank of this process. `None` means that of the process group, else of the variables, else 0.
        world_size: The number of ranks. `None` as for `rank`.

    Raises:
        ConfigError: an argument is malformed.
    """

    def __init__(
        self,
        data: Sized | int,
        *,
        batch_size: int = 1,
        shuffle: bool = True,
        seed: int = 0,
        last: str = "share",
        rank: int | None = None,
        world_size: int | None = None,
    ) -> None:
        """Begin the first epoch."""
        self.length = data if isinstance(data, int) else _length_of(data)
        for name, value, least in (("data", self.length, 1), ("batch_size", batch_size, 1), ("seed", seed, 0)):
            if type(value) is not int or value < least:
                raise error(
                    f"ElasticSampler({name}={value!r}); expected a whole number, {least} at least", f"{name}=32"
                )
        if last not in _LAST:
            raise error(f"ElasticSampler(last={last!r}); expected 'share' or 'drop'", "last='share'")
        self.batch_size = batch_size
        self.shuffle = shuffle
        self.seed = seed
        self.last = last
        own = _own_place()
        self.rank = own[0] if rank is None else rank
        self.world_size = own[1] if world_size is None else world_size
        if not 0 <= self.rank < self.world_size:
            raise error(f"ElasticSampler(rank={self.rank}); expected 0 to {self.world_size - 1}", "neither argument")
        if last == "drop" and self.length < batch_size * self.world_size:
            raise error(
                f"ElasticSampler(last='drop'): {self.length} samples are no batch of {batch_size} for each of "
                f"{self.world_size} ranks",
                "last='share', or a smaller batch_size",
            )
        self.epoch = 0
        """The epoch of the next batch."""
        self.position = 0
        """The number of its samples that all ranks together have used."""
        self._order: tuple[int, Sequence[int] | Any] | None = None
        self._counted = 0
        self._lost: int | None = None
        """The count at which a loop ended without a counted batch; its batches may be counted later."""

    def __iter__(self) -> Iterator[list[int]]:
        """Return this rank's batches in the rest of the epoch."""
        order = self._order_of(self.epoch)
        position, counted = self.position, self._counted
        while size := self._step_size(position):
            chosen = order[position + self.rank : position + size : self.world_size]
            batch = chosen if isinstance(chosen, range) else chosen.tolist()
            # Fewer indices than ranks: a rank without one uses another rank's.
            yield list(batch) or [int(order[position + self.rank % size])]
            position += size
        self._lost = counted if self._counted == counted else None

    def __len__(self) -> int:
        """Return the number of batches left in the epoch, the same for all ranks."""
        left, whole = self.length - self.position, self.batch_size * self.world_size
        if self.last == "drop":
            return left // whole
        steps, rest = divmod(left, whole)
        return steps + (rest >= self.world_size or (rest > 0 and steps == 0))

    def advance(self) -> None:
        """Count one batch as trained. Each rank calls it after its step; after the last batch the next epoch begins."""
        self._counted += 1
        self.position += self._step_size(self.position)
        if not self._step_size(self.position):
            self.set_epoch(self.epoch + 1)

    def set_epoch(self, epoch: int) -> None:
        """Begin an epoch, or continue it if it is the current one. Not needed by scripts that call `advance()`."""
        if epoch != self.epoch:
            self.epoch, self.position = epoch, 0

    def _step_size(self, position: int) -> int:
        """Return the number of samples that all ranks use in the step at a position. 0 means the end of the epoch."""
        left, whole = self.length - position, self.batch_size * self.world_size
        if self.last == "drop":
            return whole if left >= whole else 0
        return whole if left >= whole + self.world_size or left == whole else left if left > 0 else 0

    def _order_of(self, epoch: int) -> Any:  # noqa: ANN401  # a range, or a tensor
        if not self.shuffle:
            return range(self.length)
        if self._order is None or self._order[0] != epoch:
            from elastic_core.api.workers import import_torch

            torch = import_torch("ElasticSampler")
            generator = torch.Generator()
            generator.manual_seed(self.seed + epoch)
            self._order = epoch, torch.randperm(self.length, generator=generator)
        return self._order[1]

    # --- its state

    def state_dict(self) -> dict[str, Any]:
        """Return the place in training, the same on all ranks, for a checkpoint that one of them writes."""
        if self._lost == self._counted:
            self._lost = None
            _logger.warning("a loop over an ElasticSampler has ended and counted no batch. Try: advance() after each")
        return {
            "length": self.length,
            "seed": self.seed,
            "shuffle": self.shuffle,
            "epoch": self.epoch,
            "position": self.position,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume at a saved place, at any world size and batch size.

        Raises:
            ConfigError: the state is of another data set or another order.
        """
        for name in ("length", "seed", "shuffle"):
            if state[name] != getattr(self, name):
                raise error(
                    f"this ElasticSampler has {name} {getattr(self, name)!r}, the state that it is to go on from "
                    f"{state[name]!r}",
                    "the same data and arguments, or no state of the sampler's",
                )
        self.epoch, self.position = int(state["epoch"]), int(state["position"])
        if not self._step_size(self.position):  # with `drop`, more ranks may need more samples than are left
            self.set_epoch(self.epoch + 1)


def _length_of(data: object) -> int:
    if not isinstance(data, Sized):
        raise error(
            f"ElasticSampler({type(data).__name__}); expected a data set with a length, or a length",
            "torchdata's StatefulDataLoader for what has none, at one world size",
        )
    return len(data)


def _own_place() -> tuple[int, int]:
    dist = distributed()
    if dist is not None:
        return dist.get_rank(), dist.get_world_size()
    found = place()
    return (found[0], found[2]) if found else (0, 1)
