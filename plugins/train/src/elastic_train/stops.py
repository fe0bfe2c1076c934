"""Planned stops for a training script: `should_stop` and `ready_to_stop`.

Both use memory that the agent shares with this process, so a check makes no system call. Without such an agent
(torchrun, bare Python, an agent without elastic-train) no stop is ever planned.
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
"""How long a rank waits at a step for an agent that does not respond: it is stopped, or gone."""
_PAUSE_S = 0.001

_words = memoryview(bytearray(layout.PAGE_BYTES)).cast("q")
_words[_ASKED] = 1  # so that the first call checks
_looked = False


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
    return _words[_ASKED] != 0 and _planned(step)


def ready_to_stop() -> None:
    """Report that this worker has saved. The stop goes on when all workers have reported this, or ended."""
    if not _looked:
        _look()
    _words[layout.READY] = 1


def _planned(step: "SupportsIndex | None") -> bool:
    """Return the result for a planned stop. The first call finds out which process owns the memory."""
    if not _looked:
        _look()
        _words[layout.FIRST] = layout.NONE if step is None else step.__index__()
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


# --- the owner of the memory


def _look() -> None:
    """Find the memory to use. It is done here because a spare interpreter does not know it earlier."""
    global _looked
    _looked = True
    _words[_ASKED] = 0
    _attach()


def _attach() -> None:
    """Map the memory that this process's environment names, unless it can't be mapped or another process owns it."""
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
    global _words
    _words = words


def _in_forked_child() -> None:
    """Forget the memory in a forked child, which would otherwise act for the worker."""
    global _looked
    _looked = True
    _use(memoryview(bytearray(layout.PAGE_BYTES)).cast("q"))


os.register_at_fork(after_in_child=_in_forked_child)
