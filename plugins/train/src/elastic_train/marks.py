"""Marks of saves and restores for a training script: `saving` and `restoring`.

The times go into the memory that the agent shares with this process (`stop_page`). Without such an agent, and in
processes that are not the worker, nothing is written.
"""

import os
from _thread import RLock
from time import monotonic_ns

from elastic_train import stop_page as layout
from elastic_train import stops

# Not from typing: importing it costs milliseconds.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import TracebackType

_lock = RLock()  # of marks alone; a signal handler may save, too
_depth = 0
"""How many marks are open, one within the other or in several threads. Only the first is written."""
_number = 0
"""The number of the mark that is open. 0 means that none is written."""


def saving() -> "Mark":
    """Return a context manager for the time during which training waits for a save.

    The agent counts the time as saving, and not as training. `Checkpointer.save` needs none. Within another mark, or
    while one is open in another thread, it has no effect, so a save that has several parts counts once.
    """
    return Mark(layout.SAVE)


def restoring() -> "Mark":
    """Return a context manager for the time during which training waits until a checkpoint is loaded.

    The same as `saving`, for restores. `Checkpointer.load` needs none.
    """
    return Mark(layout.RESTORE)


class Mark:
    """The context manager of `saving` and `restoring`, which may be entered again after its exit."""

    __slots__ = ("_kind",)

    def __init__(self, kind: int) -> None:
        """Open nothing yet."""
        self._kind = kind

    def __enter__(self) -> "Mark":
        global _depth
        with _lock:
            _depth += 1
            if _depth == 1:
                _begin(self._kind)
        return self

    def __exit__(
        self, kind: "type[BaseException] | None", value: "BaseException | None", trace: "TracebackType | None"
    ) -> None:
        global _depth
        with _lock:
            _depth -= 1
            if _depth == 0:
                _end()


def _begin(kind: int) -> None:
    """Write an open mark over the oldest one."""
    global _number
    words = stops.progress_words()
    if words is None:
        return
    number = words[layout.MARK_COUNT] + 1
    at = _place(number)
    words[at + layout.NUMBER] = 0
    words[at + layout.KIND] = kind
    words[at + layout.BEGIN_NS] = monotonic_ns()
    words[at + layout.END_NS] = 0
    words[at + layout.NUMBER] = number
    words[layout.MARK_COUNT] = _number = number


def _end() -> None:
    """Write the end of the open mark, unless another process has become the worker and ended it."""
    global _number
    number, _number = _number, 0
    words = stops.progress_words() if number else None
    if words is not None:
        at = _place(number)
        if words[at + layout.NUMBER] == number and not words[at + layout.END_NS]:
            words[at + layout.END_NS] = monotonic_ns()


def _place(number: int) -> int:
    """Return the first word of a mark's slot."""
    return layout.MARKS_AT + (number - 1) % layout.MARK_SLOTS * layout.MARK_WORDS


def _in_forked_child() -> None:
    """Leave the open mark to the parent."""
    global _lock, _number
    _lock = RLock()  # its holder is not in this process
    _number = 0


os.register_at_fork(after_in_child=_in_forked_child)
