"""The decorator for a worker's main function."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from elastic_core.processes.errors.handler import ErrorHandler, get_error_handler

P = ParamSpec("P")
R = TypeVar("R")

logger = logging.getLogger(__name__)

NOT_AVAILABLE = "<N/A>"
"""Torch's word for an error file that is not there, and for a signal without a name."""


def record(fn: Callable[P, R], error_handler: ErrorHandler | None = None) -> Callable[P, R | None]:
    """Record the exceptions of a worker's main function in its error file; each is raised again unchanged.

    Under `elastic run` uncaught exceptions are recorded without it. It is for functions whose exceptions something
    above them handles, and for other launchers. Any object with torch's `ErrorHandler` methods will do as handler, also
    one that has only those of an older torch; one that fails is named in the log, and the function's own exception goes
    on.

    Args:
        fn: The main function. `SystemExit(0)` from it returns None. One with a message is recorded as an exception is;
            any other passes unrecorded.
        error_handler: What records; None takes `get_error_handler()`, at each call.

    Returns:
        A function that takes what `fn` takes.
    """

    @functools.wraps(fn)
    def wrapper(*args: P.args, **kwargs: P.kwargs) -> R | None:
        handler = error_handler or get_error_handler()
        _call_if_there(handler, "set_entrypoint_fn_name", getattr(fn, "__qualname__", None))
        handler.initialize()
        try:
            result = fn(*args, **kwargs)
        except SystemExit as leaving:
            if leaving.code == 0:
                return None
            if isinstance(leaving.code, str):
                _record(handler, leaving)
            raise
        except Exception as error:
            _record(handler, error)
            raise
        _call_if_there(handler, "record_success")
        return result

    return wrapper


def _call_if_there(handler: ErrorHandler, method: str, *args: object) -> None:
    """Call what handlers have from torch 2.15 on, unless this one was written before."""
    known = getattr(handler, method, None)
    if known is not None:
        known(*args)


def _record(handler: ErrorHandler, error: BaseException) -> None:
    try:
        # By its method, not by its class: torch's ChildFailedError counts too, and importing torch would cost seconds.
        if hasattr(error, "get_first_failure"):
            _hand_on(handler, *error.get_first_failure())
        else:
            handler.record_exception(error)
    except Exception:
        logger.exception("error handler %r failed", type(handler).__name__)


def _hand_on(handler: ErrorHandler, rank: int, failure: object) -> None:
    error_file = getattr(failure, "error_file", NOT_AVAILABLE)
    if error_file == NOT_AVAILABLE:
        logger.info("rank %s failed without an error file: decorate its main function with @record", rank)
        return
    handler.dump_error_file(error_file, getattr(failure, "exitcode", 0))
