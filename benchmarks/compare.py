"""Whether a run has lost against another one: their ratios to the same launcher are compared, never their times."""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from benchmarks.results import Document, is_ours
from benchmarks.stats import Estimate

MARGIN = 1.15
"""A ratio that has grown by less is no loss, however narrow the intervals are."""
LEAST_RATIO = 0.01
"""Ratios below it are not told apart: a hundredth of what the reference takes."""
LEAST_LEVEL = 0.89
"""Intervals of less confidence prove nothing; three samples on each side have 0.9."""


class Verdict(StrEnum):
    """What a comparison says."""

    AS_BEFORE = "as before"
    BETTER = "better"
    LOST = "LOST"
    UNKNOWN = "cannot tell"


@dataclass(frozen=True)
class Comparison:
    """One of our launchers in one figure, then and now."""

    figure: str
    launcher: str
    reference: str
    then: Estimate | None
    now: Estimate | None

    @property
    def verdict(self) -> Verdict:
        """Return LOST or BETTER only where the intervals are apart, and the ratios differ by more than the margin."""
        if self.then is None or self.now is None or min(self.then.level, self.now.level) < LEAST_LEVEL:
            return Verdict.UNKNOWN
        if _apart(self.then, self.now):
            return Verdict.LOST
        return Verdict.BETTER if _apart(self.now, self.then) else Verdict.AS_BEFORE


def _apart(less: Estimate, more: Estimate) -> bool:
    return more.low > max(less.high, LEAST_RATIO) and more.value > max(less.value, LEAST_RATIO) * MARGIN


def compare(then: Document, now: Document) -> list[Comparison]:
    """Return a comparison for each of our launchers in each figure that both files have."""
    return [
        Comparison(
            figure=name,
            launcher=launcher,
            reference=new.reference,
            then=old.launchers[launcher].ratio if old.reference == new.reference else None,
            now=taken.ratio,
        )
        for name, new in now.figures.items()
        if new.reference is not None and (old := then.figures.get(name)) is not None
        for launcher, taken in new.launchers.items()
        if is_ours(launcher) and launcher in old.launchers
    ]


def lost(comparisons: Iterable[Comparison]) -> list[str]:
    """Return the names of the figures that have lost, each once."""
    return list(dict.fromkeys(each.figure for each in comparisons if each.verdict is Verdict.LOST))


def as_text(comparisons: Iterable[Comparison]) -> str:
    """Return a line for each comparison."""
    return "\n".join(
        f"{each.verdict:<12} {each.figure}, {each.launcher}: {_words(each.now)} of {each.reference}, "
        f"published {_words(each.then)}"
        for each in comparisons
    )


def _words(estimate: Estimate | None) -> str:
    return "no ratio" if estimate is None else f"{estimate.value:.3g} ({estimate.low:.3g} to {estimate.high:.3g})"


def elsewhere(then: Document, now: Document) -> list[str]:
    """Return what differs between the machines, for readers of the comparison."""
    pairs: list[tuple[str, object, object]] = [
        ("cores", then.machine.cores, now.machine.cores),
        ("processor", then.machine.processor, now.machine.processor),
        *((name, then.versions.get(name), now.versions.get(name)) for name in ("Python", "torch")),
    ]
    return [f"{name} {new} (published: {old})" for name, old, new in pairs if old != new]
