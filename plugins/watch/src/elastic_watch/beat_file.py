"""The agent's end of the memory that it shares with its workers: heartbeats, open sections, and stacks on request."""

import fcntl
import mmap
import os
import signal
import threading
import weakref
from contextlib import suppress

from elastic_core.api import Record
from elastic_watch import beat_layout as layout
from elastic_watch import vitals

MAX_STACKS_BYTES = 1 << 20
_LOW_WORD = (1 << 32) - 1


class OpenSection(Record, frozen=True, kw_only=True):
    """An open section of a worker. `serial` is unique among all sections of that process."""

    serial: int
    """Its number among all sections of that process."""
    name: str
    """Its name in the worker."""
    since_s: float
    """When it was entered, in seconds of the monotonic clock."""
    limit_s: float
    """Its time limit in seconds."""


class WorkerBeats(Record, frozen=True, kw_only=True):
    """The heartbeats and sections of a worker; times on its monotonic clock."""

    owner: int = 0
    """The pid of the process with the heartbeats, the worker or its child. 0 if no process has announced heartbeats."""
    beat_s: float | None = None
    """Time of its last heartbeat, in seconds of the monotonic clock. `None` before the first."""
    step: int | None = None
    """Its last step. `None` if it has named none."""
    sections: tuple[OpenSection, ...] = ()
    """Its open sections, outermost first."""
    stack_bytes: int = 0
    """The number of bytes that it has written as stacks on request, which are no sign of life."""


class BeatFile:
    """Memory with a path below /proc, which the worker opens: it uses no disk, and can't be truncated.

    It exists as long as a process has it open or mapped; this process until the object is deleted.

    Raises:
        OSError: the system has no such memory, or not enough.
    """

    def __init__(self) -> None:
        self.fd = os.memfd_create("elastic-beats", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        weakref.finalize(self, os.close, self.fd)
        os.ftruncate(self.fd, layout.PAGE_BYTES)
        fcntl.fcntl(self.fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK)
        self._page = memoryview(mmap.mmap(self.fd, layout.PAGE_BYTES))
        self._words = self._page.cast("q")
        self._words[layout.STEP] = -1
        self._words[layout.MAGIC] = layout.MAGIC_VALUE

    # --- heartbeats

    def read(self) -> WorkerBeats:
        """Return its current content."""
        beat_ns, step = self._words[layout.BEAT_NS], self._words[layout.STEP]
        return WorkerBeats(
            owner=self._words[layout.OWNER],
            beat_s=beat_ns / 1e9 if beat_ns > 0 else None,
            step=step if step >= 0 else None,
            sections=tuple(found for index in range(layout.SECTION_COUNT) if (found := self._section(index))),
            stack_bytes=self._stack_bytes,
        )

    def _section(self, index: int) -> OpenSection | None:
        at = layout.SECTIONS_AT + index * layout.SECTION_WORDS
        words = self._words
        serial = words[at + layout.SERIAL]
        if serial <= 0:
            return None
        begin = (at + layout.NAME_AT) * layout.WORD_BYTES
        length = min(max(words[at + layout.NAME_BYTES], 0), layout.MAX_NAME_BYTES)
        found = OpenSection(
            serial=serial,
            name=bytes(self._page[begin : begin + length]).decode("utf-8", "replace"),
            since_s=words[at + layout.SINCE_NS] / 1e9,
            limit_s=max(0, words[at + layout.LIMIT_NS]) / 1e9,
        )
        # Else it was left, and its place taken by another, meanwhile.
        return found if words[at + layout.SERIAL] == serial else None

    # --- stacks

    @property
    def stacks_end(self) -> int:
        """The position at which the next stack will begin."""
        return os.fstat(self.fd).st_size

    @property
    def _stack_bytes(self) -> int:
        return self.stacks_end - layout.PAGE_BYTES + (layout.WORD_BYTES if self._words[layout.HOOK] else 0)

    def stacks(self, begin: int) -> str:
        """Return the text from `begin` on, up to a limit."""
        return os.pread(self.fd, MAX_STACKS_BYTES, begin).decode("utf-8", "replace")

    def ask_for_stacks(self, worker_pid: int) -> bool:
        """Request stacks from the worker's interpreter. Return false if it does not or can't write them.

        The signal ends a process that does not catch it. It is therefore sent only to the process that announced a
        handler, if that is still the worker or in its session, catches the signal now, and is not stopped.
        """
        hook = self._words[layout.HOOK]
        pid, signum = hook & _LOW_WORD, hook >> 32
        if pid <= 1 or not 0 < signum <= signal.SIGRTMAX:
            return False
        if not vitals.answers(pid, signum, worker_pid):
            return False
        with suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signum)
            return True
        return False


class BeatFiles:
    """The files of this node's workers, by local rank. Those of a round stay readable until the next round's are made.

    A worker's file has the same path in each round, since a spare interpreter knows the path in advance.

    Threading: `renew` and `close` on one thread, all others on any.
    """

    def __init__(self) -> None:
        self._files: dict[int, BeatFile] = {}
        self._fds: dict[int, int] = {}
        """What the paths name: a second descriptor of each file."""
        self._lock = threading.Lock()

    def renew(self, count: int) -> dict[int, str]:
        """Make a file for each of `count` workers in place of the last round's. Return the paths by local rank.

        Raises:
            OSError: the system has no such memory, or not enough.
        """
        with self._lock:
            self._files = {}
        try:
            files = {rank: BeatFile() for rank in range(count)}
            for rank, file in files.items():
                if rank in self._fds:
                    os.dup2(file.fd, self._fds[rank], inheritable=False)
                else:
                    self._fds[rank] = os.dup(file.fd)
        except AttributeError as err:
            raise OSError(f"no shared memory without a name in this system: {err}") from None
        with self._lock:
            self._files = files
        return {rank: f"/proc/{os.getpid()}/fd/{self._fds[rank]}" for rank in files}

    def get(self, rank: int) -> BeatFile | None:
        """Return one worker's file, or `None`."""
        with self._lock:
            return self._files.get(rank)

    def read(self) -> dict[int, WorkerBeats]:
        """Return the heartbeats of each worker, except those of a process that has ended."""
        with self._lock:
            found = {rank: file.read() for rank, file in self._files.items()}
        return {rank: own if not own.owner or vitals.lives(own.owner) else WorkerBeats() for rank, own in found.items()}

    def furthest_step(self) -> int | None:
        """Return the furthest step of any worker, also of one that has ended, or `None`."""
        with self._lock:
            steps = [file.read().step for file in self._files.values()]
        return max((step for step in steps if step is not None), default=None)

    def close(self) -> None:
        """Release the files; workers keep those that they have mapped. Idempotent."""
        with self._lock:
            self._files = {}
        fds, self._fds = self._fds, {}
        for fd in fds.values():
            os.close(fd)
