"""Workers that a thread of ours supervises: for a process that is no agent."""

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
from elastic_core.embedding import Console, Reactor, ReactorLoop, Sweeper, WorkerGroup, WorkerLaunch

if TYPE_CHECKING:
    from elastic_torchrun.functions.start import FunctionStarter

LOG = logging.getLogger(__name__)

STOP_GRACE_S = 30.0
"""How long the others have once one has failed, as with torch."""


class SupervisedWorkers:
    """Runs one set of workers to its end: when all have ended well, or one has not, which stops the others.

    Everything happens on a thread of its own, so output flows and results come however rarely somebody waits.

    Args:
        name: For people.
        functions: Starts the workers where they call a function; closed by whoever made it.

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
        self._stopping = False
        self._unwanted = False

    @property
    def mark(self) -> dict[str, str]:
        """What the environment of each worker must have, for what they leave to be found."""
        return {"ELASTIC_INCARNATION": self._incarnation}

    @property
    def return_values(self) -> dict[int, object]:
        """What those that ended well returned, by local rank. Called: once `finished`.

        Raises:
            WorkerError: a value can't be loaded here.
            Exception: what has broken off the supervision; how the workers ended is not known then.
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
        except BaseException:  # Ctrl-C: nobody will ever hold them
            self._unwanted = True
            self.stop(signal.SIGKILL, 0.0)
            self.finished.wait()
            raise
        if self._error is not None:
            self._thread.join()
            raise self._error

    def stop(self, signum: int, grace_s: float) -> None:
        """Stop what runs; a second call can only shorten the grace. Return at once: `finished` tells."""
        reactor = self._reactor
        if reactor is not None and not self.finished.is_set():
            reactor.post(lambda: self._stop(signum, grace_s))

    # --- on the thread

    def _run(self) -> None:
        try:
            with ExitStack() as closing:
                self._supervise(closing)
        except Exception as error:  # raised by `start`, or told: a thread has nobody else
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
        workers = None
        if self._functions is not None:
            workers = self._functions.on(ReactorLoop(reactor, notice=LOG.warning))
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
            notice=LOG.warning,
            starters=() if workers is None else (workers,),
        )
        group.attach(on_exit=self._on_exit, on_stopped=reactor.stop)
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
        reactor.run()
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

    def _stop(self, signum: int, grace_s: float) -> None:
        self._stopping = True
        assert self._group is not None
        self._group.stop(signum, grace_s=grace_s)


def _fd_of(stream: object, usual: int) -> int:
    """Return the descriptor behind one of Python's streams; for a stream of any other kind, the process's own.

    Jupyter's kernel shows in the cell what is written to descriptors 1 and 2; `fileno` of its own streams is the
    terminal of the server.
    """
    try:
        return stream.fileno() if isinstance(stream, io.TextIOWrapper) else usual
    except (OSError, ValueError):
        return usual
