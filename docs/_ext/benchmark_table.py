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
        (
            f"{one['measure']}, {one['unit']}",
            *(_median(one, launcher) for launcher in ("floor", "elastic run", "torchrun")),
            _budget(one),
        )
        for one in document["results"]
    )
    machine = document["machine"]
    where = f"{machine['cores']} cores of {machine['processor']}, Python {machine['Python']}, torch {machine['torch']}"
    return f"{table(('what', 'floor', '`elastic run`', '`torchrun`', 'budget'), rows)}\n\nMeasured on {where}."


def _median(one: Mapping[str, Any], launcher: str) -> str:
    return number(one["launchers"][launcher]["median"]) if launcher in one["launchers"] else ""


def _budget(one: Mapping[str, Any]) -> str:
    if one["kept"] not in VERDICTS:
        return ""
    text = one["budget"].replace("<=", "at most").replace(">=", "at least").replace(" x ", " times ")
    return f"{text.replace('times faster than', 'times as fast as')}: {VERDICTS[one['kept']]}"


GENERATORS: Final[Mapping[str, Callable[[], str]]] = {"benchmarks": benchmarks}
