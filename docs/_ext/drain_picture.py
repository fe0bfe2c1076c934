"""The timeline of one drain that costs no step, drawn from what the ranks of a real run have written down."""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Final

from matplotlib.figure import Figure
from pictures import BUSY, INK, OURS, RUNS, STOPPED, Span, canvas

SAVING: Final = """\
import json, os, time
from elastic_core.worker import should_stop
rank, step, seen = int(os.environ["RANK"]), 0, []
def note(what):
    seen.append((what, step, time.monotonic()))
while True:
    note("asks")
    if should_stop(step=step):
        break
    note("begins")
    time.sleep(0.040 + 0.004 * rank)
    step += 1
    if step == 5:
        open(f"{rank}.up", "w").close()
note("saves")
time.sleep(0.05 + 0.02 * rank)
note("saved")
with open(f"{rank}.json", "w") as file:
    json.dump(seen, file)
"""
RANKS: Final = 3
BEFORE_MS: Final = -110.0

Seen = Sequence[tuple[str, int, float]]
"""What a rank did, at which step, when."""


def recorded_drain() -> tuple[float, list[Seen], float]:
    """Drain a run of three workers; return when it was asked for, what each rank did, and when the agent ended."""
    with tempfile.TemporaryDirectory(prefix="elastic-drain-") as folder:
        script = Path(folder, "train.py")
        script.write_text(SAVING)
        words = ["--nproc-per-node", str(RANKS), str(script)]
        env = {name: value for name, value in os.environ.items() if not name.startswith(("PET_", "TORCHELASTIC_"))}
        agent = subprocess.Popen(
            [sys.executable, "-m", "elastic_core.run", *words], env=env, cwd=folder,
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        try:
            end_s = time.monotonic() + 60
            while len(list(Path(folder).glob("*.up"))) < RANKS and time.monotonic() < end_s:
                time.sleep(0.01)  # noqa: TID251  # a build of pages has no clock to inject
            asked_s = time.monotonic()
            agent.send_signal(signal.SIGTERM)
            agent.wait(60)
            ended_s = time.monotonic()
        finally:
            agent.kill()
            agent.wait()
        return asked_s, [json.loads(Path(folder, f"{rank}.json").read_text()) for rank in range(RANKS)], ended_s


def drain_spans(asked_s: float, ranks: Sequence[Seen], ended_s: float) -> list[Span]:
    """Return what the ranks did from shortly before the drain on, and what the agent did meanwhile."""

    def ms(at_s: float) -> float:
        return (at_s - asked_s) * 1000

    found: list[Span] = []
    agreed_s = asked_s
    for rank, seen in enumerate(ranks):
        for (what, step, at_s), (_, _, next_s) in pairwise(seen):
            if ms(next_s) < BEFORE_MS:
                continue
            if what == "begins":
                found.append(Span(f"rank {rank}", str(step), ms(at_s), ms(next_s), RUNS))
            elif what == "saves":
                found.append(Span(f"rank {rank}", "saves", ms(at_s), ms(next_s), OURS))
            elif next_s - at_s > 0.001:
                found.append(Span(f"rank {rank}", "", ms(at_s), ms(next_s), STOPPED))
                agreed_s = max(agreed_s, next_s)
    step = ranks[0][-1][1]
    saved_s = max(seen[-1][2] for seen in ranks)
    found.append(Span("agent", "agree", 0.0, ms(agreed_s), BUSY))
    found.append(Span("agent", "finish step, save", ms(agreed_s), ms(saved_s), BUSY))
    found.append(Span("agent", "end", ms(saved_s), ms(ended_s), STOPPED))
    return found


def drain_picture(found: Sequence[Span]) -> Figure:
    """Draw the timeline."""
    rows = ["agent", *sorted({span.row for span in found} - {"agent"})]
    figure, axes = canvas(9.2, 2.4)
    axes.axis("on")
    for span in found:
        y, left_ms = rows.index(span.row), max(span.from_ms, BEFORE_MS)
        axes.barh(
            y, span.to_ms - left_ms, left=left_ms, height=0.62, color=span.colour, alpha=0.75, edgecolor=INK, lw=0.4
        )
        if span.row == "agent":
            axes.text(left_ms, y - 0.6, span.label, ha="left", va="center", fontsize=10, color=INK)
        else:
            where = {"ha": "center", "va": "center", "fontsize": 10, "color": INK, "clip_on": True}
            axes.text((left_ms + span.to_ms) / 2, y, span.label, **where)
    axes.axvline(0.0, color=INK, lw=0.8, ls="--")
    end_ms = max(span.to_ms for span in found)
    axes.set(xlim=(BEFORE_MS, end_ms + 5), ylim=(len(rows) - 0.4, -1.0), yticks=range(len(rows)), yticklabels=rows)
    axes.set_xlabel("milliseconds after SIGTERM; numbers are steps, amber is waiting", fontsize=10, color=INK)
    axes.tick_params(colors=INK, labelsize=10)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.spines["bottom"].set_color(INK)
    return figure
