"""Supervision of workers on a thread, for a process that is not an agent."""

import io
import logging
import secrets
import signal
import sys
import threading
from collections.abc import Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING

from elastic_core.api import ElasticError, WorkerExit
from elastic_core.api.workers import WorkerError
from elastic_core.embedding import Console, Logger, Reactor, ReactorLoop, Sweeper, WorkerGroup, WorkerLaunch

if TYPE_CHECKING:
    from elastic_torchrun.functions.start import FunctionStarter

LOG = logging.getLogger(__name__)

STOP_GRACE_S = 30.0
"""How long the other workers have after a failure, as in torch."""


class SupervisedWorkers:
    """Runs one set of workers until all have succeeded, or one has failed, which stops the others.

    Everything happens on a thread of its own, so output and results are read even if no caller waits.

    Args:
        name: For people.
        functions: Starts workers that call a function. The code that made it closes it.

    Threading: any thread.
    """

    def __init__(self, name: str, *, functions: "FunctionStarter | None" = None) -> None:
        """Start nothing yet."""
        self._functions = functions
        self._incarnation = secrets.token_hex(16)
        self._thread = threading.Thread(target=self._run, name=f"workers of {name}", daemon=True)
        self._began = threading.Event()
        self.finished = threading.Event()
        """Set when nothing is left of any worker."""
        self.pids: dict[int, int] = {}
        """By local rank, from the start on."""
        self.exits: dict[int, WorkerExit] = {}
        """By local rank: complete once `finished`."""
        self._group: WorkerGroup | None = None
        self._launches: Sequence[WorkerLaunch] = ()
        self._error: Exception | None = None
        self._values: dict[int, object] = {}
        self._unloadable: WorkerError | None = None
        self._reactor: Reactor | None = None
        self._stopping = self._stopped = False
        self._unwanted = False

    @property
    def mark(self) -> dict[str, str]:
        """The variables that each worker must have, so that its children can be found."""
        return {"ELASTIC_INCARNATION": self._incarnation}

    @property
    def return_values(self) -> dict[int, object]:
        """The results of successful workers, by local rank. Called: once `finished`.

        Raises:
            WorkerError: a result can't be loaded here.
            Exception: the error that stopped the supervision; how the workers ended is then not known.
        """
        if self._error is not None:
            raise self._error
        if self._unloadable is not None:
            raise self._unloadable
        return self._values

    def start(self, launches: Sequence[WorkerLaunch]) -> None:
        """Start them all, and return when they exist.

        Raises:
            WorkerError: one could not be started; the others are stopped.
        """
        self._launches = launches
        self._thread.start()
        try:
            self._began.wait()
        except BaseException:  # Ctrl-C: no caller will get them
            self._unwanted = True
            self.stop(signal.SIGKILL, 0.0)
            self.finished.wait()
            raise
        if self._error is not None:
            self._thread.join()
            raise self._error

    def stop(self, signum: int, grace_s: float) -> None:
        """Stop running workers. A second call can only shorten the grace period. Returns before `finished`."""
        reactor = self._reactor
        if reactor is not None and not self.finished.is_set():
            reactor.post(lambda: self._stop(signum, grace_s))

    # --- on the thread

    def _run(self) -> None:
        try:
            with ExitStack() as closing:
                self._supervise(closing)
        except Exception as error:  # raised by `start`, or logged: a thread has no caller
            self._error = error
            if self._began.is_set():
                LOG.exception("supervising workers failed")
        finally:
            self.finished.set()
            self._began.set()

    def _supervise(self, closing: ExitStack) -> None:
        reactor = self._reactor = Reactor()
        closing.callback(reactor.close)
        console = Console(reactor, stdout_fd=_fd_of(sys.stdout, 1), stderr_fd=_fd_of(sys.stderr, 2))
        closing.callback(console.close)
        log = Logger(LOG.warning, prefix="")
        workers = None
        if self._functions is not None:
            workers = self._functions.on(ReactorLoop(reactor, log=log))
            closing.callback(workers.close)
        self._group = group = WorkerGroup(
            reactor,
            console=console,
            sweeper=Sweeper(
                self._incarnation,
                subreaper=False,
                strangers=False,
                spared=lambda: () if workers is None else workers.pids(),
            ),
            log=log,
            starters=() if workers is None else (workers,),
        )
        group.attach(on_exit=self._on_exit, on_stopped=self._on_stopped)
        closing.callback(group.close)
        try:
            group.start(self._launches)
        except ElasticError as error:
            self._error = error
            group.kill()
        else:
            self.pids.update(group.pids)
            self._began.set()
            if self._unwanted or not self._launches:
                self._stop(signal.SIGKILL, 0.0)
        while not self._stopped:
            reactor.turn()
        if kept := group.left_running():
            LOG.warning("left running on purpose (ELASTIC_KEEP=1): %s", ", ".join(kept))
        console.flush()
        try:
            ended_well = [rank for rank, exit in sorted(self.exits.items()) if exit.code == 0]
            self._values = {rank: None if workers is None else workers.value(rank) for rank in ended_well}
        except WorkerError as error:
            self._unloadable = error

    def _on_exit(self, exit: WorkerExit) -> None:
        self.exits[exit.local_rank] = exit
        if self._stopping:
            return
        if exit.code != 0:
            self._stop(signal.SIGTERM, STOP_GRACE_S)
        elif len(self.exits) == len(self._launches):
            self._stop(signal.SIGTERM, 0.0)

    def _on_stopped(self) -> None:
        self._stopped = True

    def _stop(self, signum: int, grace_s: float) -> None:
        self._stopping = True
        assert self._group is not None
        self._group.stop(signum, grace_s=grace_s)


def _fd_of(stream: object, usual: int) -> int:
    """Return the descriptor behind one of Python's streams. For another kind of stream, return the process's own.

    Jupyter's kernel shows in the cell what is written to descriptors 1 and 2; `fileno` of its own streams is the
    terminal of the server.
    """
    try:
        return stream.fileno() if isinstance(stream, io.TextIOWrapper) else usual
    except (OSError, ValueError):
        return usual
