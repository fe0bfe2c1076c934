"""Who starts a worker's process: the interface of those that do it in the core's place, and what they are given.

A fork server, interpreters that wait with their imports done, a process restored from a checkpoint, a container: each
is a `WorkerStarter`.
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
        """Forget it, unless it has been made; idempotent."""
        ...


class AgentLoop(Protocol):
    """The agent's loop, for what must run on it. Nothing that it calls may block.

    Threading: its own thread alone, but for `post`.
    """

    own_process: bool
    """This process is there for the run alone, and ends with it: nobody need wait here for what was killed."""

    def call_later(self, delay_s: float, call: Callable[[], None]) -> RunTimer:
        """Make a call after so many seconds."""
        ...

    def post(self, call: Callable[[], None]) -> None:
        """Make a call soon. Threading: any."""
        ...

    def add_reader(self, fd: int, call: Callable[[], None]) -> None:
        """Make a call whenever a descriptor can be read, until `remove_reader`."""
        ...

    def remove_reader(self, fd: int) -> None:
        """Make no more calls for it; before it is closed."""
        ...

    def notice(self, text: str) -> None:
        """Show people one line."""
        ...


class WorkerStart(Record, frozen=True, kw_only=True):
    """One worker that is to be started: whatever process it becomes, it must be one that was started with just this.

    Its working directory, its stdin, and what is not said here are this process's.
    """

    local_rank: int
    """Its number on this node."""
    global_rank: int
    """Its number in the round."""
    argv: tuple[str, ...]
    """The command."""
    environment: Mapping[str, str]
    """All of it: nothing else may be in the worker's."""
    round_variables: frozenset[str] = frozenset()
    """The names of those variables that differ from round to round, and that no library reads when it is imported."""
    processors: frozenset[int] | None = None
    """Those that it may run on, from its first instruction on; None: as this process."""
    stdout: int | None = None
    """The descriptor for its stdout: to be copied, not closed, and not kept; None: this process's own."""
    stderr: int | None = None
    """The same for its stderr."""
    terminal: bool = False
    """It keeps the terminal: this process's session and its foreground process group."""


class StartedProcess(Record, frozen=True, kw_only=True, eq=False):
    """A worker's process that runs.

    It leads a session and a process group of its own, unless it keeps the terminal: stops signal that group.
    """

    pid: int
    """Its number."""
    reap: Callable[[], int | None] | None = None
    """For a process that is no child of this one: gives its exit code, -N for death by signal N, None while it runs.
    Until it has, the number may not become another's. None: it is a child, and the agent reaps it, nobody else."""


class WorkerStarter:
    """Starts workers' processes, those that it wants. Subclass it, and override what you need.

    The sweep finds what a worker leaves behind by the variable `ELASTIC_INCARNATION` of the environment that a process
    was started with. One that was started before it was to be a worker must have had it then, too.

    Threading: the agent's loop. Every call is awaited by all that the agent does, so none may block.
    """

    def start(self, worker: WorkerStart) -> StartedProcess | None:
        """Start this worker; None: it is to be started by somebody else."""
        return None

    def round_started(self) -> None:
        """React to the start of all workers of a round. Called: after `start` for each of them."""

    def round_stopping(self) -> None:
        """React to the beginning of a stop. Called: before workers are signalled, maybe several times."""

    def worker_ended(self, pid: int) -> None:
        """React to the end of a worker that this starter has started. Called: when it was reaped."""

    def pids(self) -> Collection[int]:
        """Return its processes that are no workers: the sweep leaves them and what they start alone.

        They are its own to end and to reap.
        """
        return ()

    def close(self) -> None:
        """End what it has; no worker runs any more. Idempotent."""


class CallStarter(WorkerStarter):
    """Starts workers that run no program: only an embedding program brings one, with what it wants called."""

    def prepare(self, count: int, done: Callable[[], None]) -> None:
        """Make what so many workers need ahead of their start, and call `done`. Called: before each round's start."""
        done()

    def value(self, local_rank: int) -> object:
        """Return what the last worker of a local rank has returned; None where it did not.

        Raises:
            WorkerError: it can't be loaded in this process.
        """
        return None


class BegunCall(Protocol):
    """A call whose workers can be started, by an agent that is still to be made."""

    @property
    def warnings(self) -> Sequence[str]:
        """Lines for people."""
        ...

    def on(self, loop: AgentLoop) -> CallStarter:
        """Return what starts the workers of an agent with this loop."""
        ...

    def close(self) -> None:
        """End what `begin` has started."""
        ...


class WorkerCall(Protocol):
    """What workers do that run no program: a function, called in a process of its own."""

    @property
    def name(self) -> str:
        """For people."""
        ...

    @property
    def start_method(self) -> str:
        """How its processes begin, for people."""
        ...

    def begin(self) -> BegunCall:
        """Get ready. Called: once a run, before any thread of ours is started, which a fork would not survive."""
        ...


class ReactorLoop:
    """A reactor as starters have it.

    Args:
        reactor: The loop.
        log: Takes lines for people.
        own_process: As of `AgentLoop`.
    """

    def __init__(self, reactor: "Reactor", *, log: "Logger", own_process: bool = False) -> None:
        self.call_later: Callable[[float, Callable[[], None]], RunTimer] = reactor.call_later
        self.post = reactor.post
        self.add_reader = reactor.add_reader
        self.remove_reader = reactor.remove_reader
        self.notice = log.notice
        self.own_process = own_process
