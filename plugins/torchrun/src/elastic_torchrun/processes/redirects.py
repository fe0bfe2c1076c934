"""Sends this process's own output streams to files, with everything that writes to their descriptors."""

import ctypes
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress

_FDS = {"stdout": 1, "stderr": 2}


@contextmanager
def redirect(std: str, to_file: str) -> Iterator[None]:
    """Send a stream to a file meanwhile: that of Python, of C libraries, and of programs that are started.

    Args:
        std: `stdout` or `stderr`.
        to_file: Its directory exists; what the file holds is overwritten.

    Raises:
        ValueError: there is no such stream.

    Threading: it is the process's stream, so all threads' output goes there.
    """
    if std not in _FDS:
        raise ValueError(f"unknown stream {std!r}; expected stdout or stderr")
    with open(to_file, "wb") as file, ExitStack() as undo:  # noqa: PTH123  # a name as torch takes it
        _flush(std)
        for fd in _fds_of(std):
            kept = os.dup(fd)
            undo.callback(os.close, kept)
            undo.callback(os.dup2, kept, fd)
            os.dup2(file.fileno(), fd)
        undo.callback(_flush, std)
        yield


@contextmanager
def redirect_stdout(to_file: str) -> Iterator[None]:
    """Send stdout to a file meanwhile, as `redirect` does."""
    with redirect("stdout", to_file):
        yield


@contextmanager
def redirect_stderr(to_file: str) -> Iterator[None]:
    """Send stderr to a file meanwhile, as `redirect` does."""
    with redirect("stderr", to_file):
        yield


def get_std_cm(std_rd: str, redirect_fn: Callable[[str], AbstractContextManager[None]]) -> AbstractContextManager[None]:
    """Return `redirect_fn(std_rd)`, or what changes nothing where no file is named."""
    return redirect_fn(std_rd) if std_rd else nullcontext()


def _fds_of(std: str) -> set[int]:
    """Return the process's own stream, and what Python's writes to where that is another file."""
    try:
        return {_FDS[std], int(getattr(sys, std).fileno())}
    except (AttributeError, OSError, ValueError):  # none, or one that is no file (a notebook)
        return {_FDS[std]}


def _flush(std: str) -> None:
    """Write what Python's and C's buffers hold to where it was meant to go."""
    with suppress(AttributeError, ValueError):  # none, or closed
        getattr(sys, std).flush()
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).fflush(None)
