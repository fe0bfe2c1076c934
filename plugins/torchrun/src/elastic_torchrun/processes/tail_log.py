"""Follows log files and copies their lines, each with a header, to a stream: torch's `TailLog`.

Workers' own output comes to the console without it (`elastic_core.processes.output.tee`); this is for files that
somebody else writes.
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
    """Copy a file's lines as they come, until `finished` is set and nothing more is in it.

    A line is copied when it is whole, so that no two files' lines mix; what is left without an end at the last is
    given one.

    Args:
        header: Stands before each line.
        file: It may not be there yet.
        dst: Where lines go.
        finished: Set when the file's writer has ended.
        interval_sec: Seconds between looks.
        log_line_filter: Says which lines to copy; None: all.
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
    """Follows several log files, a thread for each.

    Args:
        name: Makes the header `[<name><rank>]:`.
        log_files: By rank; none need be there yet.
        dst: Where lines go.
        log_line_prefixes: Headers by rank, in place of that.
        interval_sec: Seconds between looks.
        log_line_filter: Says which lines to copy.
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
            # A thread has nobody else to tell.
            LOG.exception("following %r for %s%s failed", file, self._name, rank)

    def stop(self) -> None:
        """Copy what the files hold by now, and end."""
        self._finished.set()
        for thread in self._threads:
            thread.join()
        self._stopped = True

    def stopped(self) -> bool:
        """Return whether it was stopped."""
        return self._stopped
