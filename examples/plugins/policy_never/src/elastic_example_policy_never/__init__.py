"""A restart policy: some exceptions are not worth another try; all others are, within the budget."""

from collections.abc import Sequence
from typing import ClassVar

from elastic_core.api import (
    Decision,
    Failure,
    FailureHandler,
    OptionSpec,
    PolicySettings,
    Restart,
    Stop,
)


class NeverRetry(FailureHandler):
    """Stops at once on the named exceptions; else restarts at most `--max-restarts` times, after a fixed pause."""

    api_version: ClassVar[int] = 1
    options: ClassVar[Sequence[OptionSpec]] = (
        OptionSpec(name="exceptions", many=True, required=True, help="exception types that end the run"),
        OptionSpec(name="pause", type="duration", default=0.0, help="wait before each restart"),
    )

    def __init__(self, settings: PolicySettings) -> None:
        """Read the options, which are checked and converted already."""
        super().__init__(settings)
        self._never = frozenset(settings.option_list("exceptions", str))
        self._pause_s = settings.option("pause", float)

    def decide(self, failure: Failure, history: Sequence[Failure]) -> Decision:
        """Answer from the failure and the run's earlier ones alone: no clock, no I/O."""
        name = failure.exception_type.rpartition(".")[2]
        if name in self._never:
            return Stop(reason=f"{name} is never retried", rule="exceptions")
        if not failure.retryable:
            return Stop(reason=f"another try would fail again: {failure.summary}", rule="not-retryable")
        restarts = sum(isinstance(past.decision, Restart) for past in history)
        if restarts >= self.settings.max_restarts:
            return Stop(reason=f"{restarts} restarts were not enough", rule="max-restarts")
        return Restart(delay_s=self._pause_s, rule="max-restarts")
