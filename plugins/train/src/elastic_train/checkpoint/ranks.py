"""All ranks of a run, as far as checkpoints need them: each gives something, and gets what all have given."""

import sys
from datetime import timedelta
from typing import Any, TypeVar

T = TypeVar("T")


class Ranks:
    """The default process group's ranks, or a process alone where there is no group.

    They talk in a Gloo group of their own: a save in the background must not come between the collectives of training,
    and needs no GPU.

    Threading: one thread at a time.
    """

    def __init__(self, timeout: timedelta | None = None) -> None:
        """Make the group: called by all ranks."""
        dist = distributed()
        self.rank: int = dist.get_rank() if dist else 0
        self.size: int = dist.get_world_size() if dist else 1
        self._world = dist.group.WORLD if dist else None
        self.group: Any = None
        if dist and self.size > 1:
            self.group = dist.new_group(backend="gloo", **({"timeout": timeout} if timeout else {}))

    def are_those_of_now(self) -> bool:
        """Return whether the default process group is still the one that these are of."""
        dist = distributed()
        return (dist.group.WORLD if dist else None) is self._world

    def gather(self, value: T) -> list[T]:
        """Return what all ranks give, by rank."""
        if self.group is None:
            return [value]
        dist = distributed()
        found: list[Any] = [None] * self.size
        dist.all_gather_object(found, value, group=self.group)
        return found


def distributed() -> Any:  # noqa: ANN401  # a module
    """Return torch.distributed where a process group is; None: there is none, and nothing was imported to find out."""
    dist = sys.modules.get("torch.distributed")
    return dist if dist is not None and dist.is_available() and dist.is_initialized() else None
