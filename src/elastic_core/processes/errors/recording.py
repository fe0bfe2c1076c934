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
"""Torch's text for a missing error file, and for a signal without a name."""


def record(fn: Callable[P, R], error_handler: ErrorHandler | None = None) -> Callable[P, R | None]:
    """Record the exceptions of a worker's main function in its error file, and raise them again unchanged.

    Under `elastic run`, uncaught exceptions are recorded without it. Use it for functions whose exceptions a caller
    handles, and for other launchers. The handler may be any object with the methods of torch's `ErrorHandler`, also
    those of an older torch. If it fails, that is logged, and the function's own exception is raised.

    Args:
        fn: The main function. For `SystemExit(0)`, the result is None. A `SystemExit` with a message is recorded like
            an exception; any other is not recorded.
        error_handler: The handler. `None` means `get_error_handler()` at each call.

    Returns:
        A function with the arguments of `fn`.
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
    # Handlers that were written before torch 2.15 lack some methods.
    known = getattr(handler, method, None)
    if known is not None:
        known(*args)


def _record(handler: ErrorHandler, error: BaseException) -> None:
    try:
        # By its method, not its class: this includes torch's ChildFailedError without importing torch.
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
