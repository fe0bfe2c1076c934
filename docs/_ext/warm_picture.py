"""The timelines of a warm and of a cold round, drawn from what agent and workers of two real runs have noted."""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from page_parts import table
from pictures import BUSY, FAILED, FLOOR, INK, OURS, RUNS, STOPPED, Span, steps_of

TRAINING: Final = """\
import json, os, time
log = open(f"{os.environ['LOCAL_RANK']}.jsonl", "a")
def note(what):
    log.write(json.dumps([int(os.environ["ELASTIC_ROUND"]), what, time.monotonic(), step()]) + "\\n")
    log.flush()
def step():
    return state.step if "state" in globals() else 0
note("begins")
import signal
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
import elastic_warm as warm
from elastic_train import Checkpointer
note("has imported")
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(512, 1024), torch.nn.ReLU(), torch.nn.Linear(1024, 512))
optimizer = torch.optim.Adam(model.parameters())
checkpoints = Checkpointer("checkpoints")
state = warm.State(model=model, optimizer=optimizer, step=0, checkpointer=checkpoints)

@warm.rounds
def train():
    note("enters")
    try:
        rounds()
    finally:
        note("leaves")

def rounds():
    dist.init_process_group("gloo")
    net = DistributedDataParallel(model)
    note("has a group")
    state.sync()
    note("has the state")
    first = state.step
    while state.step < 30:
        optimizer.zero_grad()
        net(torch.ones(8, 512)).square().mean().backward()
        optimizer.step()
        state.step += 1
        state.commit()
        if state.step == first + 1:
            note("trains")
        if state.step % 10 == 0:
            checkpoints.save(state.parts(), step=state.step)
        time.sleep(0.02)
        if state.step == 25 and os.environ["ELASTIC_ROUND"] == "0" and dist.get_rank() == 1:
            note("is killed")
            os.kill(os.getpid(), signal.SIGKILL)

train()
"""
"""Rank 1 is killed after step 25. The last checkpoint is then of step 20."""
COMMANDS: Final[Mapping[str, Sequence[str]]] = {
    "warm": ("--standby", "--standby-imports", "torch,torch.distributed,torch._dynamo"),
    "cold": ("--warm-timeout", "0"),
}
"""The options of each round's run, by the name of its recording."""
BEFORE, AFTER = 0.12, 0.2
"""Parts of the round's time that are drawn before the kill and after the first step."""

LEAVES, ENDS, GONE, PLACE, START, IMPORTS, MODEL, GROUP, STATE, STEP = (
    "leaves", "ends", "no process", "waits for its place", "starts", "imports", "model, optimizer",
    "process group, DDP", "state", "first step",
)  # fmt: skip
COLOURS: Final[Mapping[str, str]] = {
    LEAVES: STOPPED, ENDS: "#e0855c", GONE: FAILED, PLACE: FLOOR, START: "#8d6e97", IMPORTS: "#b07aa1",
    MODEL: "#d37295", GROUP: OURS, STATE: "#6bb7c9", STEP: "#a5cf8c",
}  # fmt: skip
"""What a worker does between two rounds, in order, each with its colour."""
AGENT: Final[Mapping[str, str]] = {
    "DecisionMade": "notices, decides", "WorkersStopped": "stops workers", "RoundFormed": "rendezvous",
    "WorkersSpawned": "starts workers",
}  # fmt: skip
"""What the agent does until each of its events."""

ROWS: Final = ("agent", "rank 0", "rank 1")

Notes = Mapping[tuple[int, str], tuple[float, int]]
"""The time of each note of a local rank, and the step at that time, by round and text."""


def recorded_round(kind: str) -> tuple[Sequence[Mapping[str, Any]], Sequence[Notes]]:
    """Kill one of two workers. Return the steps of the agent from its journal, and the notes of the workers."""
    with tempfile.TemporaryDirectory(prefix=f"elastic-{kind}-") as folder:
        script = Path(folder, "train.py")
        script.write_text(TRAINING)
        words = ["--nproc-per-node", "2", "--omp-threads", "1", "--max-restarts", "1", "--restart-backoff", "0"]
        words += [*COMMANDS[kind], "--run-dir", f"{folder}/run", str(script)]
        env = {name: value for name, value in os.environ.items() if not name.startswith(("PET_", "TORCHELASTIC_"))}
        subprocess.run(
            [sys.executable, "-m", "elastic_core.run", *words],
            env=env, cwd=folder, capture_output=True, timeout=120, check=True,
        )  # fmt: skip
        return steps_of(Path(folder, "run", "journal.jsonl")), [_notes(Path(folder, f"{n}.jsonl")) for n in (0, 1)]


def _notes(path: Path) -> Notes:
    return {(index, what): (at_s, step) for index, what, at_s, step in map(json.loads, path.read_text().splitlines())}


def round_spans(journal: Sequence[Mapping[str, Any]], workers: Sequence[Notes]) -> list[Span]:
    """Return what agent and workers did from shortly before the kill of local rank 1 on."""
    zero_s, killed_step = workers[1][0, "is killed"]

    def ms(at_s: float) -> float:
        return (at_s - zero_s) * 1000

    done: dict[str, float] = {}
    for entry in journal:
        if entry["at_s"] > zero_s:
            done.setdefault(entry["values"]["event"], ms(entry["at_s"]))
    exits = [entry["values"]["exit"] for entry in journal if entry["values"]["event"] == "WorkerExited"]
    ended = {exit["local_rank"]: ms(exit["at_s"]) for exit in reversed(exits)}
    last = max(ms(notes[1, "trains"][0]) for notes in workers)
    begin, end = -BEFORE * last, (1 + AFTER) * last
    found = [Span("agent", "", begin, 0.0, RUNS)]
    at = 0.0
    for event, label in AGENT.items():
        found.append(Span("agent", label, at, done[event], BUSY))
        at = done[event]
    found.append(Span("agent", "", at, end, RUNS))
    for rank, row in enumerate(ROWS[1:]):
        notes = workers[rank]
        own = {what: ms(at_s) for (index, what), (at_s, _) in notes.items() if index == 1}
        stopped = ms(notes[0, "leaves"][0]) if (0, "leaves") in notes else 0.0
        found.append(Span(row, f"step {killed_step}", begin, stopped, RUNS))
        if "begins" not in own:
            moments = [(LEAVES, done["WorkersStopped"]), (PLACE, own["enters"])]
        else:
            moments = [(ENDS, ended[rank])] if rank == 0 else []
            moments += [(GONE, min(done["WorkersSpawned"], own["begins"])), (START, own["begins"])]
            moments += [(IMPORTS, own["has imported"]), (MODEL, own["enters"])]
        moments += [(GROUP, own["has a group"]), (STATE, own["has the state"]), (STEP, own["trains"])]
        for label, until in moments:
            found.append(Span(row, label, stopped, until, COLOURS[label]))
            stopped = until
        found.append(Span(row, f"from step {notes[1, 'has the state'][1]}", stopped, end, RUNS))
    return found


# --- the picture and the table


TITLES: Final[Mapping[str, str]] = {"warm": "Warm round", "cold": "Cold round"}


def trains_again_ms(found: Sequence[Span]) -> float:
    """Return when both ranks have completed a step of the new round."""
    return max(span.to_ms for span in found if span.label == STEP)


def warm_picture(stored: Callable[[str], Sequence[Span]]) -> Figure:
    """Draw both timelines, one above the other, each with a scale of its own."""
    figure = Figure(figsize=(9.2, 5.0))
    for number, kind in enumerate(TITLES, start=1):
        _draw(figure.add_subplot(len(TITLES), 1, number), TITLES[kind], stored(kind))
    handles = [Patch(facecolor=colour, alpha=0.8, label=label) for label, colour in COLOURS.items()]
    figure.legend(handles=handles, loc="lower center", ncols=5, fontsize=10, labelcolor=INK, frameon=False)
    figure.subplots_adjust(left=0.1, right=0.99, hspace=0.68, bottom=0.2, top=0.94)
    return figure


def _draw(axes: Axes, title: str, found: Sequence[Span]) -> None:
    begin, end = min(span.from_ms for span in found), max(span.to_ms for span in found)
    letters_a_ms = 99 / (end - begin)
    for span in found:
        y, length = ROWS.index(span.row), span.to_ms - span.from_ms
        axes.barh(y, length, left=span.from_ms, height=0.56, color=span.colour, alpha=0.8, edgecolor=INK, lw=0.3)
        words = [span.label] if span.colour == RUNS else [f"{span.label} {_ms(span)}", _ms(span)]
        fits = [text for text in words if len(text) < length * letters_a_ms]
        if fits and span.row != "agent":
            where = {"ha": "center", "va": "center", "fontsize": 10, "color": INK}
            axes.text(span.from_ms + length / 2, y, fits[0], **where)
    agent = ", ".join(f"{span.label} {_ms(span)}" for span in found if span.row == "agent" and span.label)
    axes.text(0, -0.35, f"  {agent} ms", va="bottom", fontsize=10, color=INK)
    axes.axvline(0.0, color=INK, lw=0.8, ls="--")
    text = f"{title}: both ranks train again after {trains_again_ms(found):,.0f} ms"
    axes.set_title(text, loc="left", fontsize=11, color=INK)
    kept = {span.row for span in found if span.label == PLACE}
    names = ["agent", *(f"{row}, {'kept' if row in kept else 'new'}" for row in ROWS[1:])]
    axes.set(xlim=(begin, end), ylim=(len(ROWS) - 0.6, -0.85), yticks=range(len(ROWS)), yticklabels=names)
    axes.set_xlabel("milliseconds after rank 1 was killed", fontsize=10, color=INK)
    axes.tick_params(colors=INK, labelsize=10)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.spines["bottom"].set_color(INK)


def _ms(span: Span) -> str:
    length = span.to_ms - span.from_ms
    return f"{length:,.0f}" if length >= 1 else "<1"


def timeline_table(stored: Callable[[str], Sequence[Span]]) -> str:
    """Return a table with the parts of both timelines, in milliseconds."""
    lengths: dict[tuple[str, str], dict[str, str]] = {}
    order = {label: number for number, label in enumerate([*AGENT.values(), *COLOURS])}
    for kind in TITLES:
        for span in stored(kind):
            if span.label in order:
                lengths.setdefault((span.row, span.label), {})[kind] = _ms(span)
    rows = sorted(lengths, key=lambda each: (each[0], order[each[1]]))
    ends = ("both ranks", "train again, after the kill", *(f"{trains_again_ms(stored(kind)):,.0f}" for kind in TITLES))
    head = ("", "part", *(f"{title.lower()}, ms" for title in TITLES.values()))
    return table(head, [*((*each, *(lengths[each].get(kind, "") for kind in TITLES)) for each in rows), ends])
