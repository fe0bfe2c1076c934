"""A result as text, for people."""

from benchmarks.results import Result


def as_text(result: Result) -> str:
    """Return a block of lines, one for each launcher."""
    lines = [f"{result.title}, {result.unit}"]
    for name, taken in result.launchers.items():
        middle = taken.median
        interval = f"({number(middle.low)} to {number(middle.high)}, n={len(taken.samples)})"
        parts = [f"  {name:<22} {number(middle.value):>8}  {interval:<32}"]
        if taken.ratio is not None:
            low, high = number(taken.ratio.low), number(taken.ratio.high)
            parts.append(f"{number(taken.ratio.value)} of {result.reference} ({low} to {high})")
        if taken.budget is not None:
            verdict = "not judged" if taken.kept is None else "kept" if taken.kept else "MISSED"
            parts.append(f"[{taken.budget}: {verdict}]")
        lines.append(" ".join(parts).rstrip())
    return "\n".join(lines)


def number(value: float) -> str:
    """Return a figure with three digits."""
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"
