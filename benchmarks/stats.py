"""What is made of samples: medians, ratios, the interval of each, and whether a budget is kept.

Both intervals are free of assumptions about the distribution: the ends are samples (or ratios of samples), chosen by
the number of ways in which chance orders them. They need no random numbers, so a file of samples always gives the same.
"""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import msgspec

FLOOR, OURS, TORCHRUN, FT_LAUNCHER = "floor", "elastic run", "torchrun", "ft_launcher"
OTHER = "another elastic run"
"""Of another installation, of an older version for example."""
LEVEL = 0.95
"""The confidence that an interval has if there are enough samples for it."""


class Estimate(msgspec.Struct, frozen=True):
    """A median or a ratio, with its interval."""

    value: float
    low: float
    high: float
    level: float
    """The confidence of the interval: `LEVEL` or a little more, and less if there are too few samples (0 for one)."""


def median(samples: Sequence[float]) -> Estimate:
    """Return the median of at least one sample; the interval is that of the sign test.

    It has `LEVEL` from six samples on.
    """
    ways = [math.comb(len(samples), below) for below in range(len(samples) + 1)]
    return _estimate(sorted(samples), ways)


def ratio(samples: Sequence[float], reference: Sequence[float]) -> Estimate | None:
    """Return how many times the reference's figure ours is: the median of the ratios of all pairs of samples.

    The interval is that of the Mann-Whitney test. It has `LEVEL` from four samples on each side on. None: no ratio,
    because there are no samples, or because one of the reference's is 0.
    """
    if not samples or not reference or min(reference) <= 0:
        return None
    ratios = sorted(sample / other for sample in samples for other in reference)
    return _estimate(ratios, _orders(len(samples), len(reference)))


def _estimate(values: Sequence[float], ways: Sequence[int]) -> Estimate:
    """Return the median of sorted values, and the narrowest interval that chance leaves at `LEVEL`.

    Args:
        values: Sorted.
        ways: In how many of all equally likely cases so many of the values are below the truth: 0, 1, 2 … all.
    """
    cases, cut, outside = sum(ways), 1, ways[0]
    while cut < (len(values) + 1) // 2 and 2 * (outside + ways[cut]) <= (1 - LEVEL) * cases:
        outside += ways[cut]
        cut += 1
    level = 1 - 2 * outside / cases
    middle, low, high = (float(f"{value:.5g}") for value in (statistics.median(values), values[cut - 1], values[-cut]))
    return Estimate(value=middle, low=low, high=high, level=round(level, 3))


def _orders(ours: int, others: int) -> list[int]:
    """Return in how many orders of all samples u pairs are ours below theirs, for each u from 0 to `ours * others`.

    Source: these are the coefficients of the Gaussian binomial, the product of (1 - x^(others + i)) / (1 - x^i).
    """
    pairs = ours * others
    ways = [1] + [0] * pairs
    for i in range(1, ours + 1):
        for u in range(pairs, others + i - 1, -1):
            ways[u] -= ways[u - others - i]
        for u in range(i, pairs + 1):
            ways[u] += ways[u - i]
    return ways


@dataclass(frozen=True)
class Budget:
    """What we have promised of a figure's median; None: nothing in this respect."""

    at_most: float | None = None
    times_floor: float | None = None
    faster_than_torchrun: float | None = None

    def kept(self, medians: Mapping[str, float], launcher: str = OURS) -> bool | None:
        """Return whether a launcher keeps what these medians (by launcher) can judge; None: they can judge nothing."""
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
            parts.append(f"at most {self.at_most:g}")
        if self.times_floor is not None:
            parts.append(f"at most {self.times_floor:g} times floor")
        if self.faster_than_torchrun is not None:
            parts.append(f"at least {self.faster_than_torchrun:g} times as fast as torchrun")
        return ", ".join(parts)
