"""What a training script asks about planned stops: `should_stop`, and says of them: `ready_to_stop`.

Both use memory that the agent shares with this process: no system call is in asking. Without such an agent (torchrun,
bare Python, an agent without elastic-train) nothing is ever planned.
"""

import os
import time

from elastic_train import stop_page as layout

# Not from typing: importing it costs milliseconds.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import SupportsIndex

_ASKED, _STEP = layout.ASKED, layout.STEP
LONGEST_WAIT_S = 30.0
"""How long a rank waits at a step where its agent says nothing at all: it is stopped, or gone."""
_PAUSE_S = 0.001

_words = memoryview(bytearray(layout.PAGE_BYTES)).cast("q")
_words[_ASKED] = 1  # so that the first question is looked into
_looked = False


def should_stop(*, step: "SupportsIndex | None" = None) -> bool:
    """Return whether this worker will be stopped soon, though it is healthy, and should save now.

    Args:
        step: The step that would be done next: a number from 0 on that rises, the same on all ranks at the same place.
            All ranks get True at the same step, the first that none of them has begun; one that comes to it before they
            have agreed waits here, for milliseconds mostly. None: True from when the stop is planned, on each rank
            whenever it asks.

    Ask before every step, on all ranks. True stays true. What is not saved within `--save-timeout` is lost.
    """
    if step is not None:
        try:
            if step < _words[_STEP]:  # type: ignore[operator]  # whatever is an index compares with a number
                _words[layout.WENT_BACK] = step.__index__() + 1
            _words[_STEP] = step  # type: ignore[call-overload]  # it takes whatever is an index
        except (TypeError, ValueError):
            raise TypeError(f"should_stop(step={step!r}); expected a whole number") from None
    return _words[_ASKED] != 0 and _planned(step)


def ready_to_stop() -> None:
    """Say that this worker has saved what it wants to keep: the stop goes on when all have said so, or ended."""
    if not _looked:
        _look()
    _words[layout.READY] = 1


def _planned(step: "SupportsIndex | None") -> bool:
    """Return the answer where a stop is planned; the first time it is not known yet whose memory this is."""
    if not _looked:
        _look()
        _words[layout.FIRST] = layout.NONE if step is None else step.__index__()
        return should_stop(step=step)
    return step is None or _meet(step.__index__())


def _meet(step: int) -> bool:
    """Wait for the step that is agreed about, and return whether this one is not before it."""
    if not _words[layout.STEP_KNOWN]:
        _words[layout.WAITS] = 1
        end_s = time.monotonic() + LONGEST_WAIT_S
        while not _words[layout.STEP_KNOWN] and time.monotonic() < end_s:
            time.sleep(_PAUSE_S)  # noqa: TID251  # a training script's own thread
        _words[layout.WAITS] = 0
    return _words[layout.STEP_KNOWN] == 1 and step >= _words[layout.STOP_STEP]


# --- whose memory it is


def _look() -> None:
    """Find out whose memory to use: now, since an interpreter that waits beside a worker knows it no earlier."""
    global _looked
    _looked = True
    _words[_ASKED] = 0
    _attach()


def _attach() -> None:
    """Use the memory that this process's environment names, if it can be had and is nobody else's."""
    path = os.environ.get(layout.PAGE_VARIABLE)
    if not path:
        return
    try:
        words = _map(path)
    except (OSError, ValueError):  # the agent is gone, or this process runs as another user now
        return
    if words[layout.MAGIC] != layout.MAGIC_VALUE or _taken(words[layout.OWNER]):
        return
    words[layout.OWNER] = os.getpid()
    words[layout.STEP] = layout.NONE
    _use(words)


def _map(path: str) -> memoryview:
    import mmap

    fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    try:
        return memoryview(mmap.mmap(fd, layout.PAGE_BYTES)).cast("q")
    finally:
        os.close(fd)


def _taken(owner: int) -> bool:
    """Return whether another live process has the memory: a worker's child is not the worker."""
    if owner in (0, os.getpid()):
        return False
    try:
        os.kill(owner, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True


def _use(words: memoryview) -> None:
    global _words
    _words = words


def _in_forked_child() -> None:
    """Be on one's own in a forked child: it would speak for the worker."""
    global _looked
    _looked = True
    _use(memoryview(bytearray(layout.PAGE_BYTES)).cast("q"))


os.register_at_fork(after_in_child=_in_forked_child)
