"""`record`, the decorator for a worker's main function, and the handler that writes its exceptions.

Also imported as `elastic_core.worker.record`, and under torch's names. Users may replace the handler. What writes the
error file is imported when a worker fails, because nearly every worker ends without it.
"""

import faulthandler
import functools
import logging
import os
import time
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

__all__ = ["ErrorHandler", "get_error_handler", "record", "set_error_handler"]

P = ParamSpec("P")
R = TypeVar("R")

logger = logging.getLogger(__name__)

ERROR_FILE_VARIABLE = "TORCHELASTIC_ERROR_FILE"
NOT_AVAILABLE = "<N/A>"
"""Torch's text for a missing error file, and for a signal without a name."""


class ErrorHandler:
    """Writes exceptions to the file in TORCHELASTIC_ERROR_FILE; without one it logs them. Subclass to do more."""

    # The recorded function's name, if it has one.
    _fn_name: str | None = None

    def set_entrypoint_fn_name(self, fn_name: str | None) -> None:
        """Keep the recorded function's name. `None`: it has none (a partial). Called: before `initialize`."""
        self._fn_name = fn_name

    def record_success(self) -> None:
        """Do nothing. A subclass may record that the function returned; its exceptions reach the caller."""

    def maybe_enrich_signal_failure_message(self, message: str, error_file: str) -> str:
        """Return the report's message about a worker that a signal killed; a subclass may improve it.

        Args:
            message: The default message.
            error_file: The worker's error file, which may be missing.
        """
        return message

    def initialize(self) -> None:
        """Prepare the process: fault signals dump every thread's stack. Called: before the recorded function runs."""
        if faulthandler.is_enabled():
            return
        try:
            faulthandler.enable(all_threads=True)
        except (OSError, RuntimeError, ValueError) as reason:
            # Without a usable stderr no dump is possible; the function runs all the same.
            logger.warning("fault handler not enabled: %s: %s", type(reason).__name__, reason)

    def record_exception(self, e: BaseException) -> None:
        """Write `e` to the error file, or log it; never raises in place of the error."""
        at_ns = time.time_ns()  # before the import: ranks are ordered by it
        path = os.environ.get(ERROR_FILE_VARIABLE, "")
        try:
            if path:
                from elastic_core.api.workers import write_exception

                write_exception(path, e, source="record", at_ns=at_ns)
                return
        except (ImportError, OSError) as reason:
            logger.warning("error file %r not written: %s", path, reason)
        logger.error("uncaught %s", _described(e), exc_info=e)

    def dump_error_file(self, rootcause_error_file: str, error_code: int = 0) -> None:
        """Copy a child's error file to this process's own, with the child's exit code as `errorCode`.

        Args:
            rootcause_error_file: The child's file. An unreadable one is logged and changes nothing.
            error_code: The child's exit code; 0 omits the code.
        """
        path = os.environ.get(ERROR_FILE_VARIABLE, "")
        if not path:
            logger.error("no error file of this process to copy %r to", rootcause_error_file)
            return
        try:
            from elastic_core.api.workers import load_record, write_record

            rootcause_error = load_record(rootcause_error_file)
            if error_code:
                self.override_error_code_in_rootcause_data(rootcause_error_file, rootcause_error, error_code)
            write_record(path, rootcause_error)
        except (ImportError, OSError, ValueError) as reason:
            logger.warning("error file %r not copied: %s", rootcause_error_file, reason)

    def override_error_code_in_rootcause_data(
        self, rootcause_error_file: str, rootcause_error: dict[str, Any], error_code: int = 0
    ) -> None:
        """Add the exit code to a child's record: a child that a signal kills does not know its own.

        Args:
            rootcause_error_file: The file of the record, for the log.
            rootcause_error: The record, changed in place. A record with a text as `message` cannot contain a code.
            error_code: The child's exit code.
        """
        message = rootcause_error.get("message")
        if isinstance(message, dict):
            message["errorCode"] = error_code
        else:
            logger.warning("error file %r has no place for exit code %s", rootcause_error_file, error_code)


def _described(error: BaseException) -> str:
    try:
        from elastic_core.api.workers import describe_error
    except (ImportError, OSError):  # no descriptor is left
        return type(error).__name__
    return describe_error(error)


_make: Callable[[], ErrorHandler] = ErrorHandler


def get_error_handler() -> ErrorHandler:
    """Return the default handler of `record`: an `ErrorHandler`, or that of `set_error_handler`."""
    return _make()


def set_error_handler(factory: Callable[[], ErrorHandler] | None) -> None:
    """Set the factory of `get_error_handler`, for this process.

    It also applies to functions that `record` has wrapped before. Each worker is its own process, so call it in the
    module of the worker's main function.

    Args:
        factory: A class or any callable without arguments. `None` restores `ErrorHandler`.
    """
    global _make  # one per process, as the error file is
    _make = factory or ErrorHandler


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
