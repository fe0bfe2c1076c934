"""The limit of `--hang-timeout auto`, learnt from the steps of the run. Pure.

The limit is a multiple of the longest step, and at least a floor. Not learnt from: the first steps of each round
(compilation, warm-up), a step with an open section or save, and time in which the workers are stopped or debugged.
"""

from collections.abc import Mapping
from typing import Final

from msgspec.structs import replace

from elastic_core.api import Record
from elastic_watch.hangs.detector import Elsewhere, Watch, Watched, has_open_section

MOST_DOUBLED_S: Final = 1800.0
"""Hangs double the limit no further than this."""


class Rule(Record, frozen=True, kw_only=True):
    """How the limit follows from the steps."""

    factor: float = 5.0
    """The limit is this many times the longest step."""
    floor_s: float = 300.0
    """The limit is at least this: longer than an InfiniBand port that comes back or a file server that fails over, and
    shorter than torch's own limit for NCCL (600 s), after which the ranks that wait are blamed."""
    warm_up: int = 10
    """The number of a worker's first steps in a round from which no limit is learnt."""
    enough: int = 10
    """The number of further steps after which the limit is known."""
    unsure_s: float = 1800.0
    """In a later round, the least limit until this round's limit is known."""
    fast_look_s: float = 1.0
    """The interval between checks until the limit is known. A step is measured to be too long by at most this."""
    look_s: float = 5.0
    """The longest interval between checks after that."""


class Learned(Record, frozen=True, kw_only=True):
    """What the steps of the run have shown so far. Times are on the watch's clock, which leaves out stops."""

    rule: Rule = Rule()
    world_size: int = 0
    """The world size of the present round."""
    longest_s: Mapping[int, float] = {}
    """The longest step after the warm-up, by world size: with fewer workers a step may take longer."""
    counts: Mapping[int, int] = {}
    """The number of steps from which it is known, by world size."""
    slowest_s: float = 0.0
    """The longest step of the run, with those of the warm-up."""
    doubled_s: float = 0.0
    """The least limit after a hang was reported."""
    made: Mapping[int, int] = {}
    """The number of steps in this round since the first sign of life, by local rank."""
    spoilt: frozenset[int] = frozenset()
    """The local ranks whose present step is not learnt from."""

    @property
    def warm(self) -> bool:
        """Whether all ranks that report steps have passed this round's warm-up."""
        return bool(self.made) and min(self.made.values()) >= self.rule.warm_up

    @property
    def known(self) -> bool:
        """Whether the limit of this round is known."""
        return self.warm and self.counts.get(self.world_size, 0) >= self.rule.enough

    @property
    def limit_s(self) -> float:
        """The limit in seconds; 0 means none."""
        if self.known:
            longest_s = self.longest_s[self.world_size]
            return max(self.rule.floor_s, self.doubled_s, self.rule.factor * longest_s)
        if any(count >= self.rule.enough for count in self.counts.values()):
            return max(self.rule.unsure_s, self.doubled_s, self.rule.factor * self.slowest_s)
        return 0.0

    @property
    def look_s(self) -> float:
        """The longest interval between checks."""
        return self.rule.look_s if self.known else self.rule.fast_look_s


def begin(learned: Learned, world_size: int) -> Learned:
    """Return the state for the workers of a new round."""
    return replace(learned, world_size=world_size, made={}, spoilt=frozenset())


def learn(learned: Learned, before: Watch, after: Watch, elsewhere: Elsewhere | None = None) -> Learned:
    """Return the state after a check.

    A heartbeat without a step counts as a step. If a worker has made several steps between two checks, the longest of
    them took at most the time between them, and this time counts.

    Args:
        learned: The state before.
        before: The watch before the check.
        after: The watch after the check.
        elsewhere: The state of the other nodes at the check.
    """
    protected = has_open_section(before) or has_open_section(after) or bool(elsewhere and elsewhere.protected_s)
    spoilt = frozenset(after.workers) if protected else learned.spoilt
    made = {rank: count for rank, count in learned.made.items() if rank in after.workers}
    times, steps = [0.0], [0]
    slowest_s = learned.slowest_s
    for rank, now in after.workers.items():
        last = before.workers.get(rank)
        if last is None or now.sighting.beat_s in (None, last.sighting.beat_s):
            continue
        if last.sighting.beat_s is None:
            made[rank] = 0
        else:
            step_count, took_s = _steps_between(last, now), now.sign_s - last.sign_s
            if rank not in spoilt:
                slowest_s = max(slowest_s, took_s)
                if made.get(rank, 0) >= learned.rule.warm_up:
                    times.append(took_s)
                    steps.append(step_count)
            made[rank] = made.get(rank, 0) + step_count
        spoilt -= {rank}
    size = learned.world_size
    return replace(
        learned,
        longest_s={**learned.longest_s, size: max(learned.longest_s.get(size, 0.0), *times)},
        counts={**learned.counts, size: learned.counts.get(size, 0) + max(steps)},
        slowest_s=slowest_s,
        made=made,
        spoilt=spoilt,
    )


def _steps_between(last: Watched, now: Watched) -> int:
    if last.sighting.step is None or now.sighting.step is None:
        return 1
    return max(1, now.sighting.step - last.sighting.step)


def after_hang(learned: Learned) -> Learned:
    """Return the state after a hang was reported: the limit doubles, so that a slow but healthy run gets on."""
    return replace(learned, doubled_s=max(learned.doubled_s, min(2 * learned.limit_s, MOST_DOUBLED_S)))
