"""The decorator for a worker's main function."""

import functools
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from elastic_core.multiprocessing.errors.handler import ErrorHandler, get_error_handler

P = ParamSpec("P")
R = TypeVar("R")


def record(fn: Callable[P, R], error_handler: ErrorHandler | None = None) -> Callable[P, R | None]:
    """Record the exceptions of a worker's main function in its error file; each is raised again unchanged.

    Under `elastic run` uncaught exceptions are recorded without it. It is for functions whose exceptions something
    above them handles, and for other launchers. Any object with torch's `ErrorHandler` methods will do as handler.

    Args:
        fn: The main function. `SystemExit(0)` from it returns None; any other SystemExit passes unrecorded.
        error_handler: What records; None takes `get_error_handler()`.

    Returns:
        A function that takes what `fn` takes.
    """
    handler = error_handler or get_error_handler()

    @functools.wraps(fn)
    def wrapper(*args: P.args, **kwargs: P.kwargs) -> R | None:
        handler.initialize()
        try:
            return fn(*args, **kwargs)
        except SystemExit as leaving:
            if leaving.code == 0:
                return None
            raise
        except Exception as error:
            _record(handler, error)
            raise

    return wrapper


def _record(handler: ErrorHandler, error: Exception) -> None:
    # By its method, not by its class: torch's ChildFailedError counts too, and importing torch here would cost seconds.
    if not hasattr(error, "get_first_failure"):
        handler.record_exception(error)
        return
    _, failure = error.get_first_failure()
    handler.dump_error_file(failure.error_file, failure.exitcode)
