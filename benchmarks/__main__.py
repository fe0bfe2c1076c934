"""`python -m benchmarks`."""

import os
import select
import sys

from benchmarks.run import main

_BROKEN_PIPE = 141  # 128 + SIGPIPE, as a shell shows it


def _has_reader() -> bool:
    """Return whether what reads our output is still there. Such as `head`, it may have ended."""
    poll = select.poll()
    poll.register(sys.stdout, 0)  # errors are always reported
    return not any(events & select.POLLERR for _, events in poll.poll(0))


try:
    # With a buffer under PYTHONUNBUFFERED, too: argparse ignores that it can't write, and only a flush tells us.
    sys.stdout = os.fdopen(sys.stdout.fileno(), "w", closefd=False)
    try:
        main()
    finally:
        sys.stdout.flush()  # here a closed pipe is still an error
except BrokenPipeError:
    if _has_reader():  # the pipe is a measure's
        raise
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    sys.exit(_BROKEN_PIPE)
