"""The agent's side of the guard: starts it, sends it messages, and starts another guard when it dies."""

import fcntl
import os
import posix
import select
import signal
import sys
from collections import deque
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from elastic_core.errors import is_momentary
from elastic_core.logger import Logger
from elastic_core.processes import signals
from elastic_core.system.clock import SYSTEM_CLOCK, Clock
from elastic_core.system.reactor import Reactor, Timer

_START_LIMIT = 5
_START_WINDOW_S = 10.0
_RETRY_S = 5.0
"""Seconds until the next try to start a guard after the system lacked processes, memory or descriptors."""
_HUNT_WAIT_S = 2.0
_FAREWELL_WAIT_S = 0.005
_NEVER_S = float("inf")
_SPARE_BYTES = 4096
"""How many bytes of the pipe stay free for short lines, whatever the size of the last act's line."""
_NO_LAST_ACT = "last -\n"


class Guardian:
    """Keeps one guard alive for as long as the agent runs.

    Threading: everything on the reactor's thread.
    """

    def __init__(self, reactor: Reactor, *, incarnation: str, log: Logger, clock: Clock = SYSTEM_CLOCK) -> None:
        """Prepare to guard the workers with this `incarnation`; nothing is started yet. Fences use `clock`."""
        self._clock = clock
        self._reactor = reactor
        self._incarnation = incarnation
        self._log = log
        self._workers: tuple[int, ...] = ()
        self._fence_s = _NEVER_S
        self._missed = False
        self._last_act = _NO_LAST_ACT
        self._starts: deque[float] = deque(maxlen=_START_LIMIT)
        self._pid: int | None = None
        self._released = False
        self._retry: Timer | None = None
        self._pipe = -1
        self._death_fd = -1

    @property
    def pid(self) -> int | None:
        """The guard's pid; `None` if there is no guard."""
        return self._pid

    def pids(self) -> frozenset[int]:
        """Return the pids that sweeps must spare and other code must not reap."""
        return frozenset() if self._pid is None else frozenset({self._pid})

    def signalled(self, signum: int) -> bool:
        """Return whether the guard has received a signal since the last call; it keeps each signal, and acts on none.

        A signal to all processes of the agent's tree, or of its cgroup, reaches the guard as well.
        """
        if self._pid is None or not signals.is_pending(self._pid, signum):
            return False
        self._send(f"forget {signum}\n")
        return True

    def start(self) -> None:
        """Start the guard, without waiting until it is ready: its messages wait in the pipe.

        If no guard can be started, a line is printed, and the run continues without a guard.
        """
        now_s = self._reactor.now_s()
        if len(self._starts) == _START_LIMIT and now_s - self._starts[0] < _START_WINDOW_S:
            self._log.notice(
                f"the guard died {_START_LIMIT} times within {_START_WINDOW_S:g} s and is not started again: "
                "if this agent is killed, its workers may survive it"
            )
            return
        self._starts.append(now_s)
        try:
            # Written before the guard exists: the agent may be killed immediately afterwards.
            greeting = (
                f"agent {os.getpid()}\nincarnation {self._incarnation}\ntimes {self._log.times}\n"
                f"{self._workers_line()}{self._fence_line()}"
            )
            self._pid, self._pipe = _spawn_guard(greeting.encode(), self._last_act.encode())
        except OSError as error:
            # One line for the whole shortage: the start is retried every few seconds.
            if self._retry is None:
                text = f"no guard could be started ({error}): if this agent is killed, its workers may survive it"
                self._log.notice(text)
            if is_momentary(error):
                self._retry = self._reactor.call_later(_RETRY_S, self.start)
            return
        if self._retry is not None:
            self._retry = None
            self._log.notice("a guard was started: if this agent is killed, its workers do not survive it")
        try:
            self._death_fd = os.pidfd_open(self._pid)
        except OSError:  # no pidfds on this system: a pipe without reader also wakes the loop
            self._death_fd = os.dup(self._pipe)
        self._reactor.add_reader(self._death_fd, self._on_death)

    def note_workers(self, pids: Iterable[int]) -> None:
        """Set the pids of the existing workers: call it when they were started and whenever one was reaped.

        The guard finds most workers by their environment. It needs the pids for workers that overwrote their
        environment, as programs do that set their process title.
        """
        earlier, self._workers = self._workers, tuple(pids)
        if set(self._workers).difference(earlier):
            self._missed = False  # the missed fence was about workers of an earlier round
        self._send(self._workers_line())

    def fence(self, until_s: float) -> None:
        """Make the guard kill the workers at this monotonic time, even if this agent is stopped or hangs by then.

        A later call replaces an earlier one; `inf` removes the fence. Processes with `ELASTIC_SIDECAR=1` in their
        environment are spared: they belong to the agent, not to the workers. The guard keeps watching after that time.
        An agent that was late must move the fence before it starts other workers, because the guard may still hunt.
        Without a guard there is no fence.
        """
        # A suspended agent may move the fence only after it has passed: the guard has then killed its workers.
        self._missed = self._missed or (bool(self._workers) and self._clock.monotonic_s() >= self._fence_s)
        self._fence_s = until_s
        self._send(self._fence_line())

    @property
    def fence_left_s(self) -> float:
        """Seconds until the guard kills the workers, unless the fence is moved; `inf` means never."""
        return self._fence_s - self._clock.monotonic_s()

    def fence_passed(self, now_s: float) -> bool:
        """Return whether the fence of the current or last workers has passed, so that the guard may have killed them.

        It stays True after the fence was moved, until other workers are named.
        """
        return self._missed or now_s >= self._fence_s

    def last_act(self, store: str, seat: bytes, settings: bytes) -> None:
        """Withdraw a seat once this agent and its workers are dead; a later call replaces an earlier one.

        `store` is the class of the store (`module:Class`), empty if there is nothing to withdraw. `seat` and `settings`
        are a `Seat` and `RendezvousSettings` as JSON. The agent's current environment and import path are sent too. If
        all that is too long for the pipe, or there is no guard, the seat's lease ends on its own.
        """
        self._last_act = _NO_LAST_ACT
        if store:
            from elastic_core.agent.guard.last_act import encode  # only for runs with a store: it takes 3 ms

            self._last_act = f"last {encode(store, seat, settings)}\n"
        if self._pid is not None:
            fits = _fits(self._pipe, self._last_act.encode())
            self._send(self._last_act if fits else _NO_LAST_ACT)

    def _workers_line(self) -> str:
        return f"workers {' '.join(map(str, self._workers))}\n"

    def _fence_line(self) -> str:
        return f"fence {self._fence_s!r}\n"

    def _send(self, text: str) -> None:
        if self._pid is None:
            return
        message = text.encode()
        try:
            if os.write(self._pipe, message) == len(message):
                return
        except BlockingIOError:
            pass  # the pipe is full, as after a short write: see below
        except BrokenPipeError:
            return  # it just died: the next guard receives everything
        # The guard does not read, perhaps because it was stopped: replace it. It must not act on a cut message.
        with suppress(ProcessLookupError):
            os.kill(self._pid, signal.SIGKILL)

    def _on_death(self) -> None:
        self._forget()
        self.start()

    def _forget(self) -> None:
        """Reap the guard, which has ended, and close its descriptors."""
        if self._pid is None:
            return
        self._reactor.remove_reader(self._death_fd)
        os.close(self._death_fd)
        os.close(self._pipe)
        with suppress(ChildProcessError):  # other code in this process reaps every child
            os.waitpid(self._pid, 0)
        self._pid = None

    def unleash(self) -> None:
        """Let the guard kill the remaining workers, as if this agent had died. Called: after an error.

        Blocks until that is done, at most two seconds.
        """
        if self._pid is None:
            return
        self._reactor.remove_reader(self._death_fd)
        os.close(self._pipe)
        if self._ends_within(_HUNT_WAIT_S):
            with suppress(ChildProcessError):  # other code in this process reaps every child
                os.waitpid(self._pid, 0)
        os.close(self._death_fd)
        self._pid = None

    def _ends_within(self, seconds: float) -> bool:
        poll = select.poll()
        poll.register(self._death_fd, select.POLLIN)
        return bool(poll.poll(seconds * 1000))

    def release(self) -> None:
        """Let the guard end by itself, in some milliseconds. Called: when no worker runs any more; idempotent."""
        if self._retry is not None:
            self._retry.cancel()
        if self._pid is not None and not self._released:
            self._released = True
            self._reactor.remove_reader(self._death_fd)
            self._send("farewell\n")

    def dismiss(self) -> None:
        """End the guard, which then kills no worker; takes milliseconds, leaves no process; idempotent."""
        self.release()
        if self._pid is None:
            return
        if not self._ends_within(_FAREWELL_WAIT_S):
            # The guard still starts, or gets no CPU time: after the farewell it has nothing to do.
            with suppress(ProcessLookupError):
                os.kill(self._pid, signal.SIGKILL)
        self._forget()


def _fits(pipe: int, line: bytes) -> bool:
    """Return whether a line leaves room in an empty pipe; a user with very many pipes gets small ones."""
    try:
        return len(line) <= fcntl.fcntl(pipe, fcntl.F_GETPIPE_SZ) - _SPARE_BYTES
    except OSError:
        return False


def _has_stderr() -> bool:
    try:
        os.fstat(2)
    except OSError:
        return False
    return sys.stderr is not None  # else another file may have the number 2


def _spawn_guard(greeting: bytes, last_act_line: bytes) -> tuple[int, int]:
    """Start a guard with `greeting` and, if it fits, the last act's line in its pipe; return its pid and the pipe.

    posix_spawn is used because importing subprocess takes 8 ms. It is taken from `posix`: a debugger that follows
    children replaces the one in `os` and adds its own code to every Python command. Every signal is blocked from the
    guard's first instruction, so that none that is meant for the agent or its workers ends it. Its own session keeps
    the terminal's signals away.
    """
    if not sys.executable:
        raise FileNotFoundError("this process does not know its Python interpreter")
    # -I and -S keep the guard from finding the package on its own.
    root = str(Path(__file__).absolute()).rpartition("/elastic_core/")[0]
    code = f"import sys; sys.path.append({root!r}); from elastic_core.agent.guard.guard import main; main()"
    shown = _has_stderr()
    reading, writing = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        os.write(writing, greeting)
        if _fits(writing, greeting + last_act_line):
            os.write(writing, last_act_line)
        pid = posix.posix_spawn(
            sys.executable,
            [sys.executable, "-I", "-S", "-c", code, "elastic-guard"],
            {"TZ": os.environ["TZ"]} if "TZ" in os.environ else {},
            file_actions=[
                (os.POSIX_SPAWN_DUP2, reading, 0),  # first, because it may be 3 itself
                *(((os.POSIX_SPAWN_DUP2, 2, 3),) if shown else ()),
                (os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_RDWR, 0),
                *(() if shown else ((os.POSIX_SPAWN_DUP2, 1, 3),)),
                (os.POSIX_SPAWN_DUP2, 1, 2),
            ],
            setsid=True,
            setsigmask=signal.valid_signals(),
        )
    except BaseException:
        os.close(writing)
        raise
    finally:
        os.close(reading)
    return pid, writing
