"""The interface of objects that start workers' processes in place of the core, and their arguments.

Examples: a fork server, interpreters that have done their imports in advance, a process restored from a checkpoint, or
a container. Each is a `WorkerStarter`.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

from elastic_core.types import Record

if TYPE_CHECKING:
    from elastic_core.logger import Logger
    from elastic_core.system.reactor import Reactor


class RunTimer(Protocol):
    """A call that is due later."""

    def cancel(self) -> None:
        """Cancel the call, unless it has been made; idempotent."""


class AgentLoop(Protocol):
    """The agent's event loop, for code that must run on it. No call that it makes may block.

    Threading: the loop's own thread, except `post`.
    """

    own_process: bool
    """Whether this process exists for the run alone. If so, killed processes need not be waited for."""

    def call_later(self, delay_s: float, call: Callable[[], None]) -> RunTimer:
        """Call a function after so many seconds."""

    def post(self, call: Callable[[], None]) -> None:
        """Call a function at the loop's next turn. Threading: any."""

    def add_reader(self, fd: int, call: Callable[[], None]) -> None:
        """Call a function whenever a descriptor is readable, until `remove_reader`."""

    def remove_reader(self, fd: int) -> None:
        """Stop calls for a descriptor. Call it before the descriptor is closed."""

    def notice(self, text: str) -> None:
        """Print one line for users."""


class WorkerStart(Record, frozen=True, kw_only=True):
    """One worker to start. Its process must look as if it had been started with exactly these values.

    The working directory, stdin and all else that is not listed here are those of this process.
    """

    local_rank: int
    """The worker's rank on this node."""
    global_rank: int
    """The worker's rank in the round."""
    argv: tuple[str, ...]
    """The command."""
    environment: Mapping[str, str]
    """The worker's whole environment: no other variable may be in it."""
    round_variables: frozenset[str] = frozenset()
    """Names of the variables that change between rounds, and that no library reads when it is imported."""
    processors: frozenset[int] | None = None
    """The processors on which it may run, from its first instruction. `None` means those of this process."""
    stdout: int | None = None
    """The descriptor for its stdout: copy it, do not close or keep it. `None` means this process's stdout."""
    stderr: int | None = None
    """The descriptor for its stderr, as for stdout."""
    terminal: bool = False
    """Whether it keeps the terminal: this process's session and foreground process group."""


class StartedProcess(Record, frozen=True, kw_only=True, eq=False):
    """A worker's running process.

    It leads a session and a process group of its own, unless it keeps the terminal: stop signals go to that group.
    """

    pid: int
    """The process id."""
    reap: Callable[[], int | None] | None = None
    """Required if the process is no child of this one: returns its exit code, -N for death by signal N, or `None` while
    it runs. The process id must not be reused before it returns a code. `None`: it is a child, and only the agent reaps
    it."""


class LeavingWorker:
    """A live worker of a round that is being stopped. It may leave the round without ending.

    The agent makes it; a starter's tests may, with functions of their own. Threading: the agent's loop.
    """

    def __init__(
        self,
        process: StartedProcess,
        local_rank: int,
        *,
        left: Callable[[], bool],
        stays: Callable[[], None],
        ended: Callable[[], None],
    ) -> None:
        self.process = process
        """Its process. The starter that keeps it may give it a place by returning this object from `start`."""
        self.local_rank = local_rank
        """Its rank on this node, which a later place must have too."""
        self._left, self._stays, self._ended = left, stays, ended

    def left(self) -> bool:
        """Report that the worker has left the round; return whether the starter keeps the process from now on.

        If not, the process has ended or was signalled before, and is stopped with the round.
        """
        return self._left()

    def stays(self) -> None:
        """Report that the worker can't leave: it is stopped like all others. Idempotent."""
        self._stays()

    def ended(self) -> None:
        """Report that the starter has reaped the process while keeping it. Until then, sweeps spare it."""
        self._ended()


class WorkerStarter:
    """Starts workers' processes, all or some of them. Subclass it and override what you need.

    The sweep finds leftover processes of a worker by the variable `ELASTIC_INCARNATION` in the environment with which
    they were started. A process that was started in advance must have had the variable from its start.

    Threading: the agent's loop. The agent waits for every call, so none may block.
    """

    def prepare(self, count: int, done: Callable[[], None]) -> None:
        """Prepare what so many workers need, then call `done`, within 5 minutes.

        Called: before each round's start, without the workers that were kept. Also before this node asks for its first
        place if the number of nodes may vary: workers of other nodes would wait for what is not prepared.
        """
        done()

    def start(self, worker: WorkerStart) -> StartedProcess | None:
        """Return the started process of this worker, or `None` to let the core start it."""
        return None

    def round_started(self) -> None:
        """React to a round's start. Called: after `start` was called for each of its workers."""

    def round_stopping(self) -> None:
        """React to the beginning of a stop. Called: before workers are signalled, possibly several times."""

    def keep(self, worker: LeavingWorker, *, within_s: float, planned: bool) -> bool:
        """Ask a live worker to leave its round, for a place in the next one; return whether it was asked.

        If so, call `left` or `stays` of the worker. It is signalled after `within_s` seconds, or as soon as no round
        can follow or less time is left. A process that has left is the starter's, which reaps it. In the next round,
        `start` returns it for its local rank; otherwise it is killed. `planned`: no worker has failed.

        Called: when a stop begins that another round may follow, after `round_stopping`; for workers of every starter
        and of the core, until a starter has asked.
        """
        return False

    def worker_ended(self, pid: int) -> None:
        """React to the end of a worker that this starter has started or kept. Called: after it was reaped."""

    def pids(self) -> Collection[int]:
        """Return the starter's own processes that are no workers: the sweep spares them and their children.

        The starter must end and reap them itself.
        """
        return ()

    def close(self) -> None:
        """End the starter's processes; no worker runs any more. Idempotent."""


class CallStarter(WorkerStarter):
    """Starts workers that run a function instead of a program. Only an embedding program provides one."""

    def value(self, local_rank: int) -> object:
        """Return the result of the last worker with a local rank. `None` if its function did not return.

        Raises:
            WorkerError: The result cannot be loaded in this process.
        """
        return None


class BegunCall(Protocol):
    """A prepared function call whose workers an agent can start later."""

    @property
    def warnings(self) -> Sequence[str]:
        """Lines for users."""

    def on(self, loop: AgentLoop) -> CallStarter:
        """Return the object that starts the workers of the agent with this loop."""

    def close(self) -> None:
        """End what `begin` has started."""


class WorkerCall(Protocol):
    """A function that workers call, each in a process of its own, instead of a program."""

    @property
    def name(self) -> str:
        """The function's name for users."""

    @property
    def start_method(self) -> str:
        """How its processes start, for users."""

    def begin(self) -> BegunCall:
        """Prepare the call. Called: once per run, before the first thread starts, because a fork would lose threads."""


class ReactorLoop:
    """A reactor with the interface that starters use."""

    def __init__(self, reactor: "Reactor", *, log: "Logger", own_process: bool = False) -> None:
        self.call_later: Callable[[float, Callable[[], None]], RunTimer] = reactor.call_later
        self.post = reactor.post
        self.add_reader = reactor.add_reader
        self.remove_reader = reactor.remove_reader
        self.notice = log.notice
        self.own_process = own_process
