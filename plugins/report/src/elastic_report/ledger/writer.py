"""Writes `ledger.jsonl` on a thread that lives only as long as it writes, and blocks nothing if a disk stalls."""

import _thread
import os
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final

from elastic_core.api.tools import read_file, replace_file
from elastic_report.ledger.compacting import LedgerText
from elastic_report.ledger.document import LEDGER_FILE, Begin, Line

GATHER_S: Final = 0.05
"""The delay before a write: states change in bursts, and one write has all of them."""
MOST_INCIDENT_BYTES: Final = 8 << 20
MOST_INCIDENTS: Final = 200
_FLAGS: Final = os.O_WRONLY | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC


class LedgerFile:
    """The file of one agent's ledger. Threading: any; only `close` waits.

    Args:
        begin: The first line.
        run_dir: Returns the run directory.
        record_dir: Returns the folder that stays after it; empty if there is none. Called on the writing thread.
        notice: Shows a line to users, once, about a file that can't be written. Threading: any.
        changed: Called on the writing thread before each write.
    """

    def __init__(
        self,
        begin: Begin,
        *,
        run_dir: Callable[[], str],
        record_dir: Callable[[], str],
        notice: Callable[[str], None],
        changed: Callable[[], None] = lambda: None,
    ) -> None:
        self._run_dir = run_dir
        self._record_dir = record_dir
        self._notice: Callable[[str], None] | None = notice
        self._on_change = changed
        self._changed = threading.Condition()
        # The rest is guarded by the condition's lock.
        self._text = LedgerText(begin)
        self._dirty = self._writing = self._closing = False
        self._kept = True
        # The writing thread's alone.
        self._written = 0
        self._edition = -1

    def add(self, lines: Iterable[Line]) -> None:
        """Append lines, and have the file written soon."""
        with self._changed:
            self._text.add(lines)
            self._dirty = True
            self._start()

    def set_begin(self, begin: Begin) -> None:
        """Replace the first line."""
        with self._changed:
            self._text.set_begin(begin)
            self._dirty = True
            self._start()

    @property
    def begin(self) -> Begin:
        """The first line."""
        return self._text.begin

    def content(self) -> bytes:
        """Return the whole text so far."""
        with self._changed:
            return bytes(self._text.content)

    def close(self, *, kept: bool, within_s: float) -> None:
        """Write the rest, and the copy that stays; wait for it, with a time limit. `kept`: the run directory stays."""
        with self._changed:
            self._closing = self._dirty = True
            self._kept = kept
            self._start()
            self._changed.notify_all()
            self._changed.wait_for(lambda: not self._writing, timeout=within_s)

    def _start(self) -> None:
        if self._writing:
            return
        try:
            # Not `threading.Thread`, whose `start` waits until the thread runs: milliseconds on a busy node.
            _thread.start_new_thread(self._work, ())
        except RuntimeError:  # the system has no thread now: the file stays as it is until the next change
            return
        self._writing = True

    def _work(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._closing, timeout=GATHER_S)
                if not self._dirty:
                    self._writing = False
                    self._changed.notify_all()
                    return
                self._dirty = False
                closing, kept = self._closing, self._kept
            if not closing:
                self._on_change()
            try:
                if kept:
                    self._write(Path(self._run_dir()) / LEDGER_FILE)
                if closing:
                    self._leave_copy(kept=kept)
            except OSError as err:
                with self._changed:
                    notice, self._notice = self._notice, None
                if notice is not None:
                    notice(f"the time ledger could not be written ({err.strerror})")

    def _write(self, path: Path) -> None:
        """Append to the file. If it is not as this thread has left it, replace it."""
        with self._changed:
            # Only what is new: copies of the whole text would stay in the memory of each thread that has written.
            appends = self._text.edition == self._edition
            new, edition = bytes(self._text.content[self._written if appends else 0 :]), self._text.edition
        if appends:
            try:
                fd = os.open(path, _FLAGS)
            except FileNotFoundError:  # the directory may have been made anew
                fd = -1
            if fd >= 0:
                try:
                    if os.fstat(fd).st_size == self._written:
                        self._written += os.write(fd, new)
                        return
                finally:
                    os.close(fd)
            with self._changed:
                new, edition = bytes(self._text.content), self._text.edition
        self._edition = -1
        replace_file(path, new)
        self._written, self._edition = len(new), edition

    def _leave_copy(self, *, kept: bool) -> None:
        """Write the copy that stays after the run directory, with the incidents if that is removed."""
        folder = self._record_dir()
        if not folder:
            return
        replace_file(Path(folder) / LEDGER_FILE, self.content())
        if kept:
            return
        run_dir = Path(self._run_dir())
        # Not a glob, which compiles its pattern at the end of each run.
        names = [path.name for path in run_dir.iterdir()] if run_dir.is_dir() else []
        found = sorted(name for name in names if name.startswith("incident") and name.endswith(".json"))
        for name in found[:MOST_INCIDENTS]:
            replace_file(Path(folder) / name, read_file(run_dir / name, most_bytes=MOST_INCIDENT_BYTES))
