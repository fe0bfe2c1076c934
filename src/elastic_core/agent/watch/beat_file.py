"""The agent's end of the memory that it shares with its workers: heartbeats, open sections, and stacks on request."""

import fcntl
import mmap
import os
import signal
import threading
from collections.abc import Iterable
from contextlib import suppress

from elastic_core.processes import beat_layout as layout
from elastic_core.processes import signals
from elastic_core.processes.procfs import read_stat
from elastic_core.reports import OpenSection, WorkerBeats

MAX_STACKS_BYTES = 1 << 20
_LOW_WORD = (1 << 32) - 1


class BeatFile:
    """Memory with a name below /proc, which the worker opens: no disk is in it, and it can't be cut short.

    It is there for as long as somebody has it open or mapped.
    """

    def __init__(self) -> None:
        """Make it.

        Raises:
            OSError: there is none to be had.
        """
        flags = os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING
        self._fd = os.memfd_create("elastic-beats", flags)
        try:
            os.ftruncate(self._fd, layout.PAGE_BYTES)
            fcntl.fcntl(self._fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK)
            self._map = mmap.mmap(self._fd, layout.PAGE_BYTES)
        except OSError:
            os.close(self._fd)
            raise
        self._page = memoryview(self._map)
        self._words = self._page.cast("q")
        self._words[layout.STEP] = -1
        self._words[layout.MAGIC] = layout.MAGIC_VALUE

    @property
    def path(self) -> str:
        """What a worker opens; good while this process has the file."""
        return f"/proc/{os.getpid()}/fd/{self._fd}"

    def close(self) -> None:
        """Give it back; a worker that has it keeps it."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
            self._words.release()
            self._page.release()
            self._map.close()

    # --- heartbeats

    def read(self) -> WorkerBeats:
        """Return what stands there now."""
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
        """Where the next stack will begin."""
        return os.fstat(self._fd).st_size

    @property
    def _stack_bytes(self) -> int:
        return self.stacks_end - layout.PAGE_BYTES + (layout.WORD_BYTES if self._words[layout.HOOK] else 0)

    def stacks(self, begin: int) -> str:
        """Return what was written from `begin` on, a bounded part of it."""
        return os.pread(self._fd, MAX_STACKS_BYTES, begin).decode("utf-8", "replace")

    def ask_for_stacks(self, worker_pid: int) -> bool:
        """Have the worker's interpreter write its stacks; False: it would not, or can't.

        The signal ends a process that does not catch it. So it goes only to the one whose hook said that it does, if
        that is still the worker or in its session, catches it at this moment, and is not stopped.
        """
        hook = self._words[layout.HOOK]
        pid, signum = hook & _LOW_WORD, hook >> 32
        if pid <= 1 or not 0 < signum <= signal.SIGRTMAX:
            return False
        stat = read_stat(pid)
        if stat is None or (pid != worker_pid and stat.session != worker_pid) or stat.state in "TtZX":
            return False
        if not signals.catches(pid, signum):
            return False
        with suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signum)
            return True
        return False


class BeatFiles:
    """By local rank; those of a worker that has ended stay readable until the next round's are made.

    Threading: the supervisor's thread, but `read`.
    """

    def __init__(self) -> None:
        """Make none yet."""
        self._files: dict[int, BeatFile] = {}
        self._faults: dict[int, str] = {}
        self._lock = threading.Lock()

    def open(self, ranks: Iterable[int]) -> dict[int, str]:
        """Make one for each rank in place of the last round's, and return what the workers are to open.

        Raises:
            OSError: there is none to be had, in this system or for us.
        """
        self.close()
        wanted, files = tuple(ranks), dict[int, BeatFile]()
        try:
            for rank in wanted:
                files[rank] = BeatFile()
        except (AttributeError, OSError) as err:
            for file in files.values():
                file.close()
            if isinstance(err, AttributeError):
                err = OSError(f"no shared memory without a name in this system: {err}")
            self._faults = dict.fromkeys(wanted, str(err))
            raise err from None
        with self._lock:
            self._files = files
        return {rank: file.path for rank, file in files.items()}

    def get(self, rank: int) -> BeatFile | None:
        """Return one worker's; None: it has none."""
        return self._files.get(rank)

    def read(self) -> dict[int, WorkerBeats]:
        """Return what each has said, unless a process that has ended since has said it. Threading: any."""
        with self._lock:
            found = {rank: file.read() for rank, file in self._files.items()}
        said = {rank: own if not own.owner or _lives(own.owner) else WorkerBeats() for rank, own in found.items()}
        return said or {rank: WorkerBeats(fault=fault) for rank, fault in self._faults.items()}

    def progress(self) -> int | None:
        """Return the furthest step that any worker has said; None: none has."""
        steps = [file.read().step for file in self._files.values()]
        return max((step for step in steps if step is not None), default=None)

    def close(self) -> None:
        """Give them back; workers that have theirs keep it. Idempotent."""
        with self._lock:
            files, self._files, self._faults = self._files, {}, {}
        for file in files.values():
            file.close()


def _lives(pid: int) -> bool:
    stat = read_stat(pid)
    return stat is not None and stat.alive
