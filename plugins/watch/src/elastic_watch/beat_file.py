"""The agent's end of the memory that it shares with its workers: heartbeats, open sections, and stacks on request."""

import fcntl
import mmap
import os
import signal
import threading
from contextlib import suppress

from elastic_core.api import Record
from elastic_watch import beat_layout as layout
from elastic_watch import vitals

_LOW_WORD = (1 << 32) - 1
_TRIES = 3


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


class WorkerProgress(Record, frozen=True, kw_only=True):
    """The progress of one worker. Times are seconds of the monotonic clock; `None` means not yet."""

    alive_s: float | None = None
    """Its first heartbeat."""
    first_step: int | None = None
    first_step_s: float | None = None
    step: int | None = None
    """Its last step."""
    step_s: float | None = None
    above_s: float | None = None
    """Its first heartbeat with a step above the one that was requested (`above`)."""
    marks: tuple[tuple[str, float, float | None], ...] = ()
    """Saves and restores: none, as heartbeats have no marks. elastic-train's response has them, in the same form."""
    marks_dropped: int = 0


class BeatFile:
    """Memory with a path below /proc, which the worker opens: it uses no disk, and can't be truncated.

    It exists as long as a process has it open or mapped; this process until the object is deleted.

    Args:
        folder: The round's folder for the files that torch's flight recorder writes by itself. Empty means none.

    Raises:
        OSError: the system has no such memory, or not enough.
    """

    _close = staticmethod(os.close)  # there when modules are gone

    def __init__(self, folder: str = "") -> None:
        self.fd = os.memfd_create("elastic-beats", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.ftruncate(self.fd, layout.MEMORY_BYTES)
        fcntl.fcntl(self.fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK)
        self._map = mmap.mmap(self.fd, layout.PAGE_BYTES)
        self._page = memoryview(self._map)
        self._words = self._page.cast("q")
        for word in (layout.STEP, layout.HIGH, layout.FIRST, layout.ABOVE_OF):
            self._words[word] = layout.NONE
        self._set_folder(os.fsencode(folder))
        self._words[layout.RECORDER] = layout.RECORDER_VALUE
        self._words[layout.MAGIC] = layout.MAGIC_VALUE

    def __del__(self) -> None:  # `weakref`, which could do the same, takes 90 KiB of each agent
        if hasattr(self, "fd"):  # else the system had no such memory
            self._close(self.fd)

    def _set_folder(self, path: bytes) -> None:
        if len(path) <= layout.MAX_FOLDER_BYTES:  # a longer one is left out, and torch has its own default
            begin = layout.FOLDER_AT * layout.WORD_BYTES
            os.pwrite(self.fd, path, begin)
            self._words[layout.FOLDER_SIZE] = len(path)

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

    # --- progress

    def note_above(self, step: int) -> None:
        """Make the worker note the time of its first step above this one."""
        self._words[layout.HIGH] = step

    def progress(self) -> WorkerProgress | None:
        """Return the worker's progress, also if it has ended. `None` if it has sent no heartbeat."""
        words = self._words
        step, step_ns = self._last_step()
        if not words[layout.ALIVE_NS] and step < 0:
            return None
        first = words[layout.FIRST]
        above = words[layout.HIGH] >= 0 and words[layout.ABOVE_OF] == words[layout.HIGH]
        return WorkerProgress(
            alive_s=_seconds(words[layout.ALIVE_NS]),
            first_step=first if first >= 0 else None,
            first_step_s=_seconds(words[layout.FIRST_NS]),
            step=step if step >= 0 else None,
            step_s=_seconds(step_ns) if step >= 0 else None,
            above_s=_seconds(words[layout.ABOVE_NS]) if above else None,
        )

    def _last_step(self) -> tuple[int, int]:
        """Return the last step and its time. If the worker makes steps meanwhile, they may be one step apart."""
        for _ in range(_TRIES):
            step = self._words[layout.STEP]
            step_ns = self._words[layout.TIMES_AT + (step & layout.TIMES_MASK)]
            if self._words[layout.STEP] == step:
                break
        return step, step_ns

    def step_times(self) -> tuple[tuple[int, int], ...]:
        """Return the last steps with their times in nanoseconds of the monotonic clock, oldest first, at most 128."""
        return step_times(self._words)

    # --- stacks

    @property
    def stacks_end(self) -> int:
        """The position at which the next stack will begin."""
        return os.fstat(self.fd).st_size

    @property
    def _stack_bytes(self) -> int:
        return self.stacks_end - layout.MEMORY_BYTES + (layout.WORD_BYTES if self._words[layout.HOOK] else 0)

    def stacks(self, begin: int) -> str:
        """Return the text from `begin` on, up to a limit."""
        return os.pread(self.fd, layout.MAX_STACKS_BYTES, begin).decode("utf-8", "replace")

    def ask_for_stacks(self, worker_pid: int) -> bool:
        """Request the main thread's stack. Return false if the interpreter does not or can't write it.

        Only for an interpreter that runs no Python code: otherwise it may read a frame that changes, and end by
        SIGSEGV.

        The signal ends a process that does not catch it. It is therefore sent only to the process that announced a
        handler, if that is still the worker or in its session, catches the signal now in its main thread, and is not
        stopped.
        """
        return self._send(worker_pid, 0)

    def ask_handler_for_stacks(self, worker_pid: int) -> bool:
        """Request the stacks of all threads from the handler in Python, as `ask_for_stacks` does."""
        return self._send(worker_pid, 1)

    def _send(self, worker_pid: int, below: int) -> bool:
        hook = self._words[layout.HOOK]
        pid, signum = hook & _LOW_WORD, (hook >> 32) - below
        if pid <= 1 or not 0 < signum <= signal.SIGRTMAX:
            return False
        # Until the main thread has taken the lower signal, it may still be about to run Python code.
        if not vitals.answers(pid, signum, worker_pid) or vitals.pending(pid, (hook >> 32) - 1):
            return False
        with suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signum)
            return True
        return False

    # --- torch's flight recorder

    @property
    def server(self) -> int:
        """The pid of the process that responds with snapshots. 0 if none has announced that."""
        return self._words[layout.SERVER]

    def ask_for_snapshot(self, *, arrivals: bool, file: bool) -> int:
        """Request a snapshot from the worker. Return the number of the request.

        Args:
            arrivals: Whether the snapshot has the times at which the worker entered its last operations.
            file: Whether to request the content of the recorder's file, too.
        """
        return self._ask_recorder(arrivals * layout.WANTS_ARRIVALS | file * layout.WANTS_FILE)

    def ask_recorder_for_stacks(self) -> int:
        """Request stacks from the thread that also responds with snapshots. Return the number of the request."""
        return self._ask_recorder(layout.WANTS_STACKS)

    def _ask_recorder(self, wants: int) -> int:
        from elastic_watch.recorder.futex import Futex  # a library that a healthy run does not load

        self._words[layout.WANTS] = wants
        asked = Futex(self._map, layout.ASKED * layout.WORD_BYTES)
        return asked.count_up()

    def snapshot(self, number: int) -> bytes | None:
        """Return the worker's response to this request. `None` if there is none yet."""
        return self._content(number, layout.SNAPSHOT_OF, layout.SNAPSHOT_AT, layout.MAX_SNAPSHOT_BYTES)

    def recorder_file(self, number: int) -> bytes | None:
        """Return the recorder's file for this request. `None` if there is none yet; empty if there can't be one."""
        return self._content(number, layout.FILE_OF, layout.RECORDER_FILE_AT, layout.MAX_RECORDER_FILE_BYTES)

    def recorder_stacks(self, number: int) -> str | None:
        """Return the stacks of all threads for this request. `None` if there are none yet."""
        content = self._content(number, layout.STACKS_OF, layout.STACKS_AT, layout.MAX_STACKS_BYTES)
        return None if content is None else content.decode("utf-8", "replace")

    def _content(self, number: int, serial: int, begin: int, limit: int) -> bytes | None:
        if self._words[serial] != number:
            return None
        size = self._words[serial + 1]
        return os.pread(self.fd, min(max(size, 0), limit), begin)


def _seconds(ns: int) -> float | None:
    return ns / 1e9 if ns > 0 else None


def step_times(words: memoryview) -> tuple[tuple[int, int], ...]:
    """Return the last steps with their times in nanoseconds of the monotonic clock, oldest first, at most 128.

    They are the last calls with a rising step. If a script counts in strides of more than 128 steps, the numbers of all
    but the last one are only known modulo 128.
    """
    for _ in range(_TRIES):
        last = words[layout.STEP]
        times = words[layout.TIMES_AT : layout.TIMES_AT + layout.TIMES_MASK + 1].tolist()
        if words[layout.STEP] == last:
            break
    if last < 0:
        return ()
    # Older times, of steps that others have replaced in between, break the order.
    newest_first = sorted(((ns, slot) for slot, ns in enumerate(times) if ns > 0), reverse=True)
    found: list[tuple[int, int]] = []
    for ns, slot in newest_first:
        step = last - ((last - slot) & layout.TIMES_MASK)
        if step < 0 or (found and step >= found[-1][0]):
            break
        found.append((step, ns))
    return tuple(reversed(found))


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
        self.snapshots = threading.Lock()
        """Held by the only thread that requests snapshots or stacks.

        A worker has room for one request and for one response of each kind.
        """

    def renew(self, count: int, folder: str = "") -> dict[int, str]:
        """Make a file for each of `count` workers in place of the last round's. Return the paths by local rank.

        Args:
            count: How many workers the node has.
            folder: The round's folder for the files that torch's flight recorder writes by itself. Empty means none.

        Raises:
            OSError: the system has no such memory, or not enough.
        """
        files: dict[int, BeatFile] = {}
        try:
            made = {rank: BeatFile(folder) for rank in range(count)}
            for rank, file in made.items():
                if rank in self._fds:
                    os.dup2(file.fd, self._fds[rank], inheritable=False)
                else:
                    self._fds[rank] = os.dup(file.fd)
            files = made
        except AttributeError as err:
            raise OSError(f"no shared memory without a name in this system: {err}") from None
        finally:
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

    def note_above(self, step: int) -> None:
        """Make the workers of this round note the time of their first step above this one."""
        with self._lock:
            for file in self._files.values():
                file.note_above(step)

    def progress(self) -> dict[int, WorkerProgress]:
        """Return the progress of the workers that have sent heartbeats, also of those that have ended."""
        with self._lock:
            found = {rank: file.progress() for rank, file in self._files.items()}
        return {rank: own for rank, own in found.items() if own is not None}

    def step_times(self) -> dict[int, tuple[tuple[int, int], ...]]:
        """Return the last steps of each worker with their times, also of one that has ended."""
        with self._lock:
            return {rank: file.step_times() for rank, file in self._files.items()}

    def close(self) -> None:
        """Release the files; workers keep those that they have mapped. Idempotent."""
        with self._lock:
            self._files = {}
        fds, self._fds = self._fds, {}
        for fd in fds.values():
            os.close(fd)
