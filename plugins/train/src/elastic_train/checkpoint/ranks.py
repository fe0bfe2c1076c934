"""Communication of all ranks for checkpoints: each rank sends a value, and gets those of all ranks."""

import socket
import sys
import weakref
from collections.abc import Callable
from datetime import timedelta
from typing import Any, Final, NamedTuple, TypeVar

from elastic_core.api import ConfigError, ElasticError
from elastic_train.checkpoint.errors import CheckpointError, Problem, hint_of, reason_of

T = TypeVar("T")

SAME_CALLS: Final = "the same calls of a Checkpointer on all ranks, in the same order, while there is a group"


class Ranks:
    """The ranks of the default process group, or a process alone if there is no group.

    They use a Gloo group of their own. A save in the background therefore does not disturb the collectives of training,
    and needs no GPU.

    Threading: one thread at a time.
    """

    def __init__(self, timeout: timedelta | None = None) -> None:
        """Make no group yet."""
        dist = distributed()
        self.rank: int = dist.get_rank() if dist else 0
        self.size: int = dist.get_world_size() if dist else 1
        self._timeout = timeout
        # Weakly: torch keeps groups until they are destroyed, which must end their threads then. One that still ran
        # when the interpreter ends would abort the process.
        self.world = weakref.ref(dist.group.WORLD) if dist else _nothing
        self._group: Callable[[], Any] | None = None
        self._apart = ""
        """Why they did not meet; what each would get from another may be of another call from then on."""

    @property
    def group(self) -> Any:  # noqa: ANN401  # torch's
        """Their own group. `None` for a process alone, and after the default group was destroyed."""
        return self._group() if self._group else None

    def are_those_of_now(self) -> bool:
        """Return whether the default process group is still the one that these ranks are from."""
        dist = distributed()
        return (dist.group.WORLD if dist else None) is self.world()

    def gather(self, place: str, value: T, problem: Exception | None = None) -> list[T]:
        """Return the values of all ranks, by rank. Called: by all ranks. The first call makes their group.

        Args:
            place: Name of the call and the point in it, the same on all ranks.
            value: This rank's value.
            problem: Why this rank can't continue, or `None`.

        Raises:
            ElasticError: a rank's problem, the same on all ranks. A process alone raises its own exception.
            CheckpointError: a rank is gone, is late, or is at another point; raised on all ranks that are at this one.
        """
        if self.size == 1:
            if problem is not None:
                raise problem
            return [value]
        given = self._exchange(_Given(place, value, self.for_others(problem)))
        for each in given:
            if each.problem is not None:
                raise each.problem.error() from problem
        for rank, each in enumerate(given):
            if each.place != given[0].place:
                raise CheckpointError(
                    f"ranks differ in what they call: rank {rank} is in {each.place}, rank 0 in {given[0].place}",
                    hint=SAME_CALLS,
                )
        return [each.value for each in given]

    def for_others(self, problem: Exception | None) -> Problem | None:
        """Return a problem in the form for other ranks. `None` if there is none."""
        if problem is None:
            return None
        what = problem.what if isinstance(problem, ElasticError) else reason_of(problem)
        where = f" (rank {self.rank} on {socket.gethostname()})" if self.size > 1 else ""
        return Problem(f"{what}{where}", hint_of(problem), isinstance(problem, ConfigError))

    def _exchange(self, given: "_Given") -> list["_Given"]:
        if self._apart:
            raise CheckpointError(
                f"rank {self.rank} can't meet the others in {given.place}, as it did not before: {self._apart}",
                hint="a restart of the workers, or a new process group",
            )
        found: list[Any] = [None] * self.size
        try:
            self._make_group()
            group = self.group
            if group is None:
                raise RuntimeError("the process group was destroyed")
            distributed().all_gather_object(found, given, group=group)
        except (RuntimeError, ValueError, AttributeError) as err:  # the last two: it is being destroyed
            self._apart = reason_of(err)
            # With torch's own words, by which it is seen that another rank was first.
            raise CheckpointError(
                f"rank {self.rank} did not meet the others in {given.place}: {self._apart}", hint=SAME_CALLS
            ) from err
        return found

    def _make_group(self) -> None:
        """Make the ranks' group if there is none. This is a collective call."""
        if self._group is None:
            options = {"timeout": self._timeout} if self._timeout else {}
            self._group = weakref.ref(distributed().new_group(backend="gloo", **options))


class _Given(NamedTuple):
    """The message of one rank."""

    place: str
    value: Any
    problem: Problem | None


def _nothing() -> None:
    return None


def distributed() -> Any:  # noqa: ANN401  # a module
    """Return torch.distributed if a process group exists, else `None`. Imports nothing."""
    dist = sys.modules.get("torch.distributed")
    return dist if dist is not None and dist.is_available() and dist.is_initialized() else None
