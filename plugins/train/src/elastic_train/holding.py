"""What a node does while a planned stop is held, as a pure machine: what its workers do goes in, actions come out.

First the nodes agree which step none of their workers begins any more, then they wait until all have saved. Both are
numbers that every node states (`RunHandle.agree`): the agent's hook carries them out.

Nothing here reads a clock. Times are seconds of one monotonic clock.
"""

import enum
from collections.abc import Mapping

from msgspec.structs import replace

from elastic_core.api import Record

NOBODY = -2
"""What a node states in the place of a step whose workers don't look: where none looks anywhere, nothing is held."""
NO_STEP = -1
"""What one states whose workers look, but have named no step."""
SETTLE_S = 0.02
"""How long after the workers were asked their steps are read: what one was writing then is there."""
PAUSE_S = 0.01
MARGIN_S = 0.1
"""How long before its limit a hold is given up, so that it can be said for whom."""
AGREE_S = 10.0
"""How long nodes may take to agree about a step, before each lets the stop go on: a store that pauses must not make a
training that stands still look like one that saves."""


class Topic(enum.StrEnum):
    """What the nodes agree about, in this order."""

    STEP = "training: step"
    SAVED = "training: saved"


class Seen(Record, frozen=True, kw_only=True):
    """One worker of this node, as it stands now."""

    looks: bool
    """It looks whether it should stop, or is waited for whatever it does."""
    step: int | None = None
    """The last step about which it has asked; None: none."""
    waits: bool = False
    """It has not begun that step, and waits to be told whether to."""
    ready: bool = False
    """It has saved, or has ended."""


class Tell(Record, frozen=True, kw_only=True):
    """Tell the workers the step that none begins any more; None: there will be none."""

    step: int | None


class State(Record, frozen=True, kw_only=True):
    """State a number for the nodes to agree about."""

    topic: Topic
    value: int


class Release(Record, frozen=True, kw_only=True):
    """Let the stop go on; `why` is a line for people, empty: there is nothing to say."""

    why: str = ""


Action = Tell | State | Release


class Hold(Record, frozen=True, kw_only=True):
    """A planned stop that is being held: since when, and how far it has come."""

    began_s: float
    limit_s: float
    named: str = "--save-timeout"
    """What the limit is called."""
    stated: frozenset[Topic] = frozenset()
    agreed: Mapping[Topic, int] = {}
    released: bool = False


def look(hold: Hold, workers: Mapping[int, Seen], now_s: float) -> tuple[Hold, tuple[Action, ...]]:
    """Return what follows from how the workers stand, by global rank; of use every `PAUSE_S`."""
    if hold.released:
        return hold, ()
    if Topic.STEP not in hold.stated:
        return _state_step(hold, workers, now_s)
    end_s = hold.began_s + hold.limit_s - min(MARGIN_S, hold.limit_s / 2)
    if Topic.STEP not in hold.agreed:
        if now_s < min(hold.began_s + AGREE_S, end_s):
            return hold, ()
        why = f"the nodes have not agreed about a step within {now_s - hold.began_s:.0f} s: workers are stopped unsaved"
        return replace(hold, released=True), (Tell(step=None), Release(why=why))
    waited = [rank for rank, seen in workers.items() if seen.looks and not seen.ready]
    if waited and now_s >= end_s:
        return replace(hold, released=True), (Release(why=_late(hold, workers, waited)),)
    if not waited and Topic.SAVED not in hold.stated:
        return replace(hold, stated=hold.stated | {Topic.SAVED}), (State(topic=Topic.SAVED, value=0),)
    return hold, ()


def take(hold: Hold, topic: str, value: int) -> tuple[Hold, tuple[Action, ...]]:
    """Return what follows from what the nodes have agreed."""
    if hold.released or topic not in tuple(Topic) or Topic(topic) in hold.agreed:
        return hold, ()
    hold = replace(hold, agreed={**hold.agreed, Topic(topic): value})
    if topic == Topic.SAVED or value == NOBODY:
        return replace(hold, released=True), (Release(),)
    return hold, (Tell(step=max(value, 0)),)


def _state_step(hold: Hold, workers: Mapping[int, Seen], now_s: float) -> tuple[Hold, tuple[Action, ...]]:
    looking = [seen for seen in workers.values() if seen.looks]
    if looking and now_s < hold.began_s + SETTLE_S:
        return hold, ()
    value = max((_first_open(seen) for seen in looking), default=NOBODY)
    return replace(hold, stated=hold.stated | {Topic.STEP}), (State(topic=Topic.STEP, value=value),)


def _first_open(seen: Seen) -> int:
    """Return the first step that a worker has not begun."""
    if seen.step is None or seen.ready:  # who has ended begins none
        return NO_STEP
    return seen.step if seen.waits else seen.step + 1


def _late(hold: Hold, workers: Mapping[int, Seen], waited: list[int]) -> str:
    step = hold.agreed[Topic.STEP]
    parts = []
    for rank in waited[:4]:
        seen = workers[rank]
        what = "never asked should_stop" if seen.step is None else f"last asked about step {seen.step}"
        behind = seen.step is None or seen.step < step
        parts.append(f"rank {rank} ({what if step >= 0 and behind else 'still saving'})")
    more = f" and {len(waited) - 4} more" if len(waited) > 4 else ""
    return f"stopped without having saved within {hold.limit_s:g} s ({hold.named}): {', '.join(parts)}{more}"
