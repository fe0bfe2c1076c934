"""The stacks of workers, without a wait for any of them: from their own interpreters, else from py-spy."""

import os
import re
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import IO, TypeAlias

from elastic_core.agent.watch.beat_file import MAX_STACKS_BYTES, BeatFile
from elastic_core.processes import signals
from elastic_core.processes.beat_layout import STACKS_BELOW_RTMAX
from elastic_core.processes.errors.frames import Frame, is_user_file, parse_fault_frames, without_launcher
from elastic_core.processes.procfs import read_stat
from elastic_core.reactor import Reactor, Timer
from elastic_core.reports import WorkerStack

_THREAD = re.compile(r"^(Thread|Current thread) 0x[0-9a-f]+ .*\(most recent call first\):$")
_SPY_THREAD = re.compile(r"^Thread \S+ \(.*\)(?:: \"(?P<name>.*)\")?$")
_SPY_FRAME = re.compile(r"^ +(?P<function>.+) \((?P<file>.+):(?P<line>\d+)\)$")


def faulthandler_frames(text: str) -> tuple[Frame, ...]:
    """Return the main thread's frames in the last of the dumps in `text`, outermost first; empty: there is none.

    An interpreter tells its threads from the youngest to the oldest, a hundred of them. Beyond that it is the thread
    that took the signal: the main one, unless that blocks it.
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
    """Return the main thread's frames of what `py-spy dump` printed, outermost first; empty: it printed none."""
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
    """Return which frame is the innermost line of the user's own code; -1: none."""
    found = (index for index in range(len(frames) - 1, -1, -1) if is_user_file(frames[index][0]))
    return next(found, -1)


_LOOK_S = 0.05
_ANSWER_S = 1.0
"""How long an interpreter may take; one whose main thread is stuck in the kernel answers never."""
_PY_SPY_S = 10.0


class FaultFile:
    """One worker's file for fatal errors; the hook makes it when it is armed."""

    def __init__(self, path: str) -> None:
        """Open nothing."""
        self._path = path

    @property
    def stacks_end(self) -> int:
        """Where the next stack will begin."""
        try:
            return os.stat(self._path).st_size  # noqa: PTH116  # as cheap as it can be, for it is asked often
        except OSError:
            return 0

    def stacks(self, begin: int) -> str:
        """Return what was written from `begin` on, a bounded part of it."""
        try:
            with open(self._path, "rb") as file:  # noqa: PTH123
                file.seek(begin)
                return file.read(MAX_STACKS_BYTES).decode("utf-8", "replace")
        except OSError:
            return ""

    def ask_for_stacks(self, worker_pid: int) -> bool:
        """Have the worker's interpreter write its stacks; False: it would not, or can't.

        The signal ends a process that does not catch it: it goes to the worker alone, and only while that has our hook
        armed, catches the signal, and is not stopped.
        """
        signum = signal.SIGRTMAX - STACKS_BELOW_RTMAX
        stat = read_stat(worker_pid)
        armed = os.path.exists(self._path)  # noqa: PTH110
        if not armed or stat is None or stat.state in "TtZX" or not signals.catches(worker_pid, signum):
            return False
        with suppress(ProcessLookupError, PermissionError):
            os.kill(worker_pid, signum)
            return True
        return False


StackFile: TypeAlias = BeatFile | FaultFile
"""Where an interpreter writes its stacks when it is asked to."""


class StackRequest:
    """Asks workers for their stacks, and tells what has come.

    Args:
        reactor: The loop.
        workers: By local rank: its pid, that of the process to look at, and the file that it writes to, if any.
        on_done: Called once, later, with what each answered.
    """

    def __init__(
        self,
        reactor: Reactor,
        workers: Mapping[int, tuple[int, int, StackFile | None]],
        *,
        on_done: Callable[[dict[int, WorkerStack]], None],
    ) -> None:
        """Ask."""
        self._reactor = reactor
        self._workers = dict(workers)
        self._on_done = on_done
        self._asked: dict[int, tuple[StackFile, int, int]] = {}
        for rank, (pid, _, file) in self._workers.items():
            if file is not None:
                begin = file.stacks_end
                if file.ask_for_stacks(pid):
                    self._asked[rank] = (file, begin, begin)
        self._spies: dict[int, tuple[subprocess.Popen[bytes], IO[bytes]]] = {}
        self._found: dict[int, WorkerStack] = {}
        self._until_s = reactor.now_s() + _ANSWER_S
        self._timer: Timer = reactor.call_later(_LOOK_S, self._look)

    def helpers(self) -> frozenset[int]:
        """Return the pids of what was started for this."""
        return frozenset(process.pid for process, _ in self._spies.values())

    def cancel(self) -> None:
        """Ask no more, and tell nothing."""
        self._timer.cancel()
        self._end_spies()

    def settle(self) -> None:
        """Ask no more, and tell what has come: the workers have ended, and their files are about to be closed."""
        self._timer.cancel()
        self._take_written()
        self._asked.clear()
        self._end()

    # --- the interpreters' own

    def _look(self) -> None:
        waiting = False
        for rank, (file, begin, end) in self._asked.items():
            now = file.stacks_end
            waiting = waiting or now == begin or now != end  # not begun, or still being written
            self._asked[rank] = (file, begin, now)
        if waiting and self._reactor.now_s() < self._until_s:
            self._timer = self._reactor.call_later(_LOOK_S, self._look)
            return
        self._take_written()
        self._spy()

    def _take_written(self) -> None:
        for rank, (file, begin, _) in self._asked.items():
            if rank not in self._found and file.stacks_end > begin:
                text = file.stacks(begin)
                self._found[rank] = _stack(text, faulthandler_frames(text), "faulthandler")

    # --- py-spy, for those that did not answer

    def _spy(self) -> None:
        missing = [rank for rank in self._workers if rank not in self._found]
        program = shutil.which("py-spy") if missing else None
        if program is not None:
            for rank in missing:
                with suppress(OSError):
                    self._spies[rank] = _start_spy(program, self._workers[rank][1])
        self._until_s = self._reactor.now_s() + _PY_SPY_S
        self._look_at_spies()

    def _look_at_spies(self) -> None:
        running = any(process.poll() is None for process, _ in self._spies.values())
        if running and self._reactor.now_s() < self._until_s:
            self._timer = self._reactor.call_later(_LOOK_S, self._look_at_spies)
            return
        for rank, (process, output) in self._spies.items():
            if process.poll() == 0:
                text = os.pread(output.fileno(), MAX_STACKS_BYTES, 0).decode("utf-8", "replace")
                self._found[rank] = _stack(text, py_spy_frames(text), "py-spy")
        self._end()

    def _end(self) -> None:
        self._end_spies()
        # As an event of its own: with nobody to wait for, this is still the constructor's caller's turn.
        self._timer = self._reactor.call_later(0.0, partial(self._on_done, self._found))

    def _end_spies(self) -> None:
        for process, output in self._spies.values():
            with suppress(OSError):
                process.kill()
            with suppress(subprocess.TimeoutExpired):
                process.wait(0.1)  # killed, or ended already
            output.close()
        self._spies = {}


def _stack(text: str, frames: tuple[Frame, ...], source: str) -> WorkerStack:
    return WorkerStack(text=text, source=source, frames=frames, user_frame=innermost_user(frames))


def _start_spy(program: str, pid: int) -> tuple[subprocess.Popen[bytes], IO[bytes]]:
    output = tempfile.TemporaryFile()  # noqa: SIM115  # closed with the request
    # Native frames need symbols and seconds; a process in the kernel's hands is not stopped for it.
    command = [program, "dump", "--nonblocking", "--pid", str(pid)]
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.DEVNULL)
    return process, output
