"""The agent's side of what a training script may use: on in every run."""

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
    """Leaves for the workers of each round what the round before was, for `attempt()`."""

    api_version: ClassVar[int] = 1
    powers: ClassVar[frozenset[Power]] = frozenset({Power.RUN, Power.LAUNCHES})

    def __init__(self, settings: HookSettings) -> None:
        """Know of no round."""
        super().__init__(settings)
        self._round: tuple[int, int] | None = None
        """Index and world size of the last one whose workers were started here."""
        self._end: tuple[str, str] | None = None
        """What has ended it, and a line about that."""
        self._stopping = ""

    def on_decision(self, event: DecisionTaken) -> None:
        """Note a failure that is answered with a restart."""
        if isinstance(event.decision, Restart):
            self._note(BY_FAILURE, event.failure.summary)

    def on_membership_changed(self, event: MembershipChanged) -> None:
        """Note that nodes came or went."""
        self._note(BY_MEMBERSHIP, getattr(event.change, "reason", "nodes came or went"))

    def on_workers_stopping(self, event: WorkersStopping) -> None:
        """Note what the stop is for, which counts where neither of the others is known."""
        self._stopping = event.reason

    def _note(self, end: str, reason: str) -> None:
        if self._end is None:  # what comes while workers are stopped did not end the round
            self._end = end, reason

    def on_workers_starting(self, event: WorkersStarting) -> Launches | None:
        """Leave the file for a round that follows one of this node's, and say where it is."""
        if event.asked_again:
            return None
        path = Path(self.run.run_dir()) / _FILE
        last = None
        if self._round is not None:
            index, world_size = self._round
            end, reason = self._end or (BY_RESTART, self._stopping)
            if index + 1 == event.round.index:  # else there was one that this node was not in
                last = LastRound(world_size, end, reason)
            leave(path, last, before=event.round.index)
        self._round, self._end, self._stopping = (event.round.index, event.round.world_size), None, ""
        return Launches(environment={FILE_VARIABLE: str(path)})
