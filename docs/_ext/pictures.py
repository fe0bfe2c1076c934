"""Pictures of the pages: a run and its parts, the timeline of one crash, the benchmarks' figures.

They are drawn when the pages are built; `readme_picture.py` draws the README's.
Names are taken from the code, times from a run that this module makes.
"""

import io
import json
import os
import re
import subprocess
import sys
import tempfile
import textwrap
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import benchmark_page
import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

ROOT: Final = Path(__file__).resolve().parents[2]
PICTURES: Final = ROOT / "docs" / "pictures"

INK: Final = "#12ab34"
"""Stands for the colour of the text around, which only the reader's browser knows."""
FLOOR, OURS, TORCHRUN = "#9aa0a6", "#2f7ed8", "#d9822b"
RUNS, FAILED, STOPPED, BUSY = "#4c9f70", "#c8453b", "#d9a441", "#7a86c9"

CRASHING: Final = """\
import os, time
if os.environ["RANK"] == "1":
    time.sleep(0.25)
    raise ValueError("boom")
time.sleep(600)
"""


class Span(NamedTuple):
    """A stretch of time in a row of the timeline, in milliseconds after the crash."""

    row: str
    label: str
    from_ms: float
    to_ms: float
    colour: str


def entry_points() -> dict[str, list[str]]:
    """Return the names that the distributions of this tree offer, by entry-point group."""
    found: dict[str, list[str]] = {}
    for path in [ROOT / "pyproject.toml", *sorted(ROOT.glob("plugins/*/pyproject.toml"))]:
        groups: Mapping[str, Mapping[str, str]] = tomllib.loads(path.read_text())["project"].get("entry-points", {})
        for group, names in groups.items():
            found.setdefault(group, []).extend(names)
    return {group: sorted(names) for group, names in found.items()}


# --- the timeline of one crash


def recorded_crash() -> list[dict[str, Any]]:
    """Make a run of two workers of which one crashes, twice; return the steps of the agent from its journal."""
    with tempfile.TemporaryDirectory(prefix="elastic-crash-") as folder:
        script = Path(folder, "train.py")
        script.write_text(CRASHING)
        words = ["--nproc-per-node", "2", "--max-restarts", "1", "--restart-backoff", "0", "--run-dir", f"{folder}/run"]
        env = {name: value for name, value in os.environ.items() if not name.startswith(("PET_", "TORCHELASTIC_"))}
        subprocess.run(
            [sys.executable, "-m", "elastic_core.run", *words, str(script)],
            env=env, cwd=folder, capture_output=True, timeout=60, check=False,
        )  # fmt: skip
        return steps_of(Path(folder, "run", "journal.jsonl"))


def steps_of(path: Path) -> list[dict[str, Any]]:
    """Return the steps of an agent from its journal, without a line that is still being written."""
    lines = path.read_text().splitlines(keepends=True) if path.exists() else []
    events = map(json.loads, (line for line in lines if line.endswith("\n")))
    return [event for event in events if event["name"] == "step"]


def spans(journal: Sequence[Mapping[str, Any]]) -> list[Span]:
    """Return what happened around the first crash: workers by rank, and what the agent did meanwhile."""
    spawned = [entry["at_s"] for entry in journal if entry["values"]["event"] == "WorkersSpawned"]
    exits = [entry["values"]["exit"] for entry in journal if entry["values"]["event"] == "WorkerExited"]
    crash = next(exit for exit in exits if exit["code"] > 0)
    crash_s, again_s = crash["at_s"], spawned[1]
    found: list[Span] = []
    ended = {exit["global_rank"]: exit["at_s"] for exit in reversed(exits)}
    for rank in sorted(ended):
        colour = FAILED if rank == crash["global_rank"] else STOPPED
        label = "ValueError" if rank == crash["global_rank"] else "SIGTERM"
        row = f"rank {rank}"
        found.append(Span(row, "round 0", _ms(spawned[0] - crash_s), _ms(ended[rank] - crash_s), RUNS))
        found.append(Span(row, label, _ms(ended[rank] - crash_s), _ms(again_s - crash_s), colour))
        found.append(Span(row, "round 1", _ms(again_s - crash_s), _ms(again_s - crash_s) + 60, RUNS))
    marks = {"Examined": "wait for other failures", "DecisionMade": "evidence, policy", "WorkersStopped": "stop rank 0",
             "RoundFormed": "rendezvous", "WorkersSpawned": "start both"}  # fmt: skip
    begin_s = crash_s
    for entry in journal:
        at_s, event = entry["at_s"], entry["values"]["event"]
        if crash_s < at_s <= again_s and event in marks:
            found.append(Span("agent", marks[event], _ms(begin_s - crash_s), _ms(at_s - crash_s), BUSY))
            begin_s = at_s
    return found


def crash_picture(found: Sequence[Span]) -> Figure:
    """Draw the timeline."""
    rows = ["agent", *sorted({span.row for span in found} - {"agent"})]
    figure, axes = canvas(9.2, 2.9)
    axes.axis("on")
    for span in found:
        y = rows.index(span.row)
        style = {"height": 0.7, "color": span.colour, "alpha": 0.65, "edgecolor": INK, "lw": 0.4}
        axes.barh(y, span.to_ms - span.from_ms, left=span.from_ms, **style)
        if span.row != "agent":
            left_ms = max(span.from_ms, -58) + 2
            axes.text(left_ms, y, span.label, va="center", fontsize=10, color=INK, clip_on=True)
    end_ms = max(span.to_ms for span in found)
    steps = [span for span in found if span.row == "agent"]
    for number, span in enumerate(steps):
        text = f"{span.label}, {span.to_ms - span.from_ms:.0f} ms"
        if number == 0:
            axes.text(span.from_ms + 2, 0, text, va="center", fontsize=10, color=INK)
            continue
        middle = (span.from_ms + span.to_ms) / 2
        line = {"arrowstyle": "-", "color": INK, "lw": 0.6, "relpos": (0, 0.5)}
        place = (steps[0].to_ms + 14 * (number - 1), -0.8 - 0.62 * (len(steps) - number))
        axes.annotate(text, (middle, -0.35), place, fontsize=10, color=INK, arrowprops=line)
    axes.axvline(0.0, color=INK, lw=0.8, ls="--")
    axes.text(2, -0.7, "rank 1 raises ValueError", va="center", fontsize=10, color=INK)
    axes.set(xlim=(-60, end_ms), ylim=(len(rows) - 0.4, -3.6), yticks=range(len(rows)), yticklabels=rows)
    axes.set_xlabel("milliseconds after the crash", fontsize=10, color=INK)
    axes.tick_params(colors=INK, labelsize=10)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.spines["bottom"].set_color(INK)
    return figure


# --- the benchmarks' figures


CHARTED: Final = (
    "start-1",
    "start-8",
    "exit",
    "restart-2",
    "restart-8",
    "ready-2",
    "ready-8",
    "first-start-8",
    "nodes-join",
    "nodes-restart-2",
    "rounds-redis-128-seconds",
    "rounds-etcd-128-seconds",
)
"""The figures of the chart: those that a user waits for."""


def benchmark_picture(document: Mapping[str, Any]) -> Figure:
    """Draw each time as a part of torchrun's: a point for the ratio, and a line for its interval."""
    colours = {"floor": FLOOR, "ft_launcher": TORCHRUN}
    rows = [
        (one, name)
        for key, one in document["figures"].items()
        if key in CHARTED and one["reference"] == "torchrun"
        for name in one["launchers"]
        if name.startswith("elastic run") and one["launchers"][name]["ratio"] is not None
    ]
    figure, axes = canvas(4.7, 1.0 + 0.5 * len(rows))
    axes.axis("on")
    for y, (one, name) in enumerate(rows):
        others = {other: colour for other, colour in colours.items() if other in one["launchers"]}
        for launcher, colour in {**others, name: OURS}.items():
            ratio = one["launchers"][launcher]["ratio"]
            low, value, high = (min(max(ratio[part], 1e-3), 10.0) for part in ("low", "value", "high"))
            axes.plot([low, high], [y, y], color=colour, lw=3, solid_capstyle="butt")
            axes.plot([value], [y], color=colour, marker="o", ms=7, lw=0)
        beside = axes.get_yaxis_transform()
        axes.text(1.02, y, _times(one, name), fontsize=10, va="center", color=INK, transform=beside)
    axes.axvline(1, color=INK, lw=0.8)
    axes.text(1, -0.7, "torchrun", fontsize=10, ha="center", color=INK)
    drawn = {launcher for one, _ in rows for launcher in one["launchers"]}
    for x, (name, colour) in zip((1e-3, 1.4e-2, 4e-2), {"elastic run": OURS, **colours}.items(), strict=True):
        if name in drawn:
            axes.text(x, -0.7, name, fontsize=10, color=colour)
    axes.set_xscale("log")
    axes.set(xlim=(9e-4, 11), ylim=(len(rows) - 0.4, -1), yticks=range(len(rows)))
    axes.set_yticklabels([textwrap.fill(one["title"], 36) for one, _ in rows], fontsize=10)
    axes.set_xticks([1e-3, 1e-2, 0.1, 1, 10], ["1/1000\nor less", "1/100", "1/10", "1", "10\nor more"])
    axes.set_xlabel("part of torchrun's time", fontsize=10, color=INK)
    axes.minorticks_off()
    axes.tick_params(colors=INK, labelsize=10)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    for side in ("bottom", "left"):
        axes.spines[side].set_color(INK)
    return figure


def _times(one: Mapping[str, Any], name: str) -> str:
    """Return the medians of ours and torchrun's, with what differs from a plain run."""
    number, launchers = benchmark_page.number, one["launchers"]
    ours, torchs = number(launchers[name]["median"]["value"]), number(launchers["torchrun"]["median"]["value"])
    more = name.removeprefix("elastic run").removeprefix(",").strip()
    return f"{f'{more}: ' if more else ''}{ours} {one['unit']} (torchrun: {torchs})"


# --- how all of them are drawn


def as_svg(figure: Figure, *, name: str) -> str:
    """Return a figure as SVG that takes the colour of the text around it."""
    with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": name, "font.family": "sans-serif"}):
        out = io.StringIO()
        figure.savefig(
            out, format="svg", transparent=True, bbox_inches="tight", metadata={"Date": None, "Creator": None}
        )
    text = out.getvalue()
    text = text[text.index("<svg") :].replace(INK, "currentColor")
    head, _, rest = text.partition(">")
    return re.sub(r'(height|width)="[\d.]+pt" ?', "", head).replace("<svg ", '<svg width="100%" ', 1) + ">" + rest


def texts(svg: str) -> list[str]:
    """Return what a picture says, without its numbers."""
    return sorted({re.sub(r"[\d.\u2212-]+", "#", word).strip() for word in re.findall(r">([^<>]+)</text>", svg)})


def canvas(width: float, height: float) -> tuple[Figure, Axes]:
    """Return an empty figure, in inches."""
    figure = Figure(figsize=(width, height))
    axes = figure.add_subplot()
    axes.axis("off")
    return figure, axes


def _ms(seconds: float) -> float:
    return seconds * 1000
