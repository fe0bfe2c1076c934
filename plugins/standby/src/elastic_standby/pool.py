"""The agent's side of `--standby`: keeps one spare interpreter for each worker, and starts workers from them."""

import errno
import os
import signal
import socket
import subprocess
from collections.abc import Iterable, Sequence
from contextlib import ExitStack, suppress
from functools import partial

from elastic_core.api import RunTimer
from elastic_core.api.starters import AgentLoop, StartedProcess, WorkerStart, WorkerStarter
from elastic_core.api.workers import bound_to
from elastic_standby.orders import command_for, send_orders, working_folder

START_DELAY_S = 1.0
"""How long workers run before the first spare is started beside them."""
MAX_DEATHS = 3
"""The number of spares that may end by themselves between two uses; after more, none is started."""
_END_WAIT_S = 0.2
_MESSAGE_BYTES = 2048
_FAILED = b"failed "  # as in `spare`, which the agent never imports
_MOMENTARY = (errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE)
"""Errors of the system that may be temporary."""


class Spare:
    """One interpreter that waits, or prepares to wait, to replace one worker."""

    def __init__(self, worker: WorkerStart, imports: Sequence[str]) -> None:
        """Start it.

        Raises:
            OSError, ValueError: it could not be started.
        """
        self.argv = worker.argv
        self.environment = _lasting(worker)
        self.folder = working_folder()
        self.ready = False
        self.agents, its = socket.socketpair()
        with its:
            try:
                self.process = subprocess.Popen(
                    command_for(worker.argv, its.fileno(), imports),
                    env=self.environment,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    pass_fds=(its.fileno(),),
                    start_new_session=True,
                )
            except BaseException:
                self.agents.close()
                raise
        self.agents.setblocking(False)

    def difference(self, worker: WorkerStart) -> str:
        """Return why this spare differs from a freshly started worker; empty if it does not.

        Libraries read variables when they are imported, and it is not known which.
        """
        if worker.argv != self.argv:
            return "the command"
        if self.folder != working_folder():
            return "the working directory"
        wanted = _lasting(worker)
        names = {*wanted, *self.environment}
        changed = sorted(name for name in names if wanted.get(name) != self.environment.get(name))
        return ", ".join(changed)

    def kill(self) -> None:
        """Send SIGKILL to it and its children. It is not reaped, so its pid is not reused."""
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, signal.SIGKILL)

    def reap(self, within_s: float) -> int:
        """Return the exit code of a spare that has ended or was killed. One that takes longer is left to the kernel."""
        try:
            return self.process.wait(within_s)
        except subprocess.TimeoutExpired:
            self.process.returncode = -signal.SIGKILL  # it is not polled again, and Popen must not warn
            return self.process.returncode


def _lasting(worker: WorkerStart) -> dict[str, str]:
    return {name: value for name, value in worker.environment.items() if name not in worker.round_variables}


class StandbyPool(WorkerStarter):
    """One spare for each worker of the current round.

    Args:
        loop: The agent's. If the process ends with it, the pool does not wait at the end until the kernel has released
            the memory of killed spares, some 20 ms for each with torch.
        imports: The modules that spares import in advance.
        delay_s: How long workers run before the first spare is started.

    Spares are started one after the other, to slow workers little. A spare has the command and the environment of its
    worker, except for variables that a round changes; it is used only if nothing else differs.
    """

    def __init__(self, loop: AgentLoop, *, imports: Sequence[str], delay_s: float = START_DELAY_S) -> None:
        """Start nothing yet."""
        self._loop = loop
        self._imports = tuple(imports)
        self._delay_s = delay_s
        self._end_wait_s = _END_WAIT_S
        self._close_wait_s = 0.0 if loop.own_process else _END_WAIT_S
        self._spares: dict[int, Spare] = {}
        self._taken: set[Spare] = set()
        self._asked: list[WorkerStart] = []
        """Workers of the round that is being started."""
        self._wanted: dict[int, WorkerStart] = {}
        self._timer: RunTimer | None = None
        self._deaths = 0
        self._off = False

    def pids(self) -> frozenset[int]:
        """Return the spares: sweeps must spare them, and only the pool may reap them."""
        return frozenset(spare.process.pid for spare in self._spares.values())

    @property
    def ready_count(self) -> int:
        """The number of spares that have imported everything and wait."""
        return sum(spare.ready for spare in self._spares.values())

    # --- filling

    def round_started(self) -> None:
        """Have spares started for the workers of the round."""
        started, self._asked = self._asked, []
        self.stand_by(started)

    def stand_by(self, workers: Iterable[WorkerStart]) -> None:
        """Have spares started for these workers, which have just been started themselves."""
        self._wanted = {worker.local_rank: worker for worker in workers if _can_stand_by(worker)}
        for rank, spare in list(self._spares.items()):
            wanted = self._wanted.get(rank)
            if wanted is None or spare.difference(wanted):
                self._end([rank])
        self._start_later(self._delay_s)

    def round_stopping(self) -> None:
        """Start no more: the workers are being stopped."""
        self._wanted, self._asked = {}, []
        self._cancel_timer()

    def _start_later(self, delay_s: float) -> None:
        self._cancel_timer()
        if self._wanted and not self._off:
            self._timer = self._loop.call_later(delay_s, self._start_next)

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _start_next(self) -> None:
        self._timer = None
        if any(not spare.ready for spare in self._spares.values()):
            return
        rank = next((rank for rank in sorted(self._wanted) if rank not in self._spares), None)
        if rank is None:
            return
        worker = self._wanted[rank]
        try:
            with bound_to(worker.processors):
                spare = Spare(worker, self._imports)
        except (OSError, ValueError) as error:
            self._deaths += 1
            if isinstance(error, OSError) and error.errno in _MOMENTARY and self._deaths < MAX_DEATHS:
                self._start_later(self._delay_s * 2**self._deaths)
            else:
                self._turn_off(f"can't start one: {error}")
            return
        self._spares[rank] = spare
        self._loop.add_reader(spare.agents.fileno(), partial(self._on_word, rank, spare))

    def _on_word(self, rank: int, spare: Spare) -> None:
        try:
            word = spare.agents.recv(_MESSAGE_BYTES)
        except BlockingIOError:
            return
        except OSError:
            word = b""
        if word.startswith(_FAILED):
            self._turn_off(word.removeprefix(_FAILED).decode("utf-8", "replace"))
        elif word:
            spare.ready = True
            self._start_later(0.0)
        else:
            self._on_death(rank)

    def _on_death(self, rank: int) -> None:
        (code,) = self._end([rank])
        self._deaths += 1
        if self._deaths >= MAX_DEATHS:
            how = f"exit code {code}" if code >= 0 else f"signal {-code}"
            self._turn_off(f"{self._deaths} ended by themselves, the last with {how}")
        else:
            self._start_later(self._delay_s * 2**self._deaths)

    def _turn_off(self, reason: str) -> None:
        self._off = True
        self._cancel_timer()
        self._end(list(self._spares))
        self._loop.notice(f"no standby workers any more: {reason}; restarts start fresh interpreters")

    # --- use

    def start(self, worker: WorkerStart) -> StartedProcess | None:
        """Start this worker from a spare, if there is one. Another spare is started once the round has begun."""
        self._asked.append(worker)
        return self.take(worker)

    def take(self, worker: WorkerStart) -> StartedProcess | None:
        """Start this worker from a spare. `None` if there is none, so that it must be started afresh."""
        spare = self._spares.get(worker.local_rank)
        if spare is None or worker.terminal:
            return None
        difference = spare.difference(worker)
        if difference:
            self._loop.notice(
                f"the standby worker for local rank {worker.local_rank} is not used: {difference} changed since the "
                "last round"
            )
            return None  # `stand_by` ends it
        try:
            send_orders(spare.agents, worker)
        except (OSError, ValueError):
            self._end([worker.local_rank])  # a fresh start works, or tells what is wrong
            return None
        del self._spares[worker.local_rank]
        # Closed when it has closed its own: a word of its that we had not read would turn our orders into an error.
        self._taken.add(spare)
        self._loop.add_reader(spare.agents.fileno(), partial(self._on_last_word, spare))
        self._deaths = 0
        spare.process.returncode = 0  # the agent's to reap, and Popen must not warn
        return StartedProcess(pid=spare.process.pid)

    def _on_last_word(self, spare: Spare) -> None:
        with suppress(ConnectionError):
            if spare.agents.recv(_MESSAGE_BYTES):
                return
        self._let_go(spare)

    def _let_go(self, spare: Spare) -> None:
        self._taken.discard(spare)
        self._loop.remove_reader(spare.agents.fileno())
        spare.agents.close()

    # --- the end

    def _end(self, ranks: Iterable[int]) -> list[int]:
        """Kill these spares, then reap them; return their exit codes."""
        ending = [self._spares.pop(rank) for rank in ranks]
        with ExitStack() as closing:
            for spare in ending:
                spare.kill()
                closing.callback(self._let_go, spare)
            return [spare.reap(self._end_wait_s) for spare in ending]

    def close(self) -> None:
        """End all spares; idempotent."""
        self.round_stopping()
        self._end_wait_s = self._close_wait_s
        self._end(list(self._spares))
        for spare in list(self._taken):
            self._let_go(spare)


def _can_stand_by(worker: WorkerStart) -> bool:
    """Return whether the command is Python's, as `elastic run` makes it, and the worker one of several."""
    return not worker.terminal and len(worker.argv) > 2 and worker.argv[1] == "-u"
