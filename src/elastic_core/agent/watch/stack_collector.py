"""Gets the stacks of workers without waiting for any of them: from their own interpreters, else from py-spy."""

import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import IO, Protocol

from elastic_core.agent.watch.beat_file import MAX_STACKS_BYTES
from elastic_core.agent.watch.stack_parser import faulthandler_frames, innermost_user, py_spy_frames
from elastic_core.processes.errors.frames import Frame
from elastic_core.reactor import Reactor, Timer
from elastic_core.reports import WorkerStack

_LOOK_S = 0.05
_ANSWER_S = 1.0
"""How long an interpreter may take; one whose main thread is stuck in the kernel answers never."""
_PY_SPY_S = 10.0


class StackFile(Protocol):
    """Where an interpreter writes its stacks when it is asked to."""

    @property
    def stacks_end(self) -> int:
        """Return where the next stack will begin."""
        ...

    def stacks(self, begin: int) -> str:
        """Return what was written from `begin` on."""
        ...

    def ask_for_stacks(self, worker_pid: int) -> bool:
        """Have it write; False: it would not, or can't."""
        ...


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
        for rank, (file, begin, end) in self._asked.items():
            if end > begin:
                text = file.stacks(begin)
                self._found[rank] = _stack(text, faulthandler_frames(text), "faulthandler")
        self._spy()

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
