"""All ranks of a run, as far as checkpoints need them: each gives something, and gets what all have given."""

import sys
import weakref
from collections.abc import Callable
from datetime import timedelta
from typing import Any, TypeVar

from elastic_train.checkpoint.errors import CheckpointError, reason_of

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
        # Weakly: torch keeps groups until they are destroyed, which must end their threads then. One that still ran
        # when the interpreter ends would abort the process.
        self._world = weakref.ref(dist.group.WORLD) if dist else _nothing
        self._group: Callable[[], Any] = _nothing
        if self.size > 1:
            self._group = weakref.ref(dist.new_group(backend="gloo", **({"timeout": timeout} if timeout else {})))

    @property
    def group(self) -> Any:  # noqa: ANN401  # torch's
        """The group that they talk in; None: of a process alone, and of a default group that was destroyed."""
        return self._group()

    def are_those_of_now(self) -> bool:
        """Return whether the default process group is still the one that these are of."""
        dist = distributed()
        return (dist.group.WORLD if dist else None) is self._world()

    def gather(self, value: T) -> list[T]:
        """Return what all ranks give, by rank.

        Raises:
            CheckpointError: one of them is gone, or has not come in time.
        """
        if self.size == 1:
            return [value]
        found: list[Any] = [None] * self.size
        try:
            group = self.group
            if group is None:
                raise RuntimeError("the process group was destroyed")
            distributed().all_gather_object(found, value, group=group)
        except (RuntimeError, ValueError, AttributeError) as err:  # the last two: it is being destroyed
            # With torch's own words, by which it is seen that another rank was first.
            raise CheckpointError(
                f"rank {self.rank} did not meet the others for a checkpoint: {reason_of(err)}",
                hint="the same calls of a Checkpointer on all ranks, in the same order, while there is a group",
            ) from err
        return found


def _nothing() -> None:
    return None


def distributed() -> Any:  # noqa: ANN401  # a module
    """Return torch.distributed where a process group is; None: there is none, and nothing was imported to find out."""
    dist = sys.modules.get("torch.distributed")
    return dist if dist is not None and dist.is_available() and dist.is_initialized() else None
