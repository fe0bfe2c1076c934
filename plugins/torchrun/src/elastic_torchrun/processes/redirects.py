"""Redirects this process's output streams to files, for all writers to their descriptors."""

import ctypes
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress

_FDS = {"stdout": 1, "stderr": 2}


@contextmanager
def redirect(std: str, to_file: str) -> Iterator[None]:
    """Redirect a stream to a file during the block: the output of Python, C libraries and child processes.

    Args:
        std: `stdout` or `stderr`.
        to_file: The file, which is overwritten. Its directory must exist.

    Raises:
        ValueError: there is no such stream.

    Threading: the stream belongs to the process, so all threads' output is redirected.
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
    """Redirect stdout to a file during the block, as `redirect` does."""
    with redirect("stdout", to_file):
        yield


@contextmanager
def redirect_stderr(to_file: str) -> Iterator[None]:
    """Redirect stderr to a file during the block, as `redirect` does."""
    with redirect("stderr", to_file):
        yield


def get_std_cm(std_rd: str, redirect_fn: Callable[[str], AbstractContextManager[None]]) -> AbstractContextManager[None]:
    """Return `redirect_fn(std_rd)`. Without a file, return a context manager that changes nothing."""
    return redirect_fn(std_rd) if std_rd else nullcontext()


def _fds_of(std: str) -> set[int]:
    """Return the descriptors of the process's stream, and of Python's if that is another file."""
    try:
        return {_FDS[std], int(getattr(sys, std).fileno())}
    except (AttributeError, OSError, ValueError):  # none, or one that is no file (a notebook)
        return {_FDS[std]}


def _flush(std: str) -> None:
    """Flush the buffers of Python and C."""
    with suppress(AttributeError, ValueError):  # none, or closed
        getattr(sys, std).flush()
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).fflush(None)
