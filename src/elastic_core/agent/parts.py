"""The parts that the agent's loop is wired to, its options, and its result."""

import signal
from collections.abc import Callable, Mapping
from typing import Final, Protocol

from elastic_core import messages as m
from elastic_core.agent.machine.states import AgentEnd
from elastic_core.processes.spec import WorkerLaunch
from elastic_core.types import Record, Round


class Planner(Protocol):
    """Plans the start of workers. Threading: the agent's loop."""

    def prepare(self, round_: Round, done: Callable[[], None]) -> None:
        """Have made what a round's workers need on disk, and call `done`."""
        ...

    def plan(self, command: m.SpawnWorkers) -> list[WorkerLaunch]:
        """Return the workers to start for a round."""
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
    ending: AgentEnd
