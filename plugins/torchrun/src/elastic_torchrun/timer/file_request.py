"""The wire format of file timers, which is torch's: JSON objects, one a line, each in one write."""

import json
import math
import select
import signal
from typing import Any, Final

VERSION: Final = 1
LONGEST_LINE: Final = select.PIPE_BUF
"""The number of bytes that one write puts into a pipe in one piece, with any other writers."""
_LARGEST_PID: Final = 2**22
_BEGIN: Final = b'{"version"'


class TimerRequest:
    """Sets or releases a timer.

    Attributes:
        worker_id: The worker; its form depends on client and server.
        scope_id: The timer of that worker.
        expiration_time: When it expires, in seconds since the Unix epoch. Negative means that it is released.
    """

    __slots__ = ("expiration_time", "scope_id", "worker_id")

    def __init__(self, worker_id: Any, scope_id: str, expiration_time: float) -> None:  # noqa: ANN401  # anything
        self.worker_id = worker_id
        self.scope_id = scope_id
        self.expiration_time = expiration_time

    def __eq__(self, other: object) -> bool:
        """Return whether both are the same request."""
        if not isinstance(other, TimerRequest):
            return NotImplemented
        return (self.worker_id, self.scope_id, self.expiration_time) == (
            other.worker_id,
            other.scope_id,
            other.expiration_time,
        )

    __hash__ = None  # type: ignore[assignment]  # as torch's: it can be changed

    def __repr__(self) -> str:
        """Return its fields."""
        return f"{type(self).__name__}({self.worker_id!r}, {self.scope_id!r}, {self.expiration_time!r})"


class FileTimerRequest(TimerRequest):
    """Sets or releases a timer of a process.

    Attributes:
        version: Of the wire format.
        signal: The signal that ends the process. 0 or less means that the timer is only reported.
    """

    __slots__ = ("signal", "version")

    def __init__(self, worker_pid: int, scope_id: str, expiration_time: float, signal: int = 0) -> None:
        super().__init__(worker_pid, scope_id, expiration_time)
        self.version = VERSION
        self.signal = signal

    @property
    def worker_pid(self) -> int:
        """The process."""
        return int(self.worker_id)

    def __eq__(self, other: object) -> bool:
        """Return whether both are the same request."""
        if not isinstance(other, FileTimerRequest):
            return NotImplemented
        return super().__eq__(other) and (self.version, self.signal) == (other.version, other.signal)

    __hash__ = None

    def to_json(self) -> str:
        """Return the line without its line end."""
        return json.dumps(
            {
                "version": self.version,
                "pid": self.worker_pid,
                "scope_id": self.scope_id,
                "expiration_time": self.expiration_time,
                "signal": int(self.signal),
            }
        )


def parse(line: bytes) -> FileTimerRequest:
    """Return the request in a line.

    Raises:
        ValueError: the line has none.
    """
    begin = line.rfind(_BEGIN)  # what stands before it was left by a client that died while it wrote
    try:
        told: Any = json.loads(line[max(begin, 0) :])
        expiration_s = float(told["expiration_time"])
    except (TypeError, KeyError, OverflowError, RecursionError) as err:
        raise ValueError("no object with an expiration_time") from err
    scope = told.get("scope_id")
    if not isinstance(scope, str) or math.isnan(expiration_s):
        raise ValueError("no scope_id, or no expiration_time")
    return FileTimerRequest(
        _whole(told, "pid", 1, _LARGEST_PID), scope, expiration_s, _whole(told, "signal", -signal.NSIG, signal.NSIG - 1)
    )


def _whole(told: dict[str, Any], key: str, least: int, most: int) -> int:
    value = told.get(key)
    if not isinstance(value, int) or not least <= value <= most:
        raise ValueError(f"no {key}")
    return value


class Lines:
    """Joins chunks from a pipe into complete lines, and counts lines that were too long."""

    def __init__(self) -> None:
        """Begin empty."""
        self._rest = b""
        self._skipping = False
        self.too_long = 0

    def feed(self, chunk: bytes) -> list[bytes]:
        """Return the lines that end in the chunk, except empty ones and those that are too long."""
        *ended, rest = (self._rest + chunk).split(b"\n")
        lines = []
        for line in ended:
            if self._skipping:
                self._skipping = False  # the end of one that was too long
            elif len(line) > LONGEST_LINE:
                self.too_long += 1
            elif line.strip():
                lines.append(line)
        if len(rest) > LONGEST_LINE and not self._skipping:
            self.too_long += 1
            self._skipping = True
        self._rest = b"" if self._skipping else rest
        return lines
