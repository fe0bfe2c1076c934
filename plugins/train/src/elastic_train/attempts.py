"""Which attempt of its run a worker belongs to, and its place in it: `attempt()`."""

import os
from dataclasses import dataclass

from elastic_train.last_round import found
from elastic_train.variables import place, whole_number


@dataclass(frozen=True, kw_only=True, slots=True)
class Attempt:
    """One worker's place in one attempt of its run; what nobody has said is None."""

    run_id: str | None
    """The run's id; torchrun's is `none` where `--rdzv-id` was not given."""
    round_index: int | None
    """The round, from 0: counts restarts and changes of membership. None under torchrun."""
    restart_count: int | None
    """How many failures were answered with a restart so far."""
    max_restarts: int | None
    """How many may be."""
    node_rank: int | None
    """The node's number in the round, from 0."""
    rank: int
    """This worker's number among all; 0 for a process alone."""
    local_rank: int
    """Its number on its node; 0 for a process alone."""
    world_size: int
    """How many workers there are; 1 for a process alone."""
    last_world_size: int | None
    """How many the round before had. None in the first round, on a node that was not in the one before, and under
    another launcher, so that two ranks may differ."""
    last_end: str | None
    """What ended the round before: `failure`, `membership` (nodes came or went), `restart` (it was asked for). None as
    above."""
    last_reason: str | None
    """A line for people about that. None as above."""


def attempt() -> Attempt:
    """Return this worker's attempt, by its variables. Imports no torch.

    Under torchrun and bare Python it says what their variables say; a process without any is rank 0 of 1.

    Raises:
        ConfigError: a variable is malformed, or one of `RANK`, `LOCAL_RANK` and `WORLD_SIZE` is missing.
    """
    rank, local_rank, world_size = place() or (0, 0, 1)
    round_index = whole_number("ELASTIC_ROUND")
    last = found(round_index)
    return Attempt(
        run_id=os.environ.get("TORCHELASTIC_RUN_ID"),
        round_index=round_index,
        restart_count=whole_number("TORCHELASTIC_RESTART_COUNT"),
        max_restarts=whole_number("TORCHELASTIC_MAX_RESTARTS"),
        node_rank=whole_number("GROUP_RANK"),
        rank=rank,
        local_rank=local_rank,
        world_size=world_size,
        last_world_size=last.world_size if last else None,
        last_end=last.end if last else None,
        last_reason=last.reason if last else None,
    )
