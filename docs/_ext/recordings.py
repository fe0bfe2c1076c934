"""What real runs did, kept for the pictures: a crash, a drain, a join, a warm and a cold round.

`python docs/_ext/recordings.py` makes these runs and writes docs/pictures/NAME.json; with names, only these. The pages
draw the stored times, so that a build of the pages on a busy machine has readable pictures.
"""

import json
import sys
from collections.abc import Callable, Mapping
from typing import Final

from drain_picture import drain_spans, recorded_drain
from join_picture import join_spans, recorded_join
from pictures import PICTURES, Span, recorded_crash, spans
from warm_picture import recorded_round, round_spans

RECORDERS: Final[Mapping[str, Callable[[], list[Span]]]] = {
    "crash": lambda: spans(recorded_crash()),
    "drain": lambda: drain_spans(*recorded_drain()),
    "join": lambda: join_spans(recorded_join()),
    "warm": lambda: round_spans(*recorded_round("warm")),
    "cold": lambda: round_spans(*recorded_round("cold")),
}


def stored(name: str) -> list[Span]:
    """Return the spans of a stored recording."""
    return [Span(*each) for each in json.loads((PICTURES / f"{name}.json").read_text())]


def store(name: str) -> None:
    """Make one run three times and write the times of the quickest."""
    best = min((RECORDERS[name]() for _ in range(3)), key=lambda found: max(span.to_ms for span in found))
    rows = (json.dumps(span._replace(from_ms=round(span.from_ms, 2), to_ms=round(span.to_ms, 2))) for span in best)
    (PICTURES / f"{name}.json").write_text("[\n " + ",\n ".join(rows) + "\n]\n")


if __name__ == "__main__":
    for name in sys.argv[1:] or RECORDERS:
        store(name)
