"""The file with the end of the previous round, which the agent's hook writes to the run directory.

It is a file because the variables of a worker with a spare must be the same in each round.
"""

import os
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

FILE_VARIABLE: Final = "LAST_ROUND_FILE"
"""The variable with the file's path. Names that begin with `ELASTIC_` belong to the agent."""
BY_FAILURE: Final = "failure"
BY_MEMBERSHIP: Final = "membership"
BY_RESTART: Final = "restart"
_FORMAT: Final = 1


class LastRound(NamedTuple):
    """The previous round, as the next round's workers see it."""

    world_size: int
    end: str
    """Why it ended: one of the values above."""
    reason: str
    """One line for people."""


def leave(path: Path, last: LastRound | None, *, before: int) -> None:
    """Write the file for the workers after round `before`. `None` for `last` removes an older round's file.

    If the file can't be written, the workers get no value and go on.
    """
    with suppress(OSError):
        if last is None:
            path.unlink(missing_ok=True)
            return
        import msgspec  # the agent has it, and `json` would delay its first restart by 2 ms

        reason = last.reason.encode(errors="backslashreplace").decode()  # file names may be no valid Unicode
        content = {"format": _FORMAT, "before": before, **last._replace(reason=reason)._asdict()}
        path.write_bytes(msgspec.json.encode(content))


def found(round_index: int | None) -> LastRound | None:
    """Return the file's content for this round's workers. `None` if there is none, or it is about another round."""
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
