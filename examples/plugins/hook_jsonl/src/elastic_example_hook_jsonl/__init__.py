"""A hook that writes each moment of the agent's life as one JSON line into the run directory."""

from pathlib import Path
from typing import ClassVar

import msgspec

from elastic_core.api import (
    SYSTEM_CLOCK,
    AgentHook,
    AgentStarted,
    AgentStopped,
    DecisionTaken,
    Draining,
    FailureSeen,
    HookSettings,
    MembershipChanged,
    Moment,
    RoundJoined,
    WorkerEnded,
    WorkersStarted,
    WorkersStopping,
)

FILE_NAME = "moments.jsonl"


class MomentLog(AgentHook):
    """Writes `{"moment": …, "at_ns": …, <the moment's fields>}` a line; the file is whole after each line."""

    api_version: ClassVar[int] = 1

    def __init__(self, settings: HookSettings) -> None:
        """Open nothing yet: the run directory is there when the agent has started."""
        super().__init__(settings)
        self._path: Path | None = None

    def on_agent_started(self, event: AgentStarted) -> None:
        """Choose the file."""
        self._path = Path(event.run_dir) / FILE_NAME
        self._write(event)

    def on_round_joined(self, event: RoundJoined) -> None:
        """Note the round."""
        self._write(event)

    def on_workers_started(self, event: WorkersStarted) -> None:
        """Note the workers."""
        self._write(event)

    def on_worker_exited(self, event: WorkerEnded) -> None:
        """Note a worker's end."""
        self._write(event)

    def on_failure(self, event: FailureSeen) -> None:
        """Note the first cause."""
        self._write(event)

    def on_decision(self, event: DecisionTaken) -> None:
        """Note what the policy said."""
        self._write(event)

    def on_drain(self, event: Draining) -> None:
        """Note a stop signal."""
        self._write(event)

    def on_workers_stopping(self, event: WorkersStopping) -> None:
        """Note the stop ladder."""
        self._write(event)

    def on_membership_changed(self, event: MembershipChanged) -> None:
        """Note nodes that come and go."""
        self._write(event)

    def on_agent_stopped(self, event: AgentStopped) -> None:
        """Note the end."""
        self._write(event)

    def _write(self, event: Moment) -> None:
        if self._path is None:
            return
        line = {"moment": type(event).__name__, "at_ns": SYSTEM_CLOCK.wall_ns(), **msgspec.to_builtins(event)}
        with self._path.open("ab") as file:
            file.write(msgspec.json.encode(line) + b"\n")
