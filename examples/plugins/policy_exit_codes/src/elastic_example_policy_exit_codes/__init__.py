"""A restart policy that believes exit codes: only the named ones are worth another try, and none too soon."""

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

    Where no worker is to blame (a node was lost, a health check refused), only the budget counts.
    """

    api_version: ClassVar[int] = 1
    options: ClassVar[Sequence[OptionSpec]] = (
        OptionSpec(name="retry", required=True, help="exit codes worth another try, separated by colons"),
        OptionSpec(name="cool_down", type="float", default=30.0, unit="seconds", help="least time between two starts"),
    )

    def __init__(self, settings: PolicySettings) -> None:
        """Read the options: names and types are checked already, what they mean is for us to judge."""
        super().__init__(settings)
        self._retry = _codes(str(settings.options["retry"]))
        self._cool_down_s = float(settings.options["cool_down"] or 0)
        if self._cool_down_s < 0:
            raise ConfigError(
                f"policy 'exit-codes': cool_down is {self._cool_down_s:g} s; 0 s or more is needed",
                hint="--policy-conf cool_down=30",
            )

    def decide(self, failure: Failure, history: Sequence[Failure]) -> Decision:
        """Answer from the failure and the run's earlier ones alone: no clock, no I/O."""
        if not failure.retryable:
            return Stop(reason=f"another try would fail again: {failure.summary}", rule="not-retryable")
        worker_to_blame = failure.global_rank is not None
        if worker_to_blame and failure.exit_code not in self._retry:
            return Stop(reason=f"exit code {failure.exit_code} is not one to try again after", rule="retry")
        restarts = sum(isinstance(past.decision, Restart) for past in history)
        if restarts >= self.settings.max_restarts:
            return Stop(reason=f"{restarts} restarts were not enough", rule="max-restarts")
        return Restart(delay_s=round(max(0.0, self._cool_down_s - failure.uptime_s), 1), rule="retry")


def _codes(text: str) -> frozenset[int]:
    words = text.split(":")
    if not all(word.isascii() and word.isdecimal() and 1 <= int(word) <= 255 for word in words):
        raise ConfigError(
            f"policy 'exit-codes': retry={text!r} is no list of exit codes from 1 to 255",
            hint="--policy-conf retry=75:137, where 75 is the script's own and 137 is 128 + SIGKILL",
        )
    return frozenset(map(int, words))
