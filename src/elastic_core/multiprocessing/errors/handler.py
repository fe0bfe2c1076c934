"""Records an exception in the worker's error file: what `record` calls, and what a user may replace."""

import faulthandler
import logging
import os

from elastic_core.multiprocessing.errors import writer

logger = logging.getLogger(__name__)

ERROR_FILE_VARIABLE = "TORCHELASTIC_ERROR_FILE"


class ErrorHandler:
    """Writes exceptions to the file named in TORCHELASTIC_ERROR_FILE; without one it logs them. Subclass to do more."""

    def initialize(self) -> None:
        """Prepare the process: fault signals dump every thread's stack. Called: before the recorded function runs."""
        if faulthandler.is_enabled():
            return
        try:
            faulthandler.enable(all_threads=True)
        except (OSError, RuntimeError, ValueError) as reason:
            # Without a usable stderr there is nowhere to dump to; the function runs all the same.
            logger.warning("fault handler not enabled: %s: %s", type(reason).__name__, reason)

    def record_exception(self, error: BaseException) -> None:
        """Write `error` to the error file, or log it; never raises in place of the error."""
        path = os.environ.get(ERROR_FILE_VARIABLE, "")
        if not path:
            logger.error("uncaught %s", writer.describe(error), exc_info=error)
            return
        try:
            writer.write_exception(path, error, source="record")
        except OSError as reason:
            logger.warning("error file %r not written: %s", path, reason)
            logger.error("uncaught %s", writer.describe(error), exc_info=error)

    def dump_error_file(self, rootcause_error_file: str, error_code: int = 0) -> None:
        """Copy a child's error file to this process's own, with the child's exit code as `errorCode`.

        Args:
            rootcause_error_file: The child's file; one that can't be read is named in the log and changes nothing.
            error_code: The child's exit code; 0 leaves the code out.
        """
        path = os.environ.get(ERROR_FILE_VARIABLE, "")
        if not path:
            logger.error("no error file of this process to copy %r to", rootcause_error_file)
            return
        try:
            writer.copy_record(rootcause_error_file, path, error_code=error_code)
        except (OSError, ValueError) as reason:
            logger.warning("error file %r not copied: %s", rootcause_error_file, reason)


def get_error_handler() -> ErrorHandler:
    """Return the handler that `record` uses unless it is given one."""
    return ErrorHandler()
