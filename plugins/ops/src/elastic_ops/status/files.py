"""Writes `status.json`, `journal.jsonl` and incidents of lost nodes, on a thread that lives only as long as it writes.

A disk that hangs blocks only that thread.
"""

import _thread
import os
import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

from msgspec.structs import replace

from elastic_core.api import SYSTEM_CLOCK, Clock, Round, encode_json
from elastic_core.api.feed import RunEvent
from elastic_core.api.tools import replace_file
from elastic_ops.status.document import STATUS_FILE, AgentStatus
from elastic_ops.status.keeper import StatusKeeper
from elastic_ops.status.lost_nodes import LostNodeFiles, LostNodes

JOURNAL_FILE: Final = "journal.jsonl"
OLDER_FILE: Final = "journal.1.jsonl"
MOST_BYTES: Final = 2 << 20
"""The size at which a journal replaces the older one."""
GATHER_S: Final = 0.05
"""The delay before a write: changes come in bursts (a round forms, workers start), and one file has all of them."""
MOST_WAITING: Final = 10_000
"""The limit of pending events of the journal; if there are more, the oldest are dropped."""
MOST_MEMBERS: Final = 16
"""A round with more nodes is in the journal without their names: a thousand nodes would fill it within 50 rounds."""
_NOT_IN_JOURNAL: Final = frozenset({"fields_published"})
"""Events that are not in the journal: hooks publish their fields often, and the status has them."""
_FLAGS: Final = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC


class StatusFiles:
    """The files of one run. Threading: any; only `close` waits.

    Args:
        keeper: Makes the status.
        lost_nodes: Makes the incidents of lost nodes.
        run_dir: Returns the run directory.
        where: Returns the rendezvous store, as text for people.
        notice: Shows a line to people, once, about a file that can't be written. Threading: any.
        clock: This node's.
    """

    def __init__(
        self,
        keeper: StatusKeeper,
        lost_nodes: LostNodes,
        *,
        run_dir: Callable[[], str],
        where: Callable[[], str],
        notice: Callable[[str], None],
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._keeper = keeper
        self._lost_nodes = lost_nodes
        self._run_dir = run_dir
        self._where = where
        self._notice: Callable[[str], None] | None = notice
        self._clock = clock
        self._changed = threading.Condition()
        # The rest is guarded by the condition's lock.
        self._events: deque[RunEvent] = deque(maxlen=MOST_WAITING)
        self._dirty = self._writing = self._closing = False
        # The writing thread's alone.
        self._journal_bytes: int | None = None
        self._lost_node_files = LostNodeFiles()

    def take(self, events: Iterable[RunEvent]) -> None:
        """Add the next events, and have the files written soon."""
        with self._changed:
            for event in events:
                self._keeper.observe(event)
                self._lost_nodes.observe(event)
                if event.name not in _NOT_IN_JOURNAL:
                    self._events.append(event)
            self._dirty = True
            self._begin()

    def status(self) -> AgentStatus:
        """Return the current status."""
        where = self._where()
        with self._changed:
            return self._keeper.status(where=where, written_ns=self._clock.wall_ns())

    def close(self, *, kept: bool, within_s: float) -> None:
        """Write pending data if the directory is `kept`, and wait for the writing, with a time limit."""
        with self._changed:
            self._closing = True
            self._dirty = self._dirty and kept
            if not kept:
                self._notice = None  # it may be removed at any time now
            self._changed.notify_all()
            self._changed.wait_for(lambda: not self._writing, timeout=within_s)

    def _begin(self) -> None:
        if self._writing:
            return
        try:
            # Not `threading.Thread`, whose `start` waits until the thread runs: milliseconds on a busy node.
            _thread.start_new_thread(self._work, ())
        except RuntimeError:  # no thread to be had: the files stay as they are until the next change
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
                events = list(self._events)
                self._events.clear()
            self._write(events)

    def _write(self, events: list[RunEvent]) -> None:
        folder = Path(self._run_dir())
        with self._changed:
            incidents = self._lost_nodes.take()
        try:
            self._append(folder, events)
            events = []
            for number in sorted(incidents):
                self._lost_node_files.write(folder, number, incidents[number])
                del incidents[number]
            replace_file(folder / STATUS_FILE, encode_json(self.status()) + b"\n")
        except OSError as err:
            with self._changed:
                self._events.extendleft(reversed(events))
                self._lost_nodes.return_unwritten(incidents)
                notice, self._notice = self._notice, None
            if notice is not None:
                notice(f"the agent's status and journal could not be written to {str(folder)!r}: {err.strerror}")

    def _append(self, folder: Path, events: list[RunEvent]) -> None:
        path = folder / JOURNAL_FILE
        if self._journal_bytes is None:  # what an earlier run has left in a directory that the user chose
            for earlier in (path, folder / OLDER_FILE):
                with suppress(FileNotFoundError):
                    earlier.unlink()
            self._journal_bytes = 0
        elif self._journal_bytes > MOST_BYTES:
            with suppress(FileNotFoundError):
                path.replace(folder / OLDER_FILE)
            self._journal_bytes = 0
        lines = b"".join(map(journal_line, events))
        fd = os.open(path, _FLAGS, 0o600)  # by its name each time: the directory may have been made anew
        try:
            os.fchmod(fd, 0o600)  # whatever the umask
            os.write(fd, lines)
        finally:
            os.close(fd)
        self._journal_bytes += len(lines)


def journal_line(event: RunEvent) -> bytes:
    """Return an event as a line of the journal. Values that JSON can't hold are written as Python's `repr`."""
    values = {name: _shortened(value) for name, value in event.values.items() if _belongs(name, event.values)}
    if event.name == "round_joined" and len(event.values.get("members", ())) > MOST_MEMBERS:  # type: ignore[arg-type]
        del values["members"]
    if event.name == "answers_gathered":
        values.pop("answers", None)  # up to 16 KiB of each node of the run
    try:
        return encode_json(replace(event, values=values)) + b"\n"
    except (TypeError, ValueError, RecursionError):
        return encode_json(replace(event, values={name: repr(value) for name, value in values.items()})) + b"\n"


def _belongs(name: str, values: Mapping[str, object]) -> bool:
    """Return whether a value is new: a step has its round each time."""
    return name != "round" or values.get("event", "RoundFormed") == "RoundFormed"


def _shortened(value: object) -> object:
    """Return a round without the failures of earlier rounds, which have their own lines, and the length of bytes."""
    if isinstance(value, bytes):
        return f"{len(value)} bytes"
    return replace(value, history=()) if isinstance(value, Round) else value
