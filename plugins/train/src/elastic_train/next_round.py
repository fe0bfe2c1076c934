"""The part of a worker's interpreter that begins a further round in a process that its agent has kept."""

import sys


def begin() -> None:
    """Have planned stops use the memory of the round that begins.

    Called: by the agent's hook in each worker's interpreter (`LaunchChange.startup`), in a run that may have another
    round. It has no effect in a process that was just started.
    """
    if stops := sys.modules.get("elastic_train.stops"):
        stops.begin_round()
