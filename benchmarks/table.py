"""The results, for people and for programs."""

from collections.abc import Sequence

from benchmarks.measure import Result
from benchmarks.stats import FLOOR, TORCHRUN, ratio, summarize


def as_text(results: Sequence[Result]) -> str:
    """Return a table: a block for each measure, a line for each launcher."""
    blocks = [_block(result) for result in results]
    return "\n\n".join(blocks)


def _block(result: Result) -> str:
    summaries = {launcher: summarize(figures) for launcher, figures in result.figures.items() if figures}
    floor, torchrun = (summaries[name].median if name in summaries else 0.0 for name in (FLOOR, TORCHRUN))
    lines = [f"{result.title}, {result.unit}{_budget(result)}"]
    for launcher, summary in summaries.items():
        spread = f"({_number(summary.least)} to {_number(summary.most)}, n={summary.count})"
        to_floor = ratio(summary.median, floor) if launcher != FLOOR else None
        to_torchrun = ratio(torchrun, summary.median) if launcher != TORCHRUN else None
        notes = [f"{to_floor:.1f} x floor"] if to_floor is not None else []
        notes += [f"torchrun takes {to_torchrun:.1f} x"] if to_torchrun is not None else []
        lines.append(f"  {launcher:<22} {_number(summary.median):>8}  {spread:<32} {', '.join(notes)}".rstrip())
    return "\n".join(lines)


def _budget(result: Result) -> str:
    if result.budget is None:
        return ""
    kept = result.budget.kept(result.medians, result.judged)
    verdict = "not judged" if kept is None else "kept" if kept else "MISSED"
    return f"   [budget {result.budget}: {verdict}]"


def _number(value: float) -> str:
    return f"{value:.0f}" if value >= 100 or value == int(value) else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def as_records(results: Sequence[Result]) -> list[dict[str, object]]:
    """Return what JSON can express, every single figure included."""
    records: list[dict[str, object]] = []
    for result in results:
        launchers = {
            launcher: {**vars(summarize(figures)), "figures": list(figures)}
            for launcher, figures in result.figures.items()
            if figures
        }
        budget = None if result.budget is None else str(result.budget)
        kept = None if result.budget is None else result.budget.kept(result.medians, result.judged)
        records.append(
            {"measure": result.title, "unit": result.unit, "budget": budget, "kept": kept, "launchers": launchers}
        )
    return records
