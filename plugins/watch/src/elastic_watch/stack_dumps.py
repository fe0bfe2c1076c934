"""The part of a worker's interpreter that runs before its script: it offers to write its stacks on request."""

import _signal  # type: ignore[import-not-found]  # `signal` around it is the script's to pay for
import faulthandler
import os
import sys

from elastic_watch import beat_layout as layout


def offer() -> None:
    """Have the interpreter write its stacks on the agent's signal, and announce that in the page.

    The file is memory, so that a disk that hangs can't block the write.

    Called: by the agent's hook in each worker's interpreter (`LaunchChange.startup`).

    Raises:
        OSError: the agent is gone, or this process runs as another user now.
    """
    signum: int = _signal.SIGRTMAX - layout.STACKS_BELOW_RTMAX
    beat_file = os.environ.get(layout.FILE_VARIABLE, "")
    if not beat_file or _signal.getsignal(signum) != _signal.SIG_DFL:
        return  # the script's own choice counts
    stacks = os.open(beat_file, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
    faulthandler.register(signum, file=stacks, all_threads=True, chain=False)
    page = os.open(beat_file, os.O_WRONLY | os.O_CLOEXEC)  # one that appends can't write in front
    try:
        word = os.getpid() | signum << 32
        os.pwrite(page, word.to_bytes(layout.WORD_BYTES, sys.byteorder), layout.HOOK * layout.WORD_BYTES)
    finally:
        os.close(page)
    if beats := sys.modules.get("elastic_watch.beats"):  # a standby interpreter, now a worker, imported it
        beats.attach()
