"""The README's picture: a run of two workers that survives a crash, drawn from the journal of a real run.

`python docs/_ext/readme_picture.py` makes the run and writes two files into docs/pictures, for a light and a dark page.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import pictures
from matplotlib.figure import Figure

INKS: Final = {"crash-light.svg": "#1f2328", "crash-dark.svg": "#e6edf3"}
"""The colour of the text in each file. GitHub chooses the file by its own setting, not by the browser's."""
BEFORE_MS, AFTER_MS = 50, 90
"""How much of the training is drawn before the crash and after the new start."""


def of_readme() -> dict[str, str]:
    """Return the picture by file name."""
    svg = pictures.as_svg(crash_picture(pictures.recorded_crash()), name="crash")
    return {name: svg.replace(">", f"><style>svg{{color:{ink}}}</style>", 1) for name, ink in INKS.items()}


def crash_picture(journal: Sequence[Mapping[str, Any]]) -> Figure:
    """Draw rank 1's exception, and what the agent did until both workers ran again."""
    done, ended = _times(journal)
    examined, stopped, again = (done[event] for event in ("Examined", "WorkersStopped", "WorkersSpawned"))
    last = again + AFTER_MS
    bars = [
        ("rank 1", -BEFORE_MS, 0, pictures.RUNS, "round 0"),
        ("rank 1", 0, again, pictures.FAILED, "ValueError: boom"),
        ("rank 1", again, last, pictures.RUNS, "round 1"),
        ("rank 0", -BEFORE_MS, ended, pictures.RUNS, "round 0"),
        ("rank 0", ended, again, pictures.STOPPED, ""),
        ("rank 0", again, last, pictures.RUNS, "round 1"),
        ("agent", 0, examined, pictures.BUSY, "wait for other failures"),
        ("agent", examined, stopped, pictures.STOPPED, ""),
        ("agent", stopped, again, pictures.RUNS, ""),
    ]
    rows = ["rank 1", "rank 0", "agent"]
    figure, axes = pictures.canvas(7.2, 2.1)
    axes.axis("on")
    for row, begin, end, colour, label in bars:
        y = rows.index(row)
        axes.barh(y, end - begin, left=begin, height=0.66, color=colour, alpha=0.55)
        if label:
            axes.text(begin + 2, y, label, va="center", fontsize=9, color=pictures.INK, clip_on=True)
    axes.text(ended - 2, 1, "SIGTERM", va="center", ha="right", fontsize=9, color=pictures.INK)  # its bar may be narrow
    axes.text(again + 3, 2, "stop rank 0, start both", va="center", fontsize=9, color=pictures.INK)
    for at, label in ((0, "rank 1 fails"), (again, f"both start again after {again:.0f} ms")):
        axes.axvline(at, color=pictures.INK, lw=0.8, linestyle="--")
        axes.text(at + 2, -0.5, label, va="bottom", fontsize=9, color=pictures.INK)
    axes.set(xlim=(-BEFORE_MS, last), ylim=(2.5, -0.9), yticks=range(len(rows)), yticklabels=rows)
    axes.set_xlabel("milliseconds after the crash", fontsize=9, color=pictures.INK)
    axes.tick_params(colors=pictures.INK, labelsize=9, left=False)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.spines["bottom"].set_color(pictures.INK)
    return figure


def _times(journal: Sequence[Mapping[str, Any]]) -> tuple[dict[str, float], float]:
    """Return when the agent had done each step after the crash, and when rank 0 ended, in milliseconds after it."""
    exits = [entry["values"]["exit"] for entry in journal if entry["values"]["event"] == "WorkerExited"]
    crash_s = next(each["at_s"] for each in exits if each["code"] > 0)
    rank_0_s = next(each["at_s"] for each in exits if each["global_rank"] == 0)
    done: dict[str, float] = {}
    for entry in journal:
        if entry["at_s"] > crash_s:
            done.setdefault(entry["values"]["event"], 1000 * (entry["at_s"] - crash_s))
    return done, 1000 * (rank_0_s - crash_s)


if __name__ == "__main__":
    pictures.PICTURES.mkdir(exist_ok=True)
    for name, svg in of_readme().items():
        (pictures.PICTURES / name).write_text(svg)
