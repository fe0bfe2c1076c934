"""Follows log files and copies their lines, each with a header, to a stream: torch's `TailLog`.

Workers' own output reaches the console without it (`elastic_core.processes.output.tee`). It is for files that other
programs write.
"""

import logging
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TextIO

LOG = logging.getLogger(__name__)


def tail_logfile(
    header: str,
    file: str,
    dst: TextIO,
    finished: threading.Event,
    interval_sec: float,
    log_line_filter: Callable[[str], bool] | None = None,
) -> None:
    """Copy a file's new lines until `finished` is set and the file's end is reached.

    A line is copied when it is complete, so that lines of two files do not mix. An incomplete last line gets an end of
    line.

    Args:
        header: Prefix of each line.
        file: The file; it need not exist yet.
        dst: Destination of the lines.
        finished: Set when the file's writer has ended.
        interval_sec: Seconds between reads.
        log_line_filter: Returns whether to copy a line. `None` means all lines.
    """
    while not Path(file).exists():
        if finished.wait(interval_sec) and not Path(file).exists():
            return
    rest = ""
    with open(file, errors="replace") as source:  # noqa: PTH123  # a name as torch takes it
        while True:
            last = finished.is_set()
            *lines, rest = (rest + source.read()).split("\n")
            if last and rest:
                lines.append(rest)
            for line in lines:
                if log_line_filter is None or log_line_filter(f"{line}\n"):
                    dst.write(f"{header}{line}\n")
            if last:
                return
            finished.wait(interval_sec)


class TailLog:
    """Follows several log files, with one thread each.

    Args:
        name: Makes the header `[<name><rank>]:`.
        log_files: By rank; they need not exist yet.
        dst: Destination of the lines.
        log_line_prefixes: Headers by rank, in place of that one.
        interval_sec: Seconds between reads.
        log_line_filter: Returns whether to copy a line.
    """

    def __init__(
        self,
        name: str,
        log_files: Mapping[int, str],
        dst: TextIO,
        log_line_prefixes: Mapping[int, str] | None = None,
        interval_sec: float = 0.1,
        log_line_filter: Callable[[str], bool] = lambda _: True,
    ) -> None:
        """Follow nothing yet."""
        self._name = name
        self._files = dict(log_files)
        self._dst = dst
        self._prefixes = dict(log_line_prefixes or {})
        self._interval_sec = interval_sec
        self._filter = log_line_filter
        self._finished = threading.Event()
        self._threads: list[threading.Thread] = []
        self._stopped = False

    def start(self) -> "TailLog":
        """Begin, and return this object."""
        if self._dst is not None:
            self._threads = [
                threading.Thread(target=self._follow, args=(rank, file), name=f"tail {self._name}{rank}", daemon=True)
                for rank, file in self._files.items()
            ]
        for thread in self._threads:
            thread.start()
        return self

    def _follow(self, rank: int, file: str) -> None:
        header = self._prefixes.get(rank, f"[{self._name}{rank}]:")
        try:
            tail_logfile(header, file, self._dst, self._finished, self._interval_sec, self._filter)
        except Exception:
            # A thread has no caller.
            LOG.exception("following %r for %s%s failed", file, self._name, rank)

    def stop(self) -> None:
        """Copy the rest of the files, and end."""
        self._finished.set()
        for thread in self._threads:
            thread.join()
        self._stopped = True

    def stopped(self) -> bool:
        """Return whether it was stopped."""
        return self._stopped
