"""The round of its run that a worker belongs to, and its rank in it: `attempt()`."""

import os
from dataclasses import dataclass

from elastic_train.last_round import found
from elastic_train.variables import place, whole_number


@dataclass(frozen=True, kw_only=True, slots=True)
class Attempt:
    """A worker's place in one round of its run. `None` means that the launcher does not provide the value."""

    run_id: str | None
    """The run's id. Under torchrun without `--rdzv-id` it is `none`."""
    round_index: int | None
    """The round, from 0. Each restart and each membership change begins a new round. `None` under torchrun."""
    restart_count: int | None
    """The number of restarts after failures so far."""
    max_restarts: int | None
    """The most restarts that are allowed."""
    node_rank: int | None
    """The node's rank in the round, from 0."""
    rank: int
    """This worker's rank among all workers; 0 for a process alone."""
    local_rank: int
    """This worker's rank on its node; 0 for a process alone."""
    world_size: int
    """The number of workers; 1 for a process alone."""
    last_world_size: int | None
    """The number of workers in the previous round. `None` in the first round, on a node that was not in the previous
    round, and under another launcher; ranks of one round may therefore differ in it.
    """
    last_end: str | None
    """Why the previous round ended: `failure`, `membership` (nodes joined or left), or `restart` (a requested restart).
    `None` as for `last_world_size`.
    """
    last_reason: str | None
    """One line for people about that reason. `None` as for `last_world_size`."""


def attempt() -> Attempt:
    """Return this worker's attempt, read from its environment variables. Imports no torch.

    Under torchrun and bare Python, the values come from the variables that are set. Without any, a process
    is rank 0 of 1.

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
