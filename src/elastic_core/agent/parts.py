"""The parts to which the agent's loop is connected, its options, and its result."""

import signal
from collections.abc import Callable
from typing import Final, Protocol

from elastic_core import messages as m
from elastic_core.moments import AgentStarted
from elastic_core.processes.spec import WorkerLaunch
from elastic_core.types import Record, Round


class Planner(Protocol):
    """Plans the start of workers. Threading: the agent's loop."""

    def before_join(self, done: Callable[[], None]) -> None:
        """Prepare what can be prepared before this node asks for its first place, then call `done`."""

    def prepare(self, round_: Round, done: Callable[[], None]) -> None:
        """Create the files that a round's workers need, then call `done`."""

    def plan(self, command: m.SpawnWorkers) -> list[WorkerLaunch]:
        """Return the workers to start for a round."""


DEFAULT_SIGNALS: Final = ("SIGTERM", "SIGINT", "SIGHUP", "SIGQUIT")
ENDING_SIGNALS: Final = frozenset({signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT})
"""The signals by which workers end, too; another signal as a preemption notice is for the agent only."""
_FORWARDED: Final = frozenset({signal.SIGUSR1, signal.SIGUSR2})


class StopSettings(Record, frozen=True, kw_only=True):
    """The signals that end the run, and the time that workers have to end."""

    signals_to_handle: tuple[str, ...] = DEFAULT_SIGNALS
    shutdown_timeout_s: float = 30.0
    exit_timeout_s: float = 5.0
    """How long a worker with a recorded uncaught exception may take to end, in seconds; 0 means no limit."""
    preemption_signal: str = ""
    """An additional signal that ends the run on this node; empty means none."""

    @property
    def ending(self) -> tuple[int, ...]:
        """The handled signals that end the run."""
        return tuple(sorted((self._listed() & ENDING_SIGNALS) | self._notice()))

    @property
    def forwarded(self) -> tuple[int, ...]:
        """The signals that are forwarded to the workers, and never end the run."""
        return tuple(sorted((self._listed() | _FORWARDED) - ENDING_SIGNALS - self._notice()))

    def _listed(self) -> set[int]:
        return {signal.Signals[name] for name in self.signals_to_handle}

    def _notice(self) -> set[int]:
        return {signal.Signals[self.preemption_signal]} if self.preemption_signal else set()


class AgentOptions(Record, frozen=True, kw_only=True):
    """The options of the loop."""

    started: AgentStarted
    """The first moment: the run, this node, and the agent's process."""
    stops: StopSettings = StopSettings(signals_to_handle=(), exit_timeout_s=0.0)
    join_timeout_s: float = 600.0
    """How long a hook may refuse if no other node can continue without this one, in seconds."""
    keep_interrupt: bool = False
    """Whether SIGINT is for a worker that has the terminal (`--debug-rank`), so that the agent ignores it."""
    longest_option_s: float = 0.0
    """The longest time in the user's hook options (`--save-timeout`), in seconds; 0 means none."""
