"""Which faults, in which order, and when: all from a seed."""

import random
from collections.abc import Sequence
from dataclasses import dataclass

from chaos.faults.kinds import VARIANTS, WEIGHTS, Fault, Hang, Loss, StoreTrouble


@dataclass
class Trial:
    """One fault, or two at once, `apart_s` between them; after so many steps of undisturbed training."""

    faults: Sequence[Fault]
    steps: int
    apart_s: float = 0.0

    def __str__(self) -> str:
        text = " + ".join(str(fault) for fault in self.faults)
        return f"{text}, {self.apart_s * 1000:.0f} ms apart" if self.apart_s else text


def draw(seed: str, count: int, *, pairs: float = 0.0) -> list[Trial]:
    """Return so many faults, each kind at least once if there is room; `pairs` is the share that comes in twos."""
    rng = random.Random(seed)
    kinds = list(VARIANTS)[:count]
    kinds += rng.choices(list(WEIGHTS), list(WEIGHTS.values()), k=count - len(kinds))
    rng.shuffle(kinds)
    faults = [_fault(rng, kind) for kind in kinds]
    trials = []
    while faults:
        first = faults.pop()
        partner = next((other for other in faults if _may_meet(first, other)), None)
        if partner is not None and rng.random() < pairs:
            faults.remove(partner)
            both = (first, partner) if isinstance(first, StoreTrouble) else (partner, first)
            trials.append(Trial(both, rng.randint(5, 25), apart_s=rng.choice((0.001, 0.05, 0.2, 0.5))))
        else:
            trials.append(Trial((first,), rng.randint(5, 25)))
    return trials


def _fault(rng: random.Random, kind: type[Fault]) -> Fault:
    how = rng.choice(VARIANTS[kind])
    letter = "" if kind is StoreTrouble else rng.choice("abc")
    return kind(how=how, letter=letter, quick=issubclass(kind, Loss) and rng.random() < 0.4)


def _may_meet(one: Fault, other: Fault) -> bool:
    if one.letter == other.letter:
        return False
    # A rank that hangs because its peer is gone is no hang: nothing would ever tell of it.
    return not (isinstance(one, Hang) and isinstance(other, Hang))
