"""The stacks of workers, from their own interpreters, else from py-spy, with a time limit.

An interpreter writes all threads' stacks while it holds its lock: in the recorder's thread, else in a signal handler of
Python. If no Python code runs for some time, its main thread's stack does not change, and a handler in C writes it.
"""

import os
import re
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from pathlib import Path
from typing import IO, Final

from elastic_core.api import SYSTEM_CLOCK, Record, RunHandle
from elastic_core.api.workers import is_user_file, parse_fault_frames, without_launcher
from elastic_watch import vitals
from elastic_watch.beat_file import BeatFile, BeatFiles
from elastic_watch.beat_layout import MAX_STACKS_BYTES, STACKS_WHOLE

Frame = tuple[str, int, str, str]
"""File, line, function, and the source's line, which is empty here."""

_THREAD = re.compile(r"^(Thread|Current thread|Stack)(?: 0x[0-9a-f]+ .*)? ?\(most recent call first\):$")
_SPY_THREAD = re.compile(r"^Thread \S+ \(.*\)(?:: \"(?P<name>.*)\")?$")
_SPY_FRAME = re.compile(r"^ +(?P<function>.+) \((?P<file>.+):(?P<line>\d+)\)$")

_TORCH: Final = re.compile(r"^(.*/torch)/(?:(?:distributed|nn|autograd|utils|_dynamo|optim|cuda)/|_\w+\.py$)")
_TORCH_ONLY: Final = "_C"
"""A folder in each torch, installed or built."""
_FOLDER_S: Final = 0.5
"""The time for a look at a folder: its file system may hang as the worker does."""
_is_torch: Final[dict[str, bool]] = {}
"""Whether folders of the name `torch` are those of torch, as far as they were looked at."""


def is_own_code(file: str) -> bool:
    """Return whether a file is the user's own code.

    torch is not, wherever it is: built from source, or in another folder than that of installed packages. A script in a
    folder of the same name is, if the agent sees that folder.

    Threading: any; blocks for at most 0.5 s, and only for the first file of a folder named `torch`.
    """
    if not is_user_file(file):
        return False
    found = _TORCH.match(file)
    return found is None or not _is_torch_folder(found[1])


def _is_torch_folder(folder: str) -> bool:
    """Return whether a folder of the name `torch` is that of torch. It is if it can't be seen in time."""

    def look() -> None:
        with suppress(OSError):
            _is_torch[folder] = not Path(folder).is_dir() or Path(folder, _TORCH_ONLY).is_dir()

    if folder not in _is_torch:
        _is_torch[folder] = True
        with suppress(RuntimeError):  # the system has no thread left
            looker = threading.Thread(target=look, name="elastic-folder", daemon=True)
            looker.start()
            looker.join(_FOLDER_S)
    return _is_torch[folder]


def faulthandler_frames(text: str) -> tuple[Frame, ...]:
    """Return the main thread's frames in the last dump in `text`, outermost first; empty if there is none.

    An interpreter writes its threads from the youngest to the oldest, up to a hundred. With more threads, the main one
    is the thread that handled the signal. The recorder's thread always writes the main one, as the last one.
    """
    lines = text.splitlines()
    heads = [(index, match[1]) for index, line in enumerate(lines) if (match := _THREAD.match(line))]
    current = [index for index, kind in heads if kind == "Current thread"]
    if not heads:
        return ()
    cut = "..." in lines[heads[-1][0] :]
    begin = current[-1] if current and cut else heads[-1][0]
    return without_launcher(parse_fault_frames(lines[begin + 1 :]))


def py_spy_frames(text: str) -> tuple[Frame, ...]:
    """Return the main thread's frames in the output of `py-spy dump`, outermost first; empty if there are none."""
    threads: list[tuple[str, list[Frame]]] = []
    for line in text.splitlines():
        thread = _SPY_THREAD.match(line)
        frame = _SPY_FRAME.match(line)
        if thread:
            threads.append((thread["name"] or "", []))
        elif frame and threads:
            threads[-1][1].append((frame["file"], int(frame["line"]), frame["function"], ""))
    if not threads:
        return ()
    frames = next((frames for name, frames in threads if name == "MainThread"), threads[0][1])
    return without_launcher(reversed(frames))


def innermost_user(frames: tuple[Frame, ...]) -> int:
    """Return the index of the innermost frame in the user's own code; -1 if there is none."""
    found = (index for index in range(len(frames) - 1, -1, -1) if is_own_code(frames[index][0]))
    return next(found, -1)


class WorkerStack(Record, frozen=True, kw_only=True):
    """The Python stacks of one worker."""

    text: str = ""
    """The stacks of all its threads, or of the main thread if no Python code runs; empty if it did not respond."""
    source: str = ""
    """Their format: `faulthandler`, from its own interpreter, or `py-spy`."""
    frames: tuple[Frame, ...] = ()
    """The main thread's frames, outermost first."""
    user_frame: int = -1
    """The index of the innermost frame in the user's own code; -1 if all are of libraries."""

    @property
    def place(self) -> str:
        """Return the worker's place in the user's own code, file and line; empty without frames."""
        if not self.frames:
            return ""
        file, line, *_ = self.frames[self.user_frame]
        return f"{file.rpartition('/')[2]}:{line}"


StacksTaken = Callable[[Mapping[int, WorkerStack]], None]
"""A function that takes stacks, by local rank."""


class StackCollector:
    """Takes the stacks of this node's workers.

    Args:
        run: The run's handle.
        files: The memory with the workers' heartbeats and stacks.
        closed: Set when the run is over: a request in progress ends with the stacks so far.

    Threading: any.
    """

    def __init__(self, run: RunHandle, files: BeatFiles, *, closed: threading.Event) -> None:
        self._run = run
        self._files = files
        self._closed = closed

    def take(self, ranks: Collection[int] | None = None) -> dict[int, WorkerStack]:
        """Return the stacks of running workers, of all or of those local ranks. Workers without a response are missing.

        Takes two seconds if an interpreter does not respond, and up to ten more if py-spy is installed.
        """
        pids = {each.local_rank: each.pid for each in self._run.workers() if ranks is None or each.local_rank in ranks}
        files = {rank: file for rank in pids if (file := self._files.get(rank)) is not None}
        with self._files.snapshots:
            found = _from_recorders(files, self._closed)
            for take in (_from_handlers, _from_signals):
                found |= take(pids, {rank: file for rank, file in files.items() if rank not in found}, self._closed)
        missing = {rank: pid for rank, pid in pids.items() if rank not in found}
        # The worker may be a shell around the process that beats.
        owners = {rank: files[rank].read().owner or pid if rank in files else pid for rank, pid in missing.items()}
        return found | _from_py_spy(owners, self._closed)

    def take_later(self, on_taken: StacksTaken, *, ranks: Collection[int] | None = None) -> None:
        """Have a thread take stacks. `on_taken` receives them on the thread of the hooks, while the run lasts."""

        def take() -> None:
            found = self.take(ranks)
            self._run.call_later(0.0, lambda: on_taken(found))

        try:
            threading.Thread(target=take, name="elastic-stacks", daemon=True).start()
        except RuntimeError:  # the system has no thread left
            self._run.call_later(0.0, lambda: on_taken({}))


# --- the interpreters' own

_LOOK_S: Final = 0.05
_ANSWER_S: Final = 1.0
"""How long an interpreter may take; one with a main thread blocked in the kernel never responds."""
_RECORDER_S: Final = 0.5
"""How long the recorder's thread may take; it never responds while another thread holds the interpreter's lock."""
_RECORDER_LOOK_S: Final = 0.01
_HANDLER_S: Final = 0.3
"""How long a handler of Python may take; it does not run while the main thread is in a function of C."""
_PY_SPY_S: Final = 10.0
_WHOLE: Final = STACKS_WHOLE.decode()


def _from_recorders(files: Mapping[int, BeatFile], closed: threading.Event) -> dict[int, WorkerStack]:
    found: dict[int, WorkerStack] = {}
    waiting = {rank: file.ask_recorder_for_stacks() for rank, file in files.items() if vitals.lives(file.server)}
    until_s = SYSTEM_CLOCK.monotonic_s() + _RECORDER_S
    while waiting and SYSTEM_CLOCK.monotonic_s() < until_s and not closed.wait(_RECORDER_LOOK_S):
        for rank, number in list(waiting.items()):
            text = files[rank].recorder_stacks(number)
            if text is not None:
                found[rank] = _stack(text, faulthandler_frames(text), "faulthandler")
            if text is not None or not vitals.lives(files[rank].server):
                del waiting[rank]
    return found


def _from_handlers(
    pids: Mapping[int, int], files: Mapping[int, BeatFile], closed: threading.Event
) -> dict[int, WorkerStack]:
    """Return the stacks that handlers of Python write. They mark the end: a starved worker may pause before it."""
    begins = {rank: file.stacks_end for rank, file in files.items()}
    waiting = {rank for rank, file in files.items() if file.ask_handler_for_stacks(pids[rank])}
    found: dict[int, WorkerStack] = {}
    began_s = SYSTEM_CLOCK.monotonic_s()
    while waiting and not closed.wait(_LOOK_S):
        begun = False
        for rank in sorted(waiting):
            text, whole, _ = files[rank].stacks(begins[rank]).partition(_WHOLE)
            begun = begun or bool(text)
            if whole:
                found[rank] = _stack(text, faulthandler_frames(text), "faulthandler")
            if whole or not vitals.lives(pids[rank]):
                waiting.discard(rank)
        if SYSTEM_CLOCK.monotonic_s() >= began_s + (_HANDLER_S + _ANSWER_S if begun else _HANDLER_S):
            break
    return found


def _from_signals(
    pids: Mapping[int, int], files: Mapping[int, BeatFile], closed: threading.Event
) -> dict[int, WorkerStack]:
    begins = {rank: file.stacks_end for rank, file in files.items()}
    ends = {rank: begins[rank] for rank, file in files.items() if file.ask_for_stacks(pids[rank])}
    until_s, waiting = SYSTEM_CLOCK.monotonic_s() + _ANSWER_S, bool(ends)
    while waiting and SYSTEM_CLOCK.monotonic_s() < until_s and not closed.wait(_LOOK_S):
        before, ends = ends, {rank: files[rank].stacks_end for rank in ends}
        # Some are still being written, or not begun by a worker that lives.
        waiting = any(
            end != before[rank] or (end == begins[rank] and vitals.lives(pids[rank])) for rank, end in ends.items()
        )
    # The handler in Python may have run after all, and marked its end.
    texts = {
        rank: files[rank].stacks(begins[rank]).replace(_WHOLE, "") for rank, end in ends.items() if end > begins[rank]
    }
    return {rank: _stack(text, faulthandler_frames(text), "faulthandler") for rank, text in texts.items()}


# --- py-spy, for those that did not answer


def _from_py_spy(pids: Mapping[int, int], closed: threading.Event) -> dict[int, WorkerStack]:
    program = shutil.which("py-spy") if pids else None
    spies: dict[int, tuple[subprocess.Popen[bytes], IO[bytes]]] = {}
    for rank, pid in pids.items() if program is not None else ():
        with suppress(OSError):
            spies[rank] = _start_spy(str(program), pid)
    until_s = SYSTEM_CLOCK.monotonic_s() + _PY_SPY_S
    while any(spy.poll() is None for spy, _ in spies.values()) and SYSTEM_CLOCK.monotonic_s() < until_s:
        if closed.wait(_LOOK_S):
            break
    found = {}
    for rank, (spy, output) in spies.items():
        if spy.poll() == 0:
            text = os.pread(output.fileno(), MAX_STACKS_BYTES, 0).decode("utf-8", "replace")
            found[rank] = _stack(text, py_spy_frames(text), "py-spy")
        with suppress(OSError):
            spy.kill()
        with suppress(subprocess.TimeoutExpired):
            spy.wait(0.1)  # killed, or ended already
        output.close()
    return found


def _stack(text: str, frames: tuple[Frame, ...], source: str) -> WorkerStack:
    return WorkerStack(text=text, source=source, frames=frames, user_frame=innermost_user(frames))


def _start_spy(program: str, pid: int) -> tuple[subprocess.Popen[bytes], IO[bytes]]:
    output = tempfile.TemporaryFile()  # noqa: SIM115  # closed with the request
    # Native frames need symbols and seconds; a process in the kernel's hands is not stopped for it.
    command = [program, "dump", "--nonblocking", "--pid", str(pid)]
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.DEVNULL)
    return process, output
