"""Stragglers over several windows: a rank or node is one after it was slow in each of some windows in a row. Pure."""

from collections.abc import Iterable, Mapping
from typing import Final

from msgspec.structs import replace

from elastic_core.api import Record
from elastic_watch.stragglers.scores import Slow

BEGINS_AFTER: Final = 3
"""The number of windows in a row after which a rank is a straggler."""
ENDS_AFTER: Final = 2
"""The number of windows in a row, without being slow, after which it is none."""
MOST: Final = 64
"""The most ranks and nodes that are followed at a time: the slowest ones."""

Subject = tuple[str, int]
"""The node id of a node, and -1; or an empty string, and the global rank."""


class Straggler(Record, frozen=True, kw_only=True):
    """A rank or node that was slow in the last windows."""

    slow: Slow
    """Its numbers in the last window in which it was slow."""
    since_s: float
    """The begin of the first of these windows, in seconds of the monotonic clock."""
    windows: int = 1
    """How many windows in a row it was slow, up to the limit."""
    missed: int = 0
    """How many windows in a row it was not."""
    lasts: bool = False
    """Whether it is a straggler."""


class Change(Record, frozen=True, kw_only=True):
    """The stragglers after one more window, and which of them began and ended with it."""

    followed: Mapping[Subject, Straggler]
    began: tuple[Straggler, ...] = ()
    ended: tuple[Straggler, ...] = ()

    @property
    def stragglers(self) -> tuple[Straggler, ...]:
        """The stragglers, the slowest first."""
        found = [each for each in self.followed.values() if each.lasts]
        return tuple(sorted(found, key=lambda each: each.slow.score))


def subject(slow: Slow) -> Subject:
    """Return what a record is about."""
    return (slow.node_id, -1) if slow.rank is None else ("", slow.rank)


def after_window(followed: Mapping[Subject, Straggler], slow: Iterable[Slow], *, begun_s: float) -> Change:
    """Return the stragglers after one more window, which began at `begun_s`."""
    now = {subject(each): each for each in slow}
    still: dict[Subject, Straggler] = {}
    began, ended = [], []
    for key, known in followed.items():
        if key in now:
            windows = min(known.windows + 1, BEGINS_AFTER)
            lasts = windows >= BEGINS_AFTER
            still[key] = replace(known, slow=now.pop(key), windows=windows, missed=0, lasts=lasts)
            if lasts and not known.lasts:
                began.append(still[key])
        elif known.lasts and known.missed + 1 < ENDS_AFTER:
            still[key] = replace(known, missed=known.missed + 1)
        elif known.lasts:
            ended.append(known)
    for key, each in sorted(now.items(), key=lambda item: item[1].score)[: max(0, MOST - len(still))]:
        still[key] = Straggler(slow=each, since_s=begun_s)
    return Change(followed=still, began=tuple(began), ended=tuple(ended))
