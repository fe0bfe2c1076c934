"""Records an exception in the worker's error file, for `record`. Users may replace the handler."""

from __future__ import annotations

import faulthandler
import logging
import os

from elastic_core.processes.errors import writer

# Not from typing: this loads in workers.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

logger = logging.getLogger(__name__)

ERROR_FILE_VARIABLE = "TORCHELASTIC_ERROR_FILE"


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
        path = os.environ.get(ERROR_FILE_VARIABLE, "")
        if not path:
            logger.error("uncaught %s", writer.describe(e), exc_info=e)
            return
        try:
            writer.write_exception(path, e, source="record")
        except OSError as reason:
            logger.warning("error file %r not written: %s", path, reason)
            logger.error("uncaught %s", writer.describe(e), exc_info=e)

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
            rootcause_error = writer.load_record(rootcause_error_file)
            if error_code:
                self.override_error_code_in_rootcause_data(rootcause_error_file, rootcause_error, error_code)
            writer.write_record(path, rootcause_error)
        except (OSError, ValueError) as reason:
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
