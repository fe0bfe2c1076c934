"""The agent's hook behind `attempt()`, on in every run."""

from pathlib import Path
from typing import ClassVar, Final

from elastic_core.api import (
    AgentHook,
    DecisionTaken,
    HookSettings,
    Launches,
    MembershipChanged,
    Power,
    Restart,
    WorkersStarting,
    WorkersStopping,
)
from elastic_train.last_round import BY_FAILURE, BY_MEMBERSHIP, BY_RESTART, FILE_VARIABLE, LastRound, leave

_FILE: Final = "last_round.json"


class Training(AgentHook):
    """Writes for each round's workers how the previous round ended, for `attempt()`."""

    api_version: ClassVar[int] = 1
    powers: ClassVar[frozenset[Power]] = frozenset({Power.RUN, Power.LAUNCHES})

    def __init__(self, settings: HookSettings) -> None:
        """Know no round yet."""
        super().__init__(settings)
        self._round: tuple[int, int] | None = None
        """Index and world size of the last one whose workers were started here."""
        self._end: tuple[str, str] | None = None
        """What has ended it, and a line about that."""
        self._stopping = ""

    def on_decision(self, event: DecisionTaken) -> None:
        """Note a failure that leads to a restart."""
        if isinstance(event.decision, Restart):
            self._note(BY_FAILURE, event.failure.summary)

    def on_membership_changed(self, event: MembershipChanged) -> None:
        """Note that nodes joined or left."""
        self._note(BY_MEMBERSHIP, getattr(event.change, "reason", "nodes came or went"))

    def on_workers_stopping(self, event: WorkersStopping) -> None:
        """Note the reason of the stop, which counts if neither a failure nor a membership change is noted."""
        self._stopping = event.reason

    def _note(self, end: str, reason: str) -> None:
        if self._end is None:  # an event while workers are being stopped did not end the round
            self._end = end, reason

    def on_workers_starting(self, event: WorkersStarting) -> Launches | None:
        """Write the file for a round that follows one of this node's, and set the variable with its path."""
        if event.asked_again:
            return None
        path = Path(self.run.run_dir()) / _FILE
        last = None
        if self._round is not None:
            index, world_size = self._round
            end, reason = self._end or (BY_RESTART, self._stopping)
            if index + 1 == event.round.index:  # else this node was not in the round before
                last = LastRound(world_size, end, reason)
            leave(path, last, before=event.round.index)
        self._round, self._end, self._stopping = (event.round.index, event.round.world_size), None, ""
        return Launches(environment={FILE_VARIABLE: str(path)})
