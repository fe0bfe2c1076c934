"""The hook by which a test knows what happened on a node: it writes down each moment, and read they are the same."""

from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar, Final

import msgspec

from elastic_core.api import (
    AgentHook,
    AgentStarted,
    AgentStopped,
    DecisionTaken,
    Draining,
    FailureSeen,
    Joining,
    MembershipChanged,
    Moment,
    RoundJoined,
    WorkerEnded,
    WorkersStarted,
    WorkersStarting,
    WorkersStopping,
)

FILE: Final = "kit-moments.jsonl"
"""In the run directory."""
_KINDS: Final[dict[str, type[Moment]]] = {
    kind.__name__: kind
    for kind in (
        AgentStarted,
        AgentStopped,
        DecisionTaken,
        Draining,
        FailureSeen,
        Joining,
        MembershipChanged,
        RoundJoined,
        WorkerEnded,
        WorkersStarted,
        WorkersStarting,
        WorkersStopping,
    )
}


class Recorder(AgentHook):
    """Appends each moment to a file, one JSON object a line: its kind, and the record."""

    api_version: ClassVar[int] = 2

    def on_agent_started(self, event: AgentStarted) -> None:
        """Write it down."""
        self._keep(event)

    def on_joining(self, event: Joining) -> None:
        """Write it down."""
        self._keep(event)

    def on_round_joined(self, event: RoundJoined) -> None:
        """Write it down."""
        self._keep(event)

    def on_workers_starting(self, event: WorkersStarting) -> None:
        """Write it down."""
        self._keep(event)

    def on_workers_started(self, event: WorkersStarted) -> None:
        """Write it down."""
        self._keep(event)

    def on_worker_exited(self, event: WorkerEnded) -> None:
        """Write it down."""
        self._keep(event)

    def on_failure(self, event: FailureSeen) -> None:
        """Write it down."""
        self._keep(event)

    def on_decision(self, event: DecisionTaken) -> None:
        """Write it down."""
        self._keep(event)

    def on_drain(self, event: Draining) -> None:
        """Write it down."""
        self._keep(event)

    def on_workers_stopping(self, event: WorkersStopping) -> None:
        """Write it down."""
        self._keep(event)

    def on_membership_changed(self, event: MembershipChanged) -> None:
        """Write it down."""
        self._keep(event)

    def on_agent_stopped(self, event: AgentStopped) -> None:
        """Write it down."""
        self._keep(event)

    def _keep(self, event: Moment) -> None:
        line = msgspec.json.encode((type(event).__name__, event))
        with (Path(self.settings.run_dir) / FILE).open("ab") as file:
            file.write(line + b"\n")


def read_moments(run_dir: Path) -> Iterator[Moment]:
    """Give the moments that were written down; a line that is being written is left for later."""
    try:
        text = (run_dir / FILE).read_bytes()
    except FileNotFoundError:
        return
    for line in text.splitlines(keepends=True):
        if line.endswith(b"\n"):
            name, record = msgspec.json.decode(line, type=tuple[str, msgspec.Raw])
            yield msgspec.json.decode(record, type=_KINDS[name])
