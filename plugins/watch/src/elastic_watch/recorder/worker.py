"""The thread in a worker that responds to the agent's requests for stacks and for snapshots of torch's flight recorder.

The thread waits for a number in shared memory, so it needs no descriptor, which the script could close, and no signal,
which a blocked main thread would not handle. It handles no signals, is no object of `threading`, and ends while the
process forks. A child of the worker, forked or started, has no such thread.
"""

import _signal  # type: ignore[import-not-found]  # `signal` around it is the script's to pay for
import _thread
import atexit
import json
import mmap
import os
import pickle
import sys
import time

from elastic_watch import beat_layout as layout
from elastic_watch.recorder import group_states, thread_stacks
from elastic_watch.recorder.futex import Futex
from elastic_watch.recorder.torch_tables import NotReadyError, Torch
from elastic_watch.recorder.variables import NAMES, recorder_variables

# Not from typing: training scripts import this module.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_END_S = 1.0
"""How long a fork or the end of the process waits for a response that is being written."""
_WAKE_S = 0.002
_MAX_ERROR = 200
_OWN_SIGNALS = ("SIGSEGV", "SIGBUS", "SIGFPE", "SIGILL", "SIGABRT")
"""Signals that a thread causes itself."""

_server: "Server | None" = None
_set: "dict[str, str]" = {}
"""The variables that this module has set."""


def start() -> None:
    """Set the recorder's variables and start the thread, if this process is a worker. Idempotent.

    Called: when the script imports `torch.distributed`; again in a kept process, for each further round, whose memory
    is another one.
    """
    global _server
    path = os.environ.get(layout.FILE_VARIABLE)
    if not path or layout.ROUND_VARIABLE not in os.environ:
        return
    memory = _map(path)
    words = memoryview(memory).cast("q")
    runs = _server is not None and _server.pid == os.getpid()
    if words[layout.RECORDER] != layout.RECORDER_VALUE or (runs and words[layout.SERVER] == os.getpid()):
        return
    handled = _asked(memory)  # once it has claimed them, it responds to all further requests
    if not _claim(words):
        return
    _set_variables(memory, words)
    if runs and _server is not None:
        _server.move(memory, words, handled)
        return
    _server = Server(memory, words, handled)
    os.register_at_fork(before=_server.pause, after_in_parent=_server.resume, after_in_child=_server.forget)
    atexit.register(_server.close)
    _server.resume()


def _map(path: str) -> mmap.mmap:
    fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    try:
        if os.fstat(fd).st_size < layout.MEMORY_BYTES:
            raise OSError("an agent of another version")
        return mmap.mmap(fd, layout.MEMORY_BYTES)
    finally:
        os.close(fd)


def _asked(memory: mmap.mmap) -> int:
    """Return the number of the last request."""
    begin = layout.ASKED * layout.WORD_BYTES
    return int.from_bytes(memory[begin : begin + 4], sys.byteorder)


def _claim(words: memoryview) -> bool:
    """Respond for this worker, unless another live process does: an interpreter that the worker's program started."""
    own, other = os.getpid(), words[layout.SERVER]
    if other > 0 and other != own:
        try:
            os.kill(other, 0)
        except ProcessLookupError:
            pass
        except OSError:
            return False
        else:
            return False
    words[layout.SERVER] = own
    return True


def _set_variables(memory: mmap.mmap, words: memoryview) -> None:
    version: Any = sys.modules.get("torch.version")
    size, begin = words[layout.FOLDER_SIZE], layout.FOLDER_AT * layout.WORD_BYTES
    folder = os.fsdecode(memory[begin : begin + size]) if 0 < size <= layout.MAX_FOLDER_BYTES else ""
    if not any(getattr(version, device, None) for device in ("cuda", "hip", "xpu")):
        folder = ""  # only the backends of devices write such files
    if folder:
        try:
            os.makedirs(folder, mode=0o700, exist_ok=True)  # noqa: PTH103  # pathlib is not ours to load
        except OSError:
            folder = ""
    # Not all variables: each is decoded, and all ranks wait for this process if it has been kept.
    given = {name: value for name in NAMES if (value := os.environ.get(name)) is not None}
    of_others = {name: value for name, value in given.items() if _set.get(name) != value}
    _set.update(recorder_variables(str(getattr(version, "__version__", "")), of_others, folder=folder))
    os.environ.update(_set.items() - of_others.items())


class Server:
    """Responds to requests, one after the other.

    Args:
        memory: What the worker shares with its agent.
        words: Its words.
        handled: The number of the last request that needs no response.
    """

    def __init__(self, memory: mmap.mmap, words: memoryview, handled: int) -> None:
        self.pid = os.getpid()
        self._memory = memory
        self._words = words
        self._asked = Futex(memory, layout.ASKED * layout.WORD_BYTES)
        self._handled = handled
        self._pauses = 0
        """The number of forks in progress, and 1 more at the end of the process."""
        self._alive = _thread.allocate_lock()
        """Held by the thread."""
        self._counting = _thread.RLock()
        """Guards `_pauses`: several threads may fork. A child never acquires it."""

    def move(self, memory: mmap.mmap, words: memoryview, handled: int) -> None:
        """Respond through other memory from now on: that of the next round."""
        self.pause()
        self._memory, self._words = memory, words
        self._asked = Futex(memory, layout.ASKED * layout.WORD_BYTES)
        self._handled = handled
        self.resume()

    # --- the thread's life

    def resume(self) -> None:
        """Start the thread, or start it again after a fork."""
        if self.pid != os.getpid():
            return
        with self._counting:
            self._pauses = max(0, self._pauses - 1)
            if self._pauses or not self._alive.acquire(False):
                return
        blocked = _signal.valid_signals() - {getattr(_signal, name) for name in _OWN_SIGNALS}
        started = False
        before = _signal.pthread_sigmask(_signal.SIG_BLOCK, ())
        try:
            _signal.pthread_sigmask(_signal.SIG_BLOCK, blocked)
            _thread.start_new_thread(self._run, ())
            started = True
        except RuntimeError:  # the system has no thread left, or the interpreter ends
            pass
        finally:
            if not started:
                self._alive.release()
            _signal.pthread_sigmask(_signal.SIG_SETMASK, before)

    def pause(self) -> None:
        """End the thread: a fork copies only the thread that forks."""
        if self.pid != os.getpid():
            return
        with self._counting:
            self._pauses += 1
        until_s = time.monotonic() + _END_S
        while time.monotonic() < until_s:
            self._asked.wake()  # again, since the thread may just be on its way to wait
            if self._alive.acquire(timeout=_WAKE_S):
                self._alive.release()
                return

    def forget(self) -> None:
        """Start no thread in a forked child."""
        self.pid = 0

    def close(self) -> None:
        """Begin no response any more: torch's own threads and tables are about to end."""
        self.pause()

    def _run(self) -> None:
        try:
            while not self._pauses:
                asked = self._asked.value
                if asked == self._handled:
                    self._asked.wait(asked)
                else:
                    self._handled = asked
                    self._respond(asked, self._words[layout.WANTS])
        except BaseException:  # noqa: BLE001  # whatever it is, the script must not see it
            self._words[layout.SERVER] = 0
        finally:
            self._alive.release()

    # --- responses

    def _respond(self, number: int, wants: int) -> None:
        if wants & layout.WANTS_STACKS:
            self._write(thread_stacks.taken(), number, layout.STACKS_OF, layout.STACKS_AT)
            return
        taken = _Taken(arrivals=bool(wants & layout.WANTS_ARRIVALS))
        self._write(taken.snapshot, number, layout.SNAPSHOT_OF, layout.SNAPSHOT_AT)
        if wants & layout.WANTS_FILE:
            self._write(taken.file(), number, layout.FILE_OF, layout.RECORDER_FILE_AT)

    def _write(self, content: bytes, number: int, serial: int, begin: int) -> None:
        self._memory[begin : begin + len(content)] = content
        self._words[serial + 1] = len(content)
        self._words[serial] = number


class _Taken:
    """The state of the process's groups at one moment.

    Args:
        arrivals: Whether to list the times at which operations were entered.
    """

    def __init__(self, *, arrivals: bool) -> None:
        self._kept: list[group_states.Chosen] = []
        self._trace: dict[str, Any] | None = None
        taken_ns = time.monotonic_ns()
        snapshot: dict[str, Any] = {"taken_ns": taken_ns}
        try:
            torch = Torch()
            snapshot["torch"], snapshot["recorder"] = torch.version[:_MAX_ERROR], torch.records
            traces = torch.traces() if torch.records else []
            self._kept, unknown = group_states.chosen(torch.groups(), [trace.get("entries", []) for trace in traces])
            self._trace = max(traces, key=lambda trace: len(trace.get("entries", ())), default=None)
            snapshot["groups"], dropped = group_states.as_states(self._kept)
            snapshot["groups_dropped"] = unknown + dropped
            if arrivals:
                # Torch records times of the wall clock.
                offset_ns = time.monotonic_ns() - time.time_ns()
                snapshot["arrivals"] = group_states.as_arrivals(self._kept, offset_ns=offset_ns)
        except NotReadyError as error:
            snapshot["error"] = str(error)
        except BaseException as error:  # noqa: BLE001  # the agent reports it
            snapshot["error"] = f"{type(error).__name__}: {error}"[:_MAX_ERROR]
        self.snapshot = _encoded(snapshot)

    def file(self) -> bytes:
        """Return the recorder's content for `torchfrtrace`; without the oldest entries if it is too long."""
        if self._trace is None:
            return b""
        try:
            trace = group_states.as_file(self._kept, self._trace)
            while len(content := pickle.dumps(trace, protocol=4)) > layout.MAX_RECORDER_FILE_BYTES:
                trace["entries"] = trace["entries"][len(trace["entries"]) // 2 + 1 :]
        except Exception:  # noqa: BLE001  # there is no file then
            return b""
        return content


def _encoded(snapshot: "dict[str, Any]") -> bytes:
    """Return a snapshot as JSON; with fewer groups if it is too long."""
    while len(content := json.dumps(snapshot).encode()) > layout.MAX_SNAPSHOT_BYTES:
        groups = snapshot["groups"]
        kept = groups[: len(groups) // 2]
        snapshot |= {"groups": kept, "groups_dropped": snapshot["groups_dropped"] + len(groups) - len(kept)}
        snapshot["arrivals"] = []
    return content
