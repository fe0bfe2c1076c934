"""The one result file: what a run of the benchmarks measured, and where. `--schema` prints its JSON schema.

`latest.json` is of the run before; `published.json` is committed, and the performance page is made from it.
"""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

import msgspec

from benchmarks.measure import Figure
from benchmarks.stats import FLOOR, OTHER, OURS, TORCHRUN, Estimate, median, ratio

FOLDER = Path(__file__).parent
LATEST = FOLDER / "results" / "latest.json"
PUBLISHED = FOLDER / "published.json"


class Launcher(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What one launcher took, or what one way to run it took."""

    samples: list[float]
    """In the order of the turns."""
    median: Estimate
    ratio: Estimate | None
    """To the figure's reference; below 1 is less than the reference takes. None for the reference itself, and if one
    of its samples is 0."""
    budget: str | None
    kept: bool | None
    """Whether the budget is kept; None if there is none, or nothing to compare with."""


class Result(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A figure, of every launcher that takes part. Less is better."""

    title: str
    unit: str
    reference: str | None
    """The launcher that ratios are against: torchrun if it took part, else the floor. None: there are no ratios."""
    launchers: dict[str, Launcher]


class Machine(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where it was measured."""

    cores: int
    processor: str
    kernel: str
    load: float
    """Processes that wanted a core at the begin (the average of a minute)."""
    load_at_the_end: float


class Document(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The file."""

    version: Literal[1]
    date: str
    """Of the day, in UTC, as 2026-01-31."""
    size: str
    machine: Machine
    versions: dict[str, str]
    """Of Python, and by distribution."""
    figures: dict[str, Result]
    left_out: dict[str, str]
    """Figures that could not be measured, and why."""


class ResultsError(ValueError):
    """A file is no result file."""


def result(figure: Figure, samples: Mapping[str, Sequence[float]]) -> Result:
    """Work out what a figure's samples say.

    Args:
        figure: What was measured.
        samples: At least one for each launcher that is named.
    """
    rounded = {name: [float(f"{sample:.5g}") for sample in taken] for name, taken in samples.items()}
    medians = {name: median(taken) for name, taken in rounded.items()}
    values = {name: each.value for name, each in medians.items()}
    reference = next((name for name in (TORCHRUN, FLOOR) if name in rounded and figure.ratios), None)
    launchers = {}
    for name, taken in rounded.items():
        budget = figure.budgets.get(name)
        launchers[name] = Launcher(
            samples=taken,
            median=medians[name],
            ratio=None if reference in (None, name) else ratio(taken, rounded[reference]),
            budget=None if budget is None else str(budget),
            kept=None if budget is None else budget.kept(values, name),
        )
    return Result(title=figure.title, unit=figure.unit, reference=reference, launchers=launchers)


def is_ours(launcher: str) -> bool:
    """Return whether a name is that of this elastic-core, with or without options."""
    return launcher.startswith(OURS) and launcher != OTHER


def schema() -> bytes:
    """Return the JSON schema of the file."""
    return msgspec.json.format(msgspec.json.encode(msgspec.json.schema(Document)), indent=1)


def load(path: Path) -> Document:
    """Read a result file.

    Raises:
        ResultsError: it is missing, or does not fit the schema.
    """
    try:
        return msgspec.json.decode(path.read_bytes(), type=Document)
    except (OSError, msgspec.MsgspecError) as error:
        raise ResultsError(f"{path}: {error}; expected a result file. Try: make bench") from error


def save(document: Document, path: Path) -> None:
    """Write a result file, with the samples of a launcher on one line, and each estimate."""
    text = msgspec.json.format(msgspec.json.encode(document), indent=1).decode()
    text = re.sub(r"\[[^\]\[{}\"]*\]|\{[^\]\[{}]*\"level\"[^\]\[{}]*\}", _on_one_line, text)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text + "\n")


def _on_one_line(found: re.Match[str]) -> str:
    return re.sub(r"(?<=[\[{]) | (?=[\]}])", "", " ".join(found[0].split()))
