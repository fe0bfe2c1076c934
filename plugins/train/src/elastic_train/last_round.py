"""What a round leaves for the next one's workers: a file of the run directory, written by the agent's hook.

A file, not variables: those of a worker that has a spare must be the same in each round.
"""

import os
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

FILE_VARIABLE: Final = "LAST_ROUND_FILE"
"""The variable with the file's path. Names that begin with `ELASTIC_` are the agent's own."""
BY_FAILURE: Final = "failure"
BY_MEMBERSHIP: Final = "membership"
BY_RESTART: Final = "restart"
_FORMAT: Final = 1


class LastRound(NamedTuple):
    """A round that is over, as the workers of the next one see it."""

    world_size: int
    end: str
    """What ended it: one of the words above."""
    reason: str
    """A line for people."""


def leave(path: Path, last: LastRound | None, *, before: int) -> None:
    """Write the file for the workers of round `before`; nothing is known (None): remove the one of a round long ago.

    Where it can't be written, nothing is known: a script goes on all the same.
    """
    with suppress(OSError):
        if last is None:
            path.unlink(missing_ok=True)
            return
        import json  # a run that is never restarted needs none

        content = {"format": _FORMAT, "before": before, **last._asdict()}
        path.write_text(json.dumps(content), encoding="utf-8")


def found(round_index: int | None) -> LastRound | None:
    """Return what was left for the workers of this round; None: nothing, or what is there is about another round."""
    import json

    path = os.environ.get(FILE_VARIABLE)
    if not path or round_index is None:
        return None
    try:
        content = json.loads(Path(path).read_bytes())
        if (content["format"], content["before"]) != (_FORMAT, round_index):
            return None
        return LastRound(int(content["world_size"]), str(content["end"]), str(content["reason"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None
