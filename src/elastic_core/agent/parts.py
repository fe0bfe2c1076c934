"""The parts that the agent's loop is wired to, its options, and its result."""

import signal
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, Protocol

from elastic_core import messages as m
from elastic_core.agent.machine.states import Ending
from elastic_core.processes.spec import WorkerLaunch
from elastic_core.reports import NodeReport
from elastic_core.types import Decision, FailedWorker, Failure, Record, Restart, Round, Stop, WorkerExit

Plan = Callable[[m.SpawnWorkers], list[WorkerLaunch]]
"""Gives the workers to start for a round."""


class Workers(Protocol):
    """The worker group, as the agent uses it."""

    @property
    def pids(self) -> Mapping[int, int]:
        """Return pid by local rank."""
        ...

    @property
    def alive(self) -> frozenset[int]:
        """Return the local ranks that have not ended."""
        ...

    @property
    def raised_s(self) -> Mapping[int, float]:
        """Return when the uncaught exception of a worker that lives came on record, on the reactor's clock."""
        ...

    def start(self, launches: Iterable[WorkerLaunch]) -> None:
        """Start them, or raise WorkerError."""
        ...

    def stop(self, signum: int, *, grace_s: float) -> None:
        """Run the stop ladder; a second call can shorten the grace period."""
        ...

    def kill(self) -> None:
        """Cut the ladder short."""
        ...

    def forward(self, signum: int) -> None:
        """Send a signal to each worker."""
        ...

    def suspend(self) -> None:
        """Stop them as a terminal would."""
        ...

    def resume(self) -> None:
        """Have them go on."""
        ...

    def reap(self) -> None:
        """Look for ended workers: where the kernel has no pidfds."""
        ...


class Reporter(Protocol):
    """The reader of what failed workers left, and the launcher's own lines."""

    def failed_workers(self) -> tuple[FailedWorker, ...]:
        """Return what the last examination found."""
        ...

    def report(self, round_: Round, exits: Sequence[WorkerExit], restart_count: int, *, ordered_s: float) -> NodeReport:
        """Return what this node has seen, for a decision about the whole run."""
        ...

    def merge(self, reports: Sequence[NodeReport], restarts: int) -> tuple[Failure, str]:
        """Return the first cause among those of all nodes, and what is known of it, as text."""
        ...

    def notice(self, text: str) -> None:
        """Print one line."""
        ...

    def examine(self, round_: Round, exits: Iterable[WorkerExit], restart_count: int) -> Failure:
        """Return the first cause."""
        ...

    def decided(self, failure: Failure, decision: Decision, fallback_reason: str) -> None:
        """Print what happens next."""
        ...

    def followed(self, failure: Failure, decision: Restart | Stop, evidence: str, *, restarts: int) -> None:
        """Print what was decided for the whole run."""
        ...

    def restarted(self, *, rendezvous_s: float, start_s: float) -> None:
        """Add to the last incident what the restart after it took."""
        ...

    def record(
        self,
        round_: Round | None,
        exits: Iterable[WorkerExit],
        failure: Failure,
        decision: Decision,
        *,
        evidence: str,
        stop_s: float | None,
    ) -> int:
        """Write the incident, print it if it ends the run, and return the run's exit code."""
        ...


DEFAULT_SIGNALS: Final = ("SIGTERM", "SIGINT", "SIGHUP", "SIGQUIT")
ENDING_SIGNALS: Final = frozenset({signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT})
"""Those that workers end by, too; a notice by another one is the agent's alone."""
_FORWARDED: Final = frozenset({signal.SIGUSR1, signal.SIGUSR2})


class StopSettings(Record, frozen=True, kw_only=True):
    """What ends the run, and how long workers have to end."""

    signals_to_handle: tuple[str, ...] = DEFAULT_SIGNALS
    shutdown_timeout_s: float = 30.0
    exit_timeout_s: float = 5.0
    """How long a worker whose uncaught exception is on record may take to end; 0: for ever."""
    preemption_signal: str = ""
    """One that ends the run on this node, too; empty: none does."""

    @property
    def ending(self) -> tuple[int, ...]:
        """The signals that end the run, of those that are handled."""
        return tuple(sorted((self._listed() & ENDING_SIGNALS) | self._notice()))

    @property
    def forwarded(self) -> tuple[int, ...]:
        """The signals that are for the workers, and never end the run."""
        return tuple(sorted((self._listed() | _FORWARDED) - ENDING_SIGNALS - self._notice()))

    def _listed(self) -> set[int]:
        return {signal.Signals[name] for name in self.signals_to_handle}

    def _notice(self) -> set[int]:
        return {signal.Signals[self.preemption_signal]} if self.preemption_signal else set()


class AgentOptions(Record, frozen=True, kw_only=True):
    """The loop's own settings."""

    run_id: str
    node_id: str
    run_dir: str
    pid: int
    stops: StopSettings = StopSettings(signals_to_handle=(), exit_timeout_s=0.0)
    join_timeout_s: float = 600.0
    """How long a hook may refuse where no other node can go on without this one."""
    start_up: Mapping[str, float] = {}
    """What this process has done before, in order, each with when it ended in monotonic seconds."""
    keep_interrupt: bool = False
    """SIGINT belongs to a worker that has the terminal (`--debug-rank`): the agent lets it pass."""
    longest_option_s: float = 0.0
    """The longest time that the user gave an option of a hook (`--save-timeout`); 0: none."""


class AgentResult(Record, frozen=True, kw_only=True):
    """How the run ended on this node."""

    exit_code: int
    reason: str
    ending: Ending
