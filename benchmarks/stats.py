"""What is made of the figures: middle, spread, ratios, and whether a budget is kept."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

FLOOR, OURS, TORCHRUN = "floor", "elastic run", "torchrun"
OTHER = "elastic run (beside)"
"""Another installation of ours, an older one say."""


@dataclass(frozen=True)
class Summary:
    """One launcher's figures of one measure."""

    median: float
    least: float
    most: float
    count: int


def summarize(figures: Sequence[float]) -> Summary:
    """Return middle and spread of at least one figure."""
    return Summary(median=statistics.median(figures), least=min(figures), most=max(figures), count=len(figures))


def ratio(part: float, whole: float) -> float | None:
    """Return `part / whole`, or None where that says nothing."""
    return part / whole if part > 0 and whole > 0 else None


@dataclass(frozen=True)
class Budget:
    """What we have promised of a measure's median; None: nothing in this respect."""

    at_most: float | None = None
    times_floor: float | None = None
    faster_than_torchrun: float | None = None

    def kept(self, medians: Mapping[str, float], launcher: str = OURS) -> bool | None:
        """Return whether all that can be judged by these medians (by launcher) is kept; None: nothing can be."""
        ours = medians.get(launcher)
        if ours is None:
            return None
        verdicts: list[bool] = []
        if self.at_most is not None:
            verdicts.append(ours <= self.at_most)
        if self.times_floor is not None and FLOOR in medians:
            verdicts.append(ours <= self.times_floor * medians[FLOOR])
        if self.faster_than_torchrun is not None and TORCHRUN in medians:
            verdicts.append(ours * self.faster_than_torchrun <= medians[TORCHRUN])
        return all(verdicts) if verdicts else None

    def __str__(self) -> str:
        """Return it as people read it."""
        parts = []
        if self.at_most is not None:
            parts.append(f"<= {self.at_most:g}")
        if self.times_floor is not None:
            parts.append(f"<= {self.times_floor:g} x floor")
        if self.faster_than_torchrun is not None:
            parts.append(f">= {self.faster_than_torchrun:g} x faster than torchrun")
        return ", ".join(parts)
