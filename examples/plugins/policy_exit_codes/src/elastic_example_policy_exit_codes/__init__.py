"""A restart policy by exit code: only the named codes lead to a restart, and not before a cool-down."""

from collections.abc import Sequence
from typing import ClassVar

from elastic_core.api import (
    ConfigError,
    Decision,
    Failure,
    FailureHandler,
    OptionSpec,
    PolicySettings,
    Restart,
    Stop,
)


class ExitCodes(FailureHandler):
    """Restarts after the named exit codes, at most `--max-restarts` times, `cool_down` after the last start or later.

    If no worker failed (a node was lost, a health check refused), only the budget counts.
    """

    api_version: ClassVar[int] = 1
    options: ClassVar[Sequence[OptionSpec]] = (
        OptionSpec(
            name="retry", type="int", many=True, least=1, most=255, required=True, help="codes to try again after"
        ),
        OptionSpec(name="cool_down", type="duration", default=30.0, help="least time between two starts"),
    )

    def __init__(self, settings: PolicySettings) -> None:
        """Read the options; the core has checked names, types and bounds."""
        super().__init__(settings)
        self._retry = frozenset(settings.option_list("retry", int))
        self._cool_down_s = settings.option("cool_down", float)
        reserved = self._retry & {2, 3, 4}
        if reserved:
            raise ConfigError(
                f"policy 'exit-codes': retry has {min(reserved)}, which elastic itself returns",
                hint="--policy-conf retry=75:137, where 75 is a code of the script and 137 is 128 + SIGKILL",
            )

    def decide(self, failure: Failure, history: Sequence[Failure]) -> Decision:
        """Decide from the failure and the run's earlier failures alone: no clock, no I/O."""
        if not failure.retryable:
            return Stop(reason=f"another try would fail again: {failure.summary}", rule="not-retryable")
        of_a_worker = failure.global_rank is not None
        if of_a_worker and failure.exit_code not in self._retry:
            return Stop(reason=f"exit code {failure.exit_code} is not one to try again after", rule="retry")
        restarts = sum(isinstance(past.decision, Restart) for past in history)
        if restarts >= self.settings.max_restarts:
            return Stop(reason=f"{restarts} restarts were not enough", rule="max-restarts")
        return Restart(delay_s=round(max(0.0, self._cool_down_s - failure.uptime_s), 1), rule="retry")
