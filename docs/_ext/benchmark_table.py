"""The table of the benchmarks' figures, from the same file as their picture."""

import json
from collections.abc import Callable, Mapping
from typing import Any, Final

from page_parts import table
from pictures import PICTURES, number

VERDICTS: Final = {True: "kept", False: "**exceeded**"}


def benchmarks() -> str:
    """Return a table of the medians of each measure, and of its budget."""
    document = json.loads((PICTURES / "benchmarks.json").read_text())
    rows = (
        (one["measure"], *(_median(one, launcher) for launcher in ("floor", "elastic run", "torchrun")), _budget(one))
        for one in document["results"]
    )
    machine = document["machine"]
    where = f"{machine['cores']} cores of {machine['processor']}, Python {machine['Python']}, torch {machine['torch']}"
    return f"{table(('what', 'floor', '`elastic run`', '`torchrun`', 'budget'), rows)}\n\nMeasured on {where}."


def _median(one: Mapping[str, Any], launcher: str) -> str:
    return f"{number(one['launchers'][launcher]['median'])} {one['unit']}" if launcher in one["launchers"] else ""


def _budget(one: Mapping[str, Any]) -> str:
    return f"{one['budget']}: {VERDICTS[one['kept']]}" if one["kept"] in VERDICTS else ""


GENERATORS: Final[Mapping[str, Callable[[], str]]] = {"benchmarks": benchmarks}
