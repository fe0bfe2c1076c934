"""The part of a worker's interpreter that runs before its script: it offers to write its stacks on request."""

import _signal  # type: ignore[import-not-found]  # `signal` around it is the script's to pay for
import faulthandler
import os
import sys

from elastic_watch import beat_layout as layout

# Not from typing: importing it costs milliseconds.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import FrameType

_stacks = -1
"""The descriptor to which the handlers write."""


def offer() -> None:
    """Have the interpreter write its stacks on the agent's signals, and announce that in the page.

    The lower signal's handler is one of Python: it holds the interpreter's lock, and writes the stacks of all threads.
    The higher signal's runs at once and without the lock, also while a function of C runs. If it read the frames of a
    thread that runs Python code, the process could end by SIGSEGV. So it writes the main thread's stack only, and the
    agent uses it only if the other one has not run.

    The file is memory, so that a disk that hangs can't block the write.

    Called: by the agent's hook in each worker's interpreter (`LaunchChange.startup`); again in a kept process, for each
    further round, whose memory is another one.

    Raises:
        OSError: the agent is gone, or this process runs as another user now.
    """
    global _stacks
    if beats := sys.modules.get("elastic_watch.beats"):  # imported before: this was a standby, or is kept
        beats.attach()
    signum: int = _signal.SIGRTMAX - layout.STACKS_BELOW_RTMAX
    beat_file = os.environ.get(layout.FILE_VARIABLE, "")
    if not beat_file or not kept(signum):
        return  # the script's own choice counts
    last = _stacks
    _stacks = os.open(beat_file, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
    faulthandler.register(signum, file=_stacks, all_threads=False, chain=False)
    if last >= 0:
        os.close(last)
    _signal.signal(signum - 1, _write)
    _signal.siginterrupt(signum - 1, False)  # libraries in C need not expect EINTR
    page = os.open(beat_file, os.O_WRONLY | os.O_CLOEXEC)  # one that appends can't write in front
    try:
        word = os.getpid() | signum << 32
        os.pwrite(page, word.to_bytes(layout.WORD_BYTES, sys.byteorder), layout.HOOK * layout.WORD_BYTES)
    finally:
        os.close(page)


def kept(signum: int) -> bool:
    """Return whether the script has no own handler for either signal."""
    # faulthandler's handler does not show here.
    return _signal.getsignal(signum) == _signal.SIG_DFL and _signal.getsignal(signum - 1) in (_signal.SIG_DFL, _write)


def _write(_signum: int, _frame: "FrameType | None") -> None:
    faulthandler.dump_traceback(_stacks, all_threads=True)
    os.write(_stacks, layout.STACKS_WHOLE)
