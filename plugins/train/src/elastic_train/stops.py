"""Planned stops for a training script: `should_stop` and `ready_to_stop`.

Both use memory that the agent shares with this process, so a check makes no system call. Without such an agent
(torchrun, bare Python, an agent without elastic-train) no stop is ever planned.
"""

import os
import time
from time import monotonic_ns

from elastic_train import stop_page as layout

# Not from typing: importing it costs milliseconds.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import SupportsIndex

_ASKED, _STEP, _HIGH, _MASK = layout.ASKED, layout.STEP, layout.HIGH, layout.TIMES_MASK
LONGEST_WAIT_S = 30.0
"""How long a rank waits at a step for an agent that does not respond: it is stopped, or gone."""
_PAUSE_S = 0.001

_words = memoryview(bytearray(layout.PAGE_BYTES)).cast("q")
_words[_ASKED] = 1  # so that the first call checks
_times = _words[layout.TIMES_AT :]
"""The times of the last steps."""
_looked = False
_high: int | None = 0
"""The value of HIGH for which steps need no more comparison. `None` means that the first step is not noted yet."""
_found: memoryview | None = None
"""The memory that this process's environment names."""
_sought = False


def should_stop(*, step: "SupportsIndex | None" = None) -> bool:
    """Return whether this worker will be stopped soon, although it is healthy, and should save now.

    Args:
        step: The number of the next step, from 0, rising, and the same on all ranks at the same place. All ranks get
            `True` at the same step, the first that none of them has begun. A rank that gets there before the ranks have
            agreed waits in this call, usually for milliseconds. `None` means: return `True` once the stop is planned,
            on each rank independently.

    Call it before every step, on all ranks. Once `True`, it stays `True`. Progress that is not saved within
    `--save-timeout` is lost.
    """
    if step is not None:
        try:
            if step < _words[_STEP]:  # type: ignore[operator]  # each index type compares with a number
                _words[layout.WENT_BACK] = step.__index__() + 1
            _words[_STEP] = step  # type: ignore[call-overload]  # it accepts each index type
        except (TypeError, ValueError):
            raise TypeError(f"should_stop(step={step!r}); expected a whole number") from None
        try:
            _times[step & _MASK] = monotonic_ns()  # type: ignore[operator]  # of a whole number
        except (TypeError, ValueError, OverflowError):  # another index type
            _times[_words[_STEP] & _MASK] = monotonic_ns()
        if _words[_HIGH] != _high:
            _note_step()
    return _words[_ASKED] != 0 and _planned(step)


def last_step() -> int | None:
    """Return the last step for which `should_stop` was called in this round, for an agent. `None` if there is none."""
    step = _words[_STEP]
    return step if _words[layout.OWNER] and step >= 0 else None


def ready_to_stop() -> None:
    """Report that this worker has saved. The stop goes on when all workers have reported this, or ended."""
    if not _looked:
        _look()
    _words[layout.READY] = 1


def _planned(step: "SupportsIndex | None") -> bool:
    """Return the result for a planned stop. The first call finds out which process owns the memory."""
    if not _looked:
        _look()
        return should_stop(step=step)
    return step is None or _meet(step.__index__())


def _meet(step: int) -> bool:
    """Wait for the agreed step. Return whether this step is not before it."""
    if not _words[layout.STEP_KNOWN]:
        _words[layout.WAITS] = 1
        end_s = time.monotonic() + LONGEST_WAIT_S
        while not _words[layout.STEP_KNOWN] and time.monotonic() < end_s:
            time.sleep(_PAUSE_S)  # noqa: TID251  # a training script's own thread
        _words[layout.WAITS] = 0
    return _words[layout.STEP_KNOWN] == 1 and step >= _words[layout.STOP_STEP]


def _note_step() -> None:
    """Note the first step, and the first one above HIGH, with their times."""
    global _high
    step, high = _words[_STEP], _words[_HIGH]
    now_ns = _times[step & _MASK]
    if step >= 0 and not _words[layout.FIRST_NS]:
        _words[layout.FIRST] = step
        _words[layout.FIRST_NS] = now_ns
    if step > high:
        if high != layout.NONE and _words[layout.ABOVE_OF] != high:
            _words[layout.ABOVE_NS] = now_ns
            _words[layout.ABOVE_OF] = high
        _high = high


def begin_round() -> None:
    """Forget the last round's memory, which the agent has cleared.

    Called: in a kept process, for each further round.
    """
    global _looked, _found, _sought, _high
    _looked = _sought = False
    _found, _high = None, 0
    unknown = memoryview(bytearray(layout.PAGE_BYTES)).cast("q")
    unknown[_ASKED] = 1  # so that the next call checks
    _use(unknown)


# --- the owner of the memory


def _look() -> None:
    """Find the memory to use. It is done here because a spare interpreter does not know it earlier."""
    global _looked
    _looked = True
    _words[_ASKED] = 0
    _attach()


def _attach() -> None:
    """Use the memory that this process's environment names, unless another process calls `should_stop` with it."""
    global _high
    words = _find()
    if words is None or _taken(words[layout.OWNER]):
        return
    words[layout.OWNER] = os.getpid()
    words[layout.STEP] = words[layout.FIRST] = layout.NONE
    words[layout.FIRST_NS] = 0
    _claim(words)
    _use(words)
    _high = None


def progress_words() -> memoryview | None:
    """Return the memory for this process's marks. `None`: no agent reads them, or another process is the worker."""
    words = _find()
    if words is None or words[layout.WRITER] == os.getpid():
        return words
    if _taken(words[layout.OWNER]) or _taken(words[layout.WRITER]):
        return None
    _claim(words)
    return words


def _claim(words: memoryview) -> None:
    """Make this process the writer of the progress."""
    if words[layout.WRITER] == os.getpid():
        return
    words[layout.WRITER] = os.getpid()
    if not words[layout.ALIVE_NS]:
        words[layout.ALIVE_NS] = monotonic_ns()
    count = words[layout.MARK_COUNT]
    last = layout.MARKS_AT + (count - 1) % layout.MARK_SLOTS * layout.MARK_WORDS
    if count and not words[last + layout.END_NS]:  # of the writer before, which can't end it any more
        words[last + layout.END_NS] = monotonic_ns()


def _find() -> memoryview | None:
    """Map the memory that this process's environment names, at the first call. `None` if it can't be mapped."""
    global _found, _sought
    if not _sought:
        _sought = True
        path = os.environ.get(layout.PAGE_VARIABLE)
        try:
            words = _map(path) if path else None
        except (OSError, ValueError):  # the agent is gone, or this process runs as another user now
            words = None
        if words is not None and words[layout.MAGIC] == layout.MAGIC_VALUE:
            _found = words
    return _found


def _map(path: str) -> memoryview:
    import mmap

    fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    try:
        return memoryview(mmap.mmap(fd, layout.PAGE_BYTES)).cast("q")
    finally:
        os.close(fd)


def _taken(owner: int) -> bool:
    """Return whether another live process owns the memory: a child of a worker is not the worker."""
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
    global _words, _times
    _words, _times = words, words[layout.TIMES_AT :]


def _in_forked_child() -> None:
    """Forget the memory in a forked child, which would otherwise act for the worker."""
    global _looked, _found, _sought, _high
    _looked = _sought = True
    _found, _high = None, 0
    _use(memoryview(bytearray(layout.PAGE_BYTES)).cast("q"))


os.register_at_fork(after_in_child=_in_forked_child)
