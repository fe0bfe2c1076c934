"""Heartbeats of a training script: `heartbeat`, `step_completed` and `section`, by which `--hang-timeout` finds hangs.

All write to memory that the agent reads: no system call, and no lock for which a heartbeat could wait. Without such an
agent (no `elastic run`, or one without `--hang-timeout`) they write to private memory. They raise no error because of
the launcher.
"""

import os
import sys
from _thread import RLock
from time import monotonic_ns

from elastic_watch import beat_layout as layout

# Not from typing: importing it costs milliseconds.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import TracebackType
    from typing import SupportsIndex

_BEAT_NS, _STEP, _HIGH, _MASK = layout.BEAT_NS, layout.STEP, layout.HIGH, layout.TIMES_MASK

_page = memoryview(bytearray(layout.PAGE_BYTES))
_words = _page.cast("q")
_times = _words[layout.TIMES_AT :]
"""The times of the last steps."""
_lock = RLock()  # of sections alone; a signal handler may open one, too
_serial = 0
_alive = True
"""Whether the first heartbeat is noted, or no agent reads it."""
_high: int | None = 0
"""The value of HIGH for which steps need no more comparison. `None` means that the first step is not noted yet."""
_completed = layout.NONE
"""The last step of `step_completed` that was noted."""


def heartbeat(*, step: "SupportsIndex | None" = None) -> None:
    """Report that this worker makes progress.

    Args:
        step: The current step: a rising number, the same for all ranks at the same place. `None` keeps the last one.

    Call it once per step, and never at a place without progress. Threading: any; takes a fraction of a microsecond.
    """
    now_ns = monotonic_ns()
    if step is not None:
        try:
            _words[_STEP] = step  # type: ignore[call-overload]  # it takes whatever is an index
            _times[step & _MASK] = now_ns  # type: ignore[operator]  # of a whole number; others follow below
        except (TypeError, ValueError, OverflowError):
            _note_odd_step(step, now_ns)
        if _words[_HIGH] != _high:
            _note_step(now_ns)
    if not _alive:
        _note_life(now_ns)
    _words[_BEAT_NS] = now_ns


def step_completed(step: int) -> None:
    """Report a heartbeat, and this step if the script itself reports none by `heartbeat` or `should_stop`.

    For libraries that see when a step is complete, as `elastic_warm.State.commit` does: a script may count its steps in
    another way, and its own count is the one that counts.

    Args:
        step: How many steps are complete: a rising number, the same for all ranks at the same place.

    Threading: that of the training.
    """
    global _completed
    if _words[_STEP] not in (layout.NONE, _completed) or _asks_by_step():
        heartbeat()
    else:
        heartbeat(step=step)
        _completed = _words[_STEP]


def _asks_by_step() -> bool:
    """Return whether the script calls `should_stop` with steps."""
    stops = sys.modules.get("elastic_train.stops")  # of another distribution, which the script may have imported
    last_step = getattr(stops, "last_step", None)
    return last_step is not None and last_step() is not None


def _note_odd_step(step: "SupportsIndex", now_ns: int) -> None:
    """Note a step that is an index, but no whole number. Ignore a wrong one, which must not end a training."""
    try:
        number = step.__index__()
        _words[_STEP] = number
        _times[number & _MASK] = now_ns
    except (AttributeError, TypeError, ValueError, OverflowError):
        return


def _note_life(now_ns: int) -> None:
    """Note the time of the first heartbeat."""
    global _alive
    _alive = True
    if not _words[layout.ALIVE_NS]:
        _words[layout.ALIVE_NS] = now_ns


def _note_step(now_ns: int) -> None:
    """Note the first step, and the first one above HIGH, with their times."""
    global _high
    step, high = _words[_STEP], _words[_HIGH]
    if step >= 0 and not _words[layout.FIRST_NS]:
        _words[layout.FIRST] = step
        _words[layout.FIRST_NS] = now_ns
    if step > high:
        if high != layout.NONE and _words[layout.ABOVE_OF] != high:
            _words[layout.ABOVE_NS] = now_ns
            _words[layout.ABOVE_OF] = high
        _high = high


def section(name: str, *, limit_s: float) -> "Section":
    """Return a context manager for a part that takes longer than `--hang-timeout`: a checkpoint, an evaluation.

    While any rank of the node is in a section, within its limit, no rank counts as a hang. Sections may be nested, and
    be open in several threads at once.

    Args:
        name: For people.
        limit_s: The time limit of the section, in seconds.

    Raises:
        ValueError: the limit is not a positive number of seconds.
    """
    return Section(name, limit_s)


class Section:
    """The context manager of `section`, which may be entered again after its exit."""

    __slots__ = ("_limit_ns", "_name", "_slots")

    def __init__(self, name: str, limit_s: float) -> None:
        """Open nothing yet."""
        if not 0 < limit_s < 1e9:
            raise ValueError(f"section {name!r}: limit_s={limit_s!r} is no positive number of seconds")
        self._name = str(name).encode("utf-8", "replace")[: layout.MAX_NAME_BYTES]
        self._limit_ns = int(limit_s * 1e9)
        self._slots: list[int] = []

    def __enter__(self) -> "Section":
        self._slots.append(_open(self._name, self._limit_ns))
        return self

    def __exit__(
        self, kind: "type[BaseException] | None", value: "BaseException | None", trace: "TracebackType | None"
    ) -> None:
        at = self._slots.pop()
        if at:
            _words[at + layout.SERIAL] = 0
        if _words[_BEAT_NS]:
            # Its end is a sign of life, but not the first one: a script that only has sections is not judged by beats.
            _words[_BEAT_NS] = monotonic_ns()


def _open(name: bytes, limit_ns: int) -> int:
    """Note an open section. Return the position of its first word, or 0 if all positions are in use."""
    global _serial
    end = layout.SECTIONS_AT + layout.SECTION_COUNT * layout.SECTION_WORDS
    with _lock:
        _keep_signal(_words)
        for at in range(layout.SECTIONS_AT, end, layout.SECTION_WORDS):
            if not _words[at + layout.SERIAL]:
                _serial += 1
                begin = (at + layout.NAME_AT) * layout.WORD_BYTES
                _page[begin : begin + len(name)] = name
                _words[at + layout.NAME_BYTES] = len(name)
                _words[at + layout.SINCE_NS] = monotonic_ns()
                _words[at + layout.LIMIT_NS] = limit_ns
                _words[at + layout.SERIAL] = _serial
                return at
    return 0


# --- the owner of the memory


def attach() -> None:
    """Use the memory that this process's environment names, unless it can't be mapped or another process owns it.

    Called: when a script imports this module, which announces heartbeats; and by the hook in a spare interpreter that
    imported it before it became a worker. Until then it is in no round, and the memory belongs to the present worker.
    """
    global _alive, _high
    path = os.environ.get(layout.FILE_VARIABLE)
    if not path or layout.ROUND_VARIABLE not in os.environ:
        return
    try:
        page = _map(path)
    except (OSError, ValueError):  # the agent is gone, or this process runs as another user now
        return
    words = page.cast("q")
    if words[layout.MAGIC] == layout.MAGIC_VALUE and _claim(words):
        _keep_signal(words)
        _use(page)
        _alive, _high = False, None


def attached() -> bool:
    """Return whether an agent reads this process's heartbeats."""
    return _words[layout.MAGIC] == layout.MAGIC_VALUE


def _keep_signal(words: memoryview) -> None:
    """Withdraw the offer of stacks if the script has set its own handler for one of the signals."""
    signum = words[layout.HOOK] >> 32
    if signum > 0:
        from elastic_watch.stack_dumps import kept

        if not kept(signum):
            words[layout.HOOK] = 0


def _map(path: str) -> memoryview:
    import mmap

    fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    try:
        return memoryview(mmap.mmap(fd, layout.PAGE_BYTES))
    finally:
        os.close(fd)


def _claim(words: memoryview) -> bool:
    """Use the memory for this process, unless a live one has it: a child of a worker is not the worker."""
    own, owner = os.getpid(), words[layout.OWNER]
    if owner and owner != own:
        try:
            os.kill(owner, 0)
        except ProcessLookupError:
            for index in range(layout.SECTION_COUNT):  # what it had open died with it
                words[layout.SECTIONS_AT + index * layout.SECTION_WORDS + layout.SERIAL] = 0
        except OSError:
            return False
        else:
            return False
    words[layout.OWNER] = own
    return True


def _use(page: memoryview) -> None:
    global _page, _words, _times
    _page, _words = page, page.cast("q")
    _times = _words[layout.TIMES_AT :]


def _in_forked_child() -> None:
    """Send no heartbeats in a forked child, which would hide a hang of the worker."""
    global _lock, _alive, _high
    _lock = RLock()  # its holder is not in this process
    _alive, _high = True, 0
    _use(memoryview(bytearray(layout.PAGE_BYTES)))


os.register_at_fork(after_in_child=_in_forked_child)
attach()
