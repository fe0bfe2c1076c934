"""In a worker: performs the call, and sends what it returned to whoever started the worker."""

from __future__ import annotations

import os
import pickle
import sys
from contextlib import suppress
from multiprocessing import spawn

from elastic_core.errors import ElasticError, WorkerError

# Not from typing: a worker function waits for every import here.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType
    from typing import Any

    Load = Callable[[], tuple[Callable[..., Any], tuple[Any, ...]]]

LENGTH_BYTES = 8
_MACHINERY = (
    os.path.dirname(os.path.dirname(os.path.abspath(__file__))),  # noqa: PTH100, PTH120  # pathlib is not ours to load
    "<frozen runpy>",
    spawn.__file__,
)
_ERROR_FILE_VARIABLE = "TORCHELASTIC_ERROR_FILE"


def perform(load: Load, result_fd: int) -> None:
    """Call the function that `load` gives, and send what it returns; a failure ends the process as it does a script.

    Raises:
        SystemExit: the function raised it, or anything else, which is then recorded and printed.
    """
    called = False
    try:
        fn, args = load()
        called = True
        value = _recorded(fn)(*args)
        called = False
        _send(result_fd, fn, value)
    except SystemExit:
        raise
    except BaseException as error:  # noqa: BLE001  # as at the interpreter's top
        # What we have to say about the call itself needs no traceback of ours.
        trace = None if isinstance(error, ElasticError) and not called else users_part(error.__traceback__)
        sys.last_value = error.with_traceback(trace)  # as there: whoever is called next knows that the process ends
        sys.excepthook(type(error), error, trace)
        sys.exit(1)


def _recorded(fn: Callable[..., Any]) -> Callable[..., Any]:
    if not os.environ.get(_ERROR_FILE_VARIABLE):
        return fn
    from elastic_core.multiprocessing.errors import record

    # Not functools.wraps on whatever `fn` is: what was sent may be any callable.
    return record(lambda *args: fn(*args))


def _send(fd: int, fn: Callable[..., Any], value: object) -> None:
    try:
        content = pickle.dumps(value, protocol=pickle.HIGHEST_PROTOCOL)
    except Exception as error:  # noqa: BLE001  # pickling runs anybody's code; told as ours
        name = getattr(fn, "__qualname__", type(fn).__name__)
        raise WorkerError(
            f"function {name!r} returned a {type(value).__name__} that can't be pickled: {_first_line(error)}",
            hint="return numbers, strings, arrays or tensors on the CPU, or write it to a file and return its name",
        ) from None
    with suppress(BrokenPipeError):  # nobody waits for it any more
        for part in (len(content).to_bytes(LENGTH_BYTES, "little"), content):
            rest = memoryview(part)
            while rest:
                rest = rest[os.write(fd, rest) :]
    os.close(fd)


def _first_line(error: Exception) -> str:
    text = str(error).partition("\n")[0]
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def users_part(trace: TracebackType | None) -> TracebackType | None:
    """Return the traceback from the user's first frame on; ours alone if there is none of the user's."""
    whole = trace
    while trace is not None and trace.tb_frame.f_code.co_filename.startswith(_MACHINERY):
        trace = trace.tb_next
    return whole if trace is None else trace
