"""A node's actions while a planned stop is held, as a pure state machine.

First the nodes agree on the first step that no worker begins. Then they wait until all workers have saved. For both,
each node publishes a number (`RunHandle.agree`), which is done by the agent's hook.

The module reads no clock. Times are seconds of one monotonic clock.
"""

import enum
from collections.abc import Mapping

from msgspec.structs import replace

from elastic_core.api import Record

NOBODY = -2
"""Published in place of a step by a node whose workers don't call `should_stop`. If no node's do, nothing is held."""
NO_STEP = -1
"""Published by a node whose workers call it, but have named no step."""
SETTLE_S = 0.02
"""How long after the request the workers' steps are read. Concurrent writes are complete by then."""
PAUSE_S = 0.01
MARGIN_S = 0.1
"""How long before its limit a hold is given up, so that the late workers can be logged."""
AGREE_S = 10.0
"""How long nodes may take to agree on a step before each lets the stop go on. A store that pauses must not make a
training that waits look like one that saves.
"""


class Topic(enum.StrEnum):
    """The subjects on which the nodes agree, in this order."""

    STEP = "training: step"
    SAVED = "training: saved"


class Seen(Record, frozen=True, kw_only=True):
    """The state of one worker of this node."""

    looks: bool
    """The worker calls `should_stop`, or is waited for in any case."""
    step: int | None = None
    """The last step for which it called `should_stop`. `None` means none."""
    waits: bool = False
    """The worker has not begun that step, and waits for the agreed step."""
    ready: bool = False
    """The worker has saved, or has ended."""


class Tell(Record, frozen=True, kw_only=True):
    """Notify the workers of the first step that none begins. `None` means that there will be none."""

    step: int | None


class State(Record, frozen=True, kw_only=True):
    """Publish a number on which the nodes agree."""

    topic: Topic
    value: int


class Release(Record, frozen=True, kw_only=True):
    """Let the stop go on. `why` is a line for people; empty means no line."""

    why: str = ""


Action = Tell | State | Release


class Hold(Record, frozen=True, kw_only=True):
    """A planned stop that is held: its start and its progress."""

    began_s: float
    limit_s: float
    named: str = "--save-timeout"
    """The name of the limit."""
    stated: frozenset[Topic] = frozenset()
    agreed: Mapping[Topic, int] = {}
    released: bool = False


def look(hold: Hold, workers: Mapping[int, Seen], now_s: float) -> tuple[Hold, tuple[Action, ...]]:
    """Return the next state and actions for the workers' states, by global rank. Call it every `PAUSE_S`."""
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
    """Return the next state and actions after the nodes have agreed on a value."""
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
    if seen.step is None or seen.ready:  # a worker that has ended begins no step
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
