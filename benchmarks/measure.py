"""What a measure is, and how measuring goes: each launcher in turn, again and again, so that a busy moment hits all."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from benchmarks.stats import Budget

if TYPE_CHECKING:
    from benchmarks.bench import Bench

Take = Callable[[], float | Mapping[str, float]]
"""Runs one launcher once; returns a sample, or one for each figure of the measure by the figure's name."""
Samples = dict[str, dict[str, list[float]]]
"""By figure, then by launcher."""


class MeasureError(Exception):
    """A measure can't be taken, because a launcher failed. Others still can."""


class MissingError(MeasureError):
    """A measure can't be taken here, because something that it needs is not installed."""


@dataclass(frozen=True)
class Figure:
    """A figure that is published. Less is better."""

    title: str
    unit: str
    budgets: Mapping[str, Budget] = field(default_factory=dict)
    """By launcher."""
    ratios: bool = True
    """Whether a ratio says something: not that of two exponents, for example, which may be negative."""


@dataclass(frozen=True)
class Measure:
    """One way to run each launcher, and the figures that each such run gives."""

    figures: Mapping[str, Figure]
    """By name, which is unique among all measures."""
    takes: "Callable[[Bench], Mapping[str, Take]]"
    """Returns how each launcher is run, by its name. It may raise MissingError."""
    seconds: float
    """How long `make bench` takes turns; it ends the turn that it is in, and takes three at least."""
    warm_up: bool = False
    """Whether a turn before the first one fills caches and is dropped."""
    turns: Mapping[str, int] = field(default_factory=dict)
    """Launchers that take part in the first turns only, and in how many."""
    promised: bool = True
    """Whether it is measured without being named."""


@dataclass(frozen=True)
class Turns:
    """How many turns are taken: as many as fit into the time, within these bounds."""

    seconds: float
    least: int
    most: int


def in_turns(
    measure: Measure, takes: Mapping[str, Take], turns: Turns, *, now_s: Callable[[], float] = time.monotonic
) -> Samples:
    """Run each launcher once in each turn, A B C A B C; return the samples.

    Args:
        measure: Its own `seconds` are not looked at, but its `turns` are.
        takes: By launcher.
        turns: How many.
        now_s: The clock.

    Raises:
        KeyError: a take gives a figure that the measure doesn't have.
        MeasureError: a take failed.
    """
    samples: Samples = {}
    began_s = now_s()
    if measure.warm_up:
        for take in takes.values():
            take()
    for turn in range(turns.most):
        turn_began_s = now_s()
        for launcher, take in takes.items():
            if turn >= measure.turns.get(launcher, turns.most):
                continue
            taken = take()
            if not isinstance(taken, Mapping):
                (name,) = measure.figures
                taken = {name: taken}
            for name, sample in taken.items():
                if name not in measure.figures:
                    raise KeyError(f"{launcher} gives {name!r}, which is none of {', '.join(measure.figures)}")
                samples.setdefault(name, {}).setdefault(launcher, []).append(sample)
        ended_s = now_s()
        if turn + 1 >= turns.least and ended_s - began_s + (ended_s - turn_began_s) > turns.seconds:
            break
    return samples
