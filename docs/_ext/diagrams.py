"""Pictures of what has no times: how a round forms, how a hang is detected, the origin of settings, the house."""

import re
import textwrap
import tomllib
from collections.abc import Sequence
from typing import Final

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch
from pictures import BUSY, FAILED, FLOOR, INK, OURS, ROOT, RUNS, STOPPED, canvas, entry_points

SIZE: Final = 10
"""The size of letters, in points; a picture is 662 points wide, and a page at least as many pixels."""
WIDTH: Final = 92
"""The width of each picture: a unit is 7.2 points, a letter about 0.8 units."""


def sheet(height: float) -> tuple[Figure, Axes]:
    """Return an empty figure with units of 7.2 points, the origin at the lower left."""
    figure, _ = canvas(WIDTH / 10, height / 10)
    figure.clear()
    axes = figure.add_axes((0.0, 0.0, 1.0, 1.0))
    axes.axis("off")
    axes.set(xlim=(0, WIDTH), ylim=(0, height))
    return figure, axes


def box(
    axes: Axes, x: float, y: float, width: float, height: float, text: str, *, colour: str = INK, bold: bool = False
) -> None:
    """Draw a box with a text in its middle, filled where it has a colour."""
    filled = colour != INK
    axes.add_patch(
        FancyBboxPatch(
            (x, y), width, height, boxstyle="round,pad=0,rounding_size=0.8", edgecolor=colour, lw=1.0,
            facecolor=colour if filled else "none", alpha=0.45 if filled else 1.0,
        )
    )  # fmt: skip
    say(axes, x + width / 2, y + height / 2, text, middle=True, bold=bold)


def say(axes: Axes, x: float, y: float, text: str, *, middle: bool = False, bold: bool = False) -> None:
    """Write a text, from its left edge or around its middle."""
    axes.text(
        x, y, text, fontsize=SIZE, color=INK, ha="center" if middle else "left", va="center", linespacing=1.25,
        weight="bold" if bold else "normal",
    )  # fmt: skip


def arrow(axes: Axes, start: tuple[float, float], end: tuple[float, float], *, both: bool = False) -> None:
    """Draw an arrow."""
    axes.annotate("", end, start, arrowprops={"arrowstyle": "<->" if both else "->", "color": INK, "lw": 1.0})


# --- a run


def run_picture() -> Figure:
    """Draw two nodes of a run, the store in which they meet, and the three interfaces for plugins."""
    offered = entry_points()
    figure, axes = sheet(56)
    backends = ", ".join(name for name in offered["elastic_core.rendezvous"] if name not in ("local", "static"))
    box(axes, 22, 49, 48, 6, f"store: members, rounds, decisions\n({backends})", colour=BUSY)
    for left, node, first in ((1, "node a", 0), (47, "node b", 3)):
        axes.add_patch(
            FancyBboxPatch((left, 18), 44, 27, boxstyle="round,pad=0,rounding_size=1", fill=False, ec=INK, ls="--")
        )
        say(axes, left + 1.5, 42.8, node, bold=True)
        box(axes, left + 2, 34, 24, 6, "agent\n(elastic run)", colour=OURS)
        box(axes, left + 31, 34, 11, 6, "guard", colour=FLOOR)
        arrow(axes, (left + 26, 37), (left + 31, 37))
        arrow(axes, (left + 14, 40), (34 if left < 10 else 58, 49), both=True)
        for number in range(3):
            box(axes, left + 2 + 13.8 * number, 24, 12.4, 5, f"rank {first + number}", colour=RUNS)
            arrow(axes, (left + 14, 34), (left + 8.2 + 13.8 * number, 29))
        say(axes, left + 2, 20.4, "workers; the guard ends them if the agent dies")
    say(axes, 46, 15.2, "plugins, found by their entry points", middle=True)
    for left, group, what in (
        (1, "elastic_core.failure", "policy: restart or stop"),
        (32, "elastic_core.hooks", "hooks: actions at each step"),
        (63, "elastic_core.rendezvous", "backends: how nodes meet"),
    ):
        names = textwrap.fill(", ".join(offered.get(group, ["yours"])), 31)
        box(axes, left, 1, 28, 12, f"{what}\n\n{names}")
    return figure


# --- a round


def round_picture() -> Figure:
    """Draw how three nodes form a round, from left to right."""
    figure, axes = sheet(40)
    steps = (
        (14, "1. Each agent\ntakes a seat", OURS),
        (30, "2. Record: ready,\nlowest seat leads", BUSY),
        (50, "3. Last call", STOPPED),
        (64, "4. The leader\nwrites the round", FAILED),
        (80, "5. Workers\nstart", RUNS),
    )
    for x, text, _ in steps:
        say(axes, x, 37, text)
    for y, node, seat, arrives in ((29, "node a", 0, 14), (22, "node b", 1, 17), (15, "node c", 2, 23)):
        say(axes, 1, y + 2, node, bold=True)
        box(axes, arrives, y, 8.5, 4, f"seat {seat}", colour=OURS)
        box(axes, arrives + 9.5, y, 62 - arrives - 9.5, 4, "ready, leads" if seat == 0 else "ready", colour=BUSY)
        box(axes, 80, y, 11, 4, f"ranks {2 * seat}, {2 * seat + 1}", colour=RUNS)
        arrow(axes, (arrives + 4, y), (arrives + 4, 9))
    box(axes, 1, 3.5, 90, 5.5, "store: seats with leases, one record for each member, control, round", colour=FLOOR)
    box(axes, 47, 10.5, 14, 3.5, "last call", colour=STOPPED)
    arrow(axes, (62, 31), (72, 9))
    for y in (29, 22, 15):
        arrow(axes, (76, 9), (80, y + 2))
    say(axes, 62.5, 12, "write", bold=True)
    say(axes, 79.5, 12, "read", bold=True)
    say(axes, 1, 1.2, "A round forms when every live member is ready: it has no worker of another round.")
    return figure


# --- a hang


def hang_picture() -> Figure:
    """Draw how a hang of rank 1 is detected, with `--hang-timeout 120`."""
    figure, axes = sheet(36)
    left, unit = 12.0, 0.47  # where second 0 is, and the width of a second

    def x(second: float) -> float:
        return left + unit * (second + 10)

    for y, row in ((24, "rank 0"), (18, "rank 1"), (12, "agent")):
        say(axes, 1, y + 2, row, bold=True)
    for number, step in enumerate((1, 2)):
        for y in (24, 18):
            box(axes, x(-10 + 5 * number) + 0.1, y, 2.3, 4, str(step), colour=RUNS)
    box(axes, x(0), 24, 2.3, 4, "3", colour=RUNS)
    box(axes, x(5.2), 24, unit * (120 - 5.2), 4, "waits for rank 1 in a collective operation", colour=STOPPED)
    box(axes, x(0), 18, unit * 120, 4, "hangs in step 3, sends no heartbeat", colour=FAILED)
    for second in range(0, 121, 12):
        axes.plot([x(second)] * 2, [12.3, 15.7], color=BUSY, lw=2)
    axes.plot([x(-10), x(120)], [14, 14], color=INK, lw=0.6)
    for second, text in (
        (0, "0 s: last heartbeat\nof rank 1"),
        (60, "60 s, half the time-out:\nthe stacks of all ranks are kept,\na line names rank 1"),
        (120, "120 s: a failure of\nclass hang, and the\npolicy decides"),
    ):
        axes.plot([x(second)] * 2, [9.5, 29.5], color=INK, lw=0.9, ls="--")
        say(axes, x(second) - (0.5 if second else 4.5), 6, text)
    say(axes, x(-10), 32, "--hang-timeout 120: the agent looks at all ranks every 12 s (a tenth)", bold=True)
    say(axes, 1, 1.2, "Without heartbeats, output, reads and writes of the workers count instead.")
    return figure


# --- the origin of settings


def settings_picture() -> Figure:
    """Draw which origin of an option's value overrides which."""
    figure, axes = sheet(33)
    stairs: Sequence[tuple[str, str, str, str]] = (
        ("default", "1:1", "default", FLOOR),
        ("proposal of the\nenvironment (Slurm …)", "4", "Slurm: SLURM_STEP_NUM_NODES", BUSY),
        ("variable\nPET_NNODES=2:8", "2:8", "env PET_NNODES", STOPPED),
        ("command line\n--nnodes 2:4", "2:4", "flag --nnodes", RUNS),
    )
    for number, (what, value, origin, colour) in enumerate(stairs):
        left, bottom = 1 + 23 * number, 13
        box(axes, left, bottom, 21, 6 + 3.2 * number, "", colour=colour)
        say(axes, left + 10.5, bottom + 3 + 1.6 * number, what, middle=True, bold=True)
        say(axes, left + 10.5, 10.6, f"nnodes = {value}", middle=True)
        say(axes, left + 10.5, 6.8, textwrap.fill(origin, 20), middle=True)
        if number:
            arrow(axes, (left - 2, bottom + 4.5), (left + 0.4, bottom + 4.5))
    say(axes, 1, 31.5, "Each origin overrides those on its left:", bold=True)
    say(axes, 1, 1.8, "The last line of each is the origin that elastic run --dry-run shows.")
    return figure


# --- the house


def house_layers() -> list[list[str]]:
    """Return the layers of the core's import contract, from top to bottom: the packages and modules of each."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    (layers,) = (each["layers"] for each in contracts if each["id"] == "direction")
    return [re.split(r" [|:] ", layer) for layer in layers]


def house_picture() -> Figure:
    """Draw the layers of the core, of which each imports from those below only, and the distributions beside it."""
    figure, axes = sheet(54)
    say(axes, 1, 52, "elastic-core: a package imports only from lines below its own", bold=True)
    texts = [textwrap.fill(", ".join(names), 50) for names in house_layers()]
    top = 49.5
    for number, text in enumerate(texts):
        height = 3.2 + 1.9 * text.count("\n")
        top -= height + 0.9
        box(axes, 1, top, 47, height, text, colour=(OURS, BUSY, RUNS)[number * 3 // len(texts)])
    axes.plot([50, 50], [1, 50], color=INK, lw=0.6, ls="--")
    say(axes, 52, 52, "distributions beside it", bold=True)
    places: dict[str, list[str]] = {}
    for path in sorted(ROOT.glob("plugins/*/pyproject.toml")):
        groups = set(tomllib.loads(path.read_text())["project"].get("entry-points", {}))
        kind = next((kind for group, kind in _KINDS.items() if group in groups), "libraries and tools")
        places.setdefault(kind, []).append(path.parent.name)
    top = 49.5
    for kind in [*dict.fromkeys(_KINDS.values()), "libraries and tools"]:
        text = textwrap.fill(", ".join(places.get(kind, [])), 42)
        height = 5.2 + 1.9 * text.count("\n")
        top -= height + 1.3
        box(axes, 52, top, 39, height, f"{kind}:\n{text}")
    return figure


_KINDS: Final = {
    "elastic_core.rendezvous": "rendezvous backends",
    "elastic_core.failure": "policies",
    "elastic_core.environments": "environments",
    "elastic_core.hooks": "hooks, with options and commands",
    "elastic_core.options": "options",
    "elastic_core.commands": "commands",
}
"""What a distribution is for, by the first group here in which it registers something."""
