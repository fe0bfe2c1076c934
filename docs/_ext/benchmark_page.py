"""The parts of the performance page that are made from the benchmarks' results (`make bench-save` writes them)."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from page_parts import table

PUBLISHED: Final = Path(__file__).resolve().parents[2] / "benchmarks" / "published.json"
OURS, TORCHRUN, FT_LAUNCHER = "elastic run", "torchrun", "ft_launcher"
GROUPS: Final = {
    "Start and end": ("start-", "first-start-", "exit", "help"),
    "Restart": ("restart-", "ready-", "kills-", "warm-"),
    "Agent without work": ("agent-",),
    "Output": ("tee-",),
    "Two nodes": ("nodes-",),
    "Many nodes": ("rounds-",),
    "Other figures": ("",),
}
"""The tables of the page, each with what the names of its figures begin with. The first that fits counts."""
VERDICTS: Final = {True: "kept", False: "**missed**"}


def published() -> Mapping[str, Any]:
    """Return the committed results."""
    found: Mapping[str, Any] = json.loads(PUBLISHED.read_text())
    return found


def number(value: float) -> str:
    """Return a figure with three digits, or more if it is an integer of thousands."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def summary(document: Mapping[str, Any]) -> str:
    """Return the two sentences that begin the page: starts and the end."""
    starts = [document["figures"][name]["launchers"] for name in ("start-1", "start-8")]
    one, eight = (f"{1 / start[OURS]['ratio']['value']:.2g} times as fast" for start in starts)
    (ours_1, torchs_1), (ours_8, torchs_8) = ([_median(start, name) for name in (OURS, TORCHRUN)] for start in starts)
    end = document["figures"]["exit"]["launchers"]
    return (
        f"`elastic run` starts one worker {one} as `torchrun` ({ours_1} ms against {torchs_1} ms), and eight workers "
        f"{eight} ({ours_8} ms against {torchs_8} ms).\nAfter the last worker has ended, `elastic run` ends within "
        f"{_median(end, OURS)} ms, `torchrun` within {_median(end, TORCHRUN)} ms."
    )


def figures(document: Mapping[str, Any]) -> str:
    """Return a table for each group: a row for each figure, and one more for each further way to run it."""
    peers = [TORCHRUN]
    if any(FT_LAUNCHER in one["launchers"] for one in document["figures"].values()):
        peers.append(FT_LAUNCHER)
    groups: dict[str, list[tuple[str, ...]]] = {group: [] for group in GROUPS}
    for key, one in document["figures"].items():
        group = next(group for group, begins in GROUPS.items() if key.startswith(begins))
        groups[group] += [_row(one, name, peers) for name in one["launchers"] if name.startswith(OURS)]
    head = ("what", "floor", "`elastic run`", *(f"`{name}`" for name in peers), "ratio to `torchrun`", "budget")
    machine, versions = document["machine"], document["versions"]
    others = "".join(f", {name} {version}" for name, version in versions.items())
    where = f"{machine['cores']} cores of {machine['processor']}, Linux {machine['kernel']}{others}"
    tables = "\n\n".join(f"### {group}\n\n{table(head, rows)}" for group, rows in groups.items() if rows)
    return f"Measured on {document['date']} on {where}.{_left_out(document)}\n\n{tables}"


def _row(one: Mapping[str, Any], name: str, peers: Sequence[str]) -> tuple[str, ...]:
    return (
        f"{one['title']}, {one['unit']}{variant(name)}",
        *(_median(one["launchers"], launcher) for launcher in ("floor", name, *peers)),
        _ratio(one, name),
        _budget(one["launchers"][name]),
    )


def not_faster(document: Mapping[str, Any]) -> str:
    """Return what is not faster (or smaller) than torchrun: every ratio whose interval is not below 1.

    If ft_launcher took part, also every ratio whose interval is not below that of ft_launcher's.
    """
    ratios = [(one, name) for one, name in ours(document) if _against_torchrun(one, name)]
    without = sum(1 for _ in ours(document)) - len(ratios)
    text = _listed(f"Of {len(ratios)} ratios, {{}} an interval that is not below 1", ratios, TORCHRUN, 1)
    if without:
        text += f"\n\nThe rows of the table without a ratio ({without}) prove nothing."
    of_both = [(one, name) for one, name in ratios if FT_LAUNCHER in one["launchers"]]
    if of_both:
        head = f"Of {len(of_both)} ratios, {{}} an interval that is not below that of `ft_launcher`"
        text += f"\n\n{_listed(head, of_both, FT_LAUNCHER, None)}"
    return text


def _listed(head: str, rows: Sequence[tuple[Mapping[str, Any], str]], peer: str, limit: float | None) -> str:
    """Return a list of the rows whose interval is not below a limit, or not below the interval of a peer's ratio."""
    lines = []
    for one, name in rows:
        taken = one["launchers"]
        least = taken[peer]["ratio"]["low"] if limit is None else limit
        if taken[name]["ratio"]["high"] >= least > 0:  # nothing is less than 0
            medians = f"{_median(taken, name)} {one['unit']}, with `{peer}` {_median(taken, peer)} {one['unit']}"
            lines.append(f"- {one['title']}{variant(name)}: {medians}; ratio to `torchrun` {_ratio(one, name)}")
    if not lines:
        return f"{head.format('none has')}."
    return f"{head.format('these have')}:\n\n" + "\n".join(lines)


def ours(document: Mapping[str, Any]) -> Iterator[tuple[Mapping[str, Any], str]]:
    """Yield each figure with each way in which this elastic-core was run."""
    for one in document["figures"].values():
        for name in one["launchers"]:
            if name.startswith(OURS):
                yield one, name


def _against_torchrun(one: Mapping[str, Any], name: str) -> bool:
    return one["reference"] == TORCHRUN and one["launchers"][name]["ratio"] is not None


def variant(name: str) -> str:
    """Return what differs from a plain run: an option, or the backend."""
    more = name.removeprefix(OURS).removeprefix(",").strip()
    return f", `{more}`" if more.startswith("--") else f", {more}" if more else ""


def _median(launchers: Mapping[str, Any], name: str) -> str:
    return number(launchers[name]["median"]["value"]) if name in launchers else ""


def _ratio(one: Mapping[str, Any], name: str) -> str:
    if not _against_torchrun(one, name):
        return ""
    ratio = one["launchers"][name]["ratio"]
    return f"{number(ratio['value'])} ({number(ratio['low'])} to {number(ratio['high'])})"


def _budget(taken: Mapping[str, Any]) -> str:
    return f"{taken['budget']}: {VERDICTS[taken['kept']]}" if taken["kept"] in VERDICTS else ""


def _left_out(document: Mapping[str, Any]) -> str:
    return "".join(f" `{name}` is left out: {why}." for name, why in document["left_out"].items())


GENERATORS: Final[Mapping[str, Callable[[], str]]] = {
    "benchmark-summary": lambda: summary(published()),
    "benchmarks": lambda: figures(published()),
    "benchmarks-not-faster": lambda: not_faster(published()),
}
