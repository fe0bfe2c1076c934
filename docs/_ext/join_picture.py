"""The timeline of a node that joins a run, drawn from the journals of a real run."""

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any, Final

from matplotlib.figure import Figure
from pictures import BUSY, INK, OURS, RUNS, STOPPED, Span, canvas, steps_of

BEFORE_MS: Final = -60.0
_OPTIONS: Final = (
    "--rdzv-backend", "c10d", "--rdzv-endpoint", "localhost:29871", "--rdzv-id", "join", "--nnodes", "1:2",
    "--rdzv-conf", "last_call_timeout=0.1", "--nproc-per-node", "2",
)  # fmt: skip

Journal = Sequence[Mapping[str, Any]]


def recorded_join() -> dict[str, Journal]:
    """Start node a, then node b, which joins; return the steps of both agents from their journals."""
    env = {name: value for name, value in os.environ.items() if not name.startswith(("PET_", "TORCHELASTIC_"))}
    with tempfile.TemporaryDirectory(prefix="elastic-join-") as folder, ExitStack() as ends:
        Path(folder, "train.py").write_text("import time\ntime.sleep(600)\n")
        agents = []
        for node in ("a", "b"):
            words = [*_OPTIONS, "--node-id", node, "--run-dir", node, "train.py"]
            agent = subprocess.Popen(
                [sys.executable, "-m", "elastic_core.run", *words], env=env, cwd=folder,
                stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            )  # fmt: skip
            ends.callback(agent.wait)
            ends.callback(agent.kill)
            agents.append(agent)
            _wait(partial(_started, Path(folder, node, "journal.jsonl"), 1))
        _wait(partial(_started, Path(folder, "a", "journal.jsonl"), 2))
        journals = {node: steps_of(Path(folder, node, "journal.jsonl")) for node in ("a", "b")}
        for agent in agents:
            agent.send_signal(signal.SIGTERM)
        for agent in agents:
            agent.wait(60)
        return journals


def _started(path: Path, times: int) -> bool:
    return len(_at(steps_of(path), "WorkersSpawned")) >= times


def _wait(ready: Callable[[], bool]) -> None:
    end_s = time.monotonic() + 60
    while not ready():
        if time.monotonic() > end_s:
            raise TimeoutError("no round within 60 s")
        time.sleep(0.02)  # noqa: TID251  # a drawing has no clock to inject


def _at(journal: Journal, event: str) -> list[float]:
    return [entry["at_s"] for entry in journal if entry["values"]["event"] == event]


def join_spans(journals: Mapping[str, Journal]) -> list[Span]:
    """Return what happened around the join, in milliseconds after node a stops its round for node b."""
    a, b = journals["a"], journals["b"]
    (zero_s,) = _at(a, "RoundChanged")
    exits = [entry["values"]["exit"] for entry in a if entry["values"]["event"] == "WorkerExited"]

    def ms(at_s: float) -> float:
        return (at_s - zero_s) * 1000

    stopped, formed = ms(_at(a, "WorkersStopped")[0]), ms(_at(a, "RoundFormed")[1])
    started = ms(_at(a, "WorkersSpawned")[1])
    joined, begun = ms(_at(b, "RoundFormed")[0]), ms(_at(b, "WorkersSpawned")[0])
    end = max(started, begun) + 60
    found = [
        Span("agent a", "", BEFORE_MS, 0.0, RUNS),
        Span("agent a", "stops its workers", 0.0, stopped, STOPPED),
        Span("agent a", "round 1 is formed", stopped, formed, BUSY),
        Span("agent a", "starts workers", formed, started, OURS),
    ]
    for exit in sorted(exits, key=lambda exit: exit["global_rank"]):
        row, ended = f"rank {exit['global_rank']}", ms(exit["at_s"])
        found.append(Span(row, "round 0", BEFORE_MS, ended, RUNS))
        found.append(Span(row, "round 1", started, end, RUNS))
    found += [
        Span("agent b", "takes a seat and waits", max(BEFORE_MS, ms(_at(b, "JoinAllowed")[0])), joined, BUSY),
        Span("agent b", "starts workers", joined, begun, OURS),
        *(Span(f"rank {rank}", "round 1", begun, end, RUNS) for rank in (2, 3)),
    ]
    return found


def join_picture(found: Sequence[Span]) -> Figure:
    """Draw the timeline."""
    rows = ["agent a", "rank 0", "rank 1", "agent b", "rank 2", "rank 3"]
    figure, axes = canvas(9.2, 2.9)
    axes.axis("on")
    for span in found:
        y = rows.index(span.row) + 0.35 * (span.row in rows[3:])
        axes.barh(y, span.to_ms - span.from_ms, left=span.from_ms, height=0.72, color=span.colour, alpha=0.6)
        if span.row.startswith("rank") or (span.row == "agent b" and span.from_ms < 0):
            axes.text(span.from_ms + 2, y, span.label, va="center", fontsize=10, color=INK)
    end_ms = max(span.to_ms for span in found)
    agent = [span for span in found if span.row == "agent a" and span.label]
    for number, span in enumerate(agent):
        middle = (span.from_ms + span.to_ms) / 2
        line = {"arrowstyle": "-", "color": INK, "lw": 0.6, "relpos": (0, 0.5)}
        text = f"{span.label}, {span.to_ms - span.from_ms:.0f} ms"
        place = (span.from_ms, -2.6 + 0.75 * number)
        axes.annotate(text, (middle, -0.36), place, fontsize=10, color=INK, arrowprops=line)
    axes.axvline(0.0, color=INK, lw=0.8, ls="--")
    heights = [number + 0.35 * (number > 2) for number in range(len(rows))]
    axes.set(xlim=(BEFORE_MS, end_ms), ylim=(len(rows) - 0.1, -3.0), yticks=heights, yticklabels=rows)
    axes.set_xlabel("milliseconds after the leader has ended round 0 for node b", fontsize=10, color=INK)
    axes.tick_params(colors=INK, labelsize=10)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.spines["bottom"].set_color(INK)
    return figure
