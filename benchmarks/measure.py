"""How measuring goes: each launcher in turn, again and again, so that a busy moment hits them all."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from benchmarks.stats import OURS, Budget, summarize

Take = Callable[[], float]
"""Takes one figure."""


@dataclass(frozen=True)
class Result:
    """All figures of one measure, by launcher."""

    title: str
    unit: str
    figures: Mapping[str, Sequence[float]]
    budget: Budget | None = None
    judged: str = OURS
    """The launcher that the budget is about."""
    medians: Mapping[str, float] = field(init=False)

    def __post_init__(self) -> None:
        """Work out the medians."""
        medians = {launcher: summarize(figures).median for launcher, figures in self.figures.items() if figures}
        object.__setattr__(self, "medians", medians)


def in_turns(takes: Mapping[str, Take], repetitions: int) -> dict[str, list[float]]:
    """Return `repetitions` figures for each launcher, A B C A B C; a first one each warms caches and is dropped."""
    for take in takes.values():
        take()
    figures: dict[str, list[float]] = {launcher: [] for launcher in takes}
    for _ in range(repetitions):
        for launcher, take in takes.items():
            figures[launcher].append(take())
    return figures


def many_in_turns(
    takes: Mapping[str, Callable[[], Mapping[str, float]]], repetitions: int
) -> dict[str, dict[str, list[float]]]:
    """Do as `in_turns` with runs that give several figures each; return them by figure, then by launcher."""
    figures: dict[str, dict[str, list[float]]] = {}
    for _ in range(repetitions):
        for launcher, take in takes.items():
            for name, value in take().items():
                figures.setdefault(name, {}).setdefault(launcher, []).append(value)
    return figures
