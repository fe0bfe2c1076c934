"""A failed worker process, with the content of its error file."""

from __future__ import annotations

import logging
import os
import signal
import time
from dataclasses import KW_ONLY, InitVar, dataclass, field
from pathlib import Path
from typing import Any

from elastic_core.api import SYSTEM_CLOCK
from elastic_core.embedding import parse_error_file, read_error_file

logger = logging.getLogger(__name__)

NOT_AVAILABLE = "<N/A>"
"""Placeholder for a missing error file, and for the name of a signal without one."""
_NS = 10**9


@dataclass
class ProcessFailure:
    """A failed worker process.

    The error file is read once, when this object is made. If it is missing or malformed, no exception is raised;
    `message` then describes how the process ended.

    Args:
        local_rank: Its rank among the workers of its node.
        pid: Its process id.
        exitcode: Its exit code; -N if signal N ended it.
        error_file: Path of its error file. Afterwards `<N/A>` if there is no such file.
        ended_ns: When it ended, in nanoseconds since the epoch, if it left no file. `None` means now.

    Attributes:
        error_file_data: Content of the file; `{"message": "<NONE>"}` without one.
        message: The record in the file (`{"message": …, "extraInfo": …}`), or a text.
        timestamp: Time of the failure, in whole seconds since the epoch.
        timestamp_ns: The same in nanoseconds, by which failures are ordered.
    """

    local_rank: int
    pid: int
    exitcode: int
    error_file: str
    _: KW_ONLY
    ended_ns: InitVar[int | None] = None
    error_file_data: dict[str, Any] = field(init=False)
    message: str | dict[str, Any] = field(init=False)
    timestamp: int = field(init=False)
    timestamp_ns: int = field(init=False)

    def __post_init__(self, ended_ns: int | None) -> None:
        """Read the error file."""
        self.error_file_data = {"message": "<NONE>"}  # each its own: it may be added to
        self.timestamp_ns = SYSTEM_CLOCK.wall_ns() if ended_ns is None else ended_ns
        self.message = ""
        if not os.path.isfile(self.error_file):  # noqa: PTH113  # torch's callers may give None
            self.error_file = NOT_AVAILABLE
        else:
            self._read()
        self.timestamp = self.timestamp_ns // _NS
        if not self.message:
            self.message = self._how_it_ended()

    def signal_name(self) -> str:
        """Return the name of the signal that ended it; `<N/A>` if none did."""
        if self.exitcode >= 0:
            return NOT_AVAILABLE
        try:
            return signal.Signals(-self.exitcode).name
        except ValueError:
            return NOT_AVAILABLE

    def timestamp_isoformat(self) -> str:
        """Return the local time of the failure, as `2026-11-21_09:30:05`."""
        return time.strftime("%Y-%m-%d_%H:%M:%S", time.localtime(self.timestamp))

    def _read(self) -> None:
        content, mtime_ns = read_error_file(Path(self.error_file)) or (b"", 0)
        data = parse_error_file(content)
        message = data.get("message") if isinstance(data, dict) else None
        if not isinstance(data, dict) or not isinstance(message, str | dict):
            logger.warning("error file %r holds no error record", self.error_file)
            return
        information = message.get("extraInfo") if isinstance(message, dict) else data
        self.error_file_data, self.message = data, message
        self.timestamp_ns = _time_of(information if isinstance(information, dict) else {}, mtime_ns)

    def _how_it_ended(self) -> str:
        if self.exitcode < 0:
            return f"Signal {-self.exitcode} ({self.signal_name()}) received by PID {self.pid}"
        self.error_file_data["errorTraits"] = {"category": "system_terminated_error", "retryability": "False"}
        return "no traceback was recorded. Try: decorate the main function with @record"


def _time_of(information: dict[str, Any], mtime_ns: int) -> int:
    """Return the time of a record: torch writes whole seconds, so the file's modification time adds the fraction."""
    given_ns = information.get("timestamp_ns")
    if isinstance(given_ns, int):
        return given_ns
    try:
        seconds = int(information.get("timestamp", 0))
    except (TypeError, ValueError):
        seconds = 0
    near = seconds == 0 or 0 <= mtime_ns // _NS - seconds <= 1
    return mtime_ns if near else seconds * _NS
