"""The tables of hangs with known truth, from the results of their test (`hangs.json`)."""

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from page_parts import table

RESULTS: Final = Path(__file__).with_name("hangs.json")
_WHERE: Final = {
    "one node": ("before", "calls", "groups"),
    "without recorder": ("no recorder",),
    "two nodes": ("two nodes",),
    "two nodes, without recorder": ("two nodes, no recorder",),
}
"""The columns, and the lanes of each."""
STRAGGLERS: Final = "stragglers"
"""The lane of slow ranks, which has a table of its own."""


def _results() -> Mapping[str, Any]:
    found: Mapping[str, Any] = json.loads(RESULTS.read_text())
    return found


def _outcomes(*lanes: str) -> Sequence[Mapping[str, Any]]:
    known = _results()["lanes"]
    return [outcome for lane in lanes for outcome in known.get(lane, ())]


def hangs() -> str:
    """A row for each fault: its results in each kind of run, and the report of the first one."""
    rows: dict[str, dict[str, str]] = {}
    says: dict[str, str] = {}
    for where, lanes in _WHERE.items():
        for outcome in _outcomes(*lanes):
            rows.setdefault(outcome["text"], {})[where] = _told(outcome)
            says.setdefault(outcome["text"], outcome["says"])
    lines = [(text, *(found.get(where, "") for where in _WHERE), _code(says[text])) for text, found in rows.items()]
    return table(("the rank, or the script", *_WHERE, "the report"), lines)


def stragglers() -> str:
    """A row for each kind of slow rank."""
    rows = [(outcome["text"], _told(outcome), _code(outcome["says"])) for outcome in _outcomes(STRAGGLERS)]
    return table(("the rank, or the script", "result", "the report"), rows)


def sums() -> str:
    """The number of cells with each result."""
    lanes = [lane for lanes in _WHERE.values() for lane in lanes]
    rows = []
    for where, names in (*((where, lanes) for where, lanes in _WHERE.items()), ("slow ranks", (STRAGGLERS,))):
        found = Counter(_kind(outcome) for outcome in _outcomes(*names))
        rows.append((where, *(str(found[kind]) for kind in _KINDS), str(sum(found.values()))))
    total = Counter(_kind(outcome) for outcome in _outcomes(*lanes, STRAGGLERS))
    rows.append(("all", *(str(total[kind]) for kind in _KINDS), str(sum(total.values()))))
    return table(("", *_KINDS, "all"), rows)


_KINDS: Final = ("named correctly", "correctly without a name", "not named", "named wrongly")


def _kind(outcome: Mapping[str, Any]) -> str:
    if outcome["result"] in ("named", "partly named"):
        return _KINDS[1] if not outcome["truth"] else _KINDS[0]
    if outcome["result"] == "not named":
        return _KINDS[2] if outcome["truth"] else _KINDS[1]
    return _KINDS[3]


def _told(outcome: Mapping[str, Any]) -> str:
    kind = _kind(outcome)
    if kind == _KINDS[1]:
        return "no hang" if outcome["expected"] == "no hang" else "no rank"
    return {"named": "named", "partly named": "in part", "not named": "not named"}.get(outcome["result"], "**wrong**")


def _code(text: str) -> str:
    return f"`{text}`" if text else ""


GENERATORS: Final[Mapping[str, Callable[[], str]]] = {"hangs": hangs, "hang-sums": sums, "stragglers": stragglers}
