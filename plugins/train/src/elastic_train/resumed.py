"""The check of a trainer's callback before its first step: all ranks resume from the same step."""

from typing import Any

from elastic_train.checkpoint.ranks import distributed
from elastic_train.variables import error


def check_same_step(step: int) -> None:
    """Compare the steps from which the ranks of the default process group resume. Called: by all of them.

    Raises:
        ConfigError: the steps differ, as when the disk of one host lags; the same line on all ranks.
    """
    dist = distributed()
    if dist is None or dist.get_world_size() == 1:
        return
    found: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(found, step)
    for rank, other in enumerate(found):
        if other != found[0]:
            raise error(
                f"rank 0 goes on from step {found[0]}, rank {rank} from step {other}",
                "a folder of checkpoints that all nodes share, and see the same of",
            )
