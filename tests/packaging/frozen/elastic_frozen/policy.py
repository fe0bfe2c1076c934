"""A policy that looks at everything that a failure tells."""

from collections.abc import Sequence
from typing import ClassVar

from elastic_core.api import (
    Decision,
    Failure,
    FailureClass,
    FailureHandler,
    Ignore,
    OptionSpec,
    PolicySettings,
    Restart,
    Stop,
)


class Careful(FailureHandler):
    """Restarts within the budget, with a growing delay; not after mistakes, and not on the node that is to blame."""

    api_version: ClassVar[int] = 1
    options: ClassVar[Sequence[OptionSpec]] = (
        OptionSpec(name="first_delay", type="float", default=0.0, unit="seconds", help="doubled with each restart"),
        OptionSpec(name="ignored_rank", type="int", help="a rank whose end does not matter"),
        OptionSpec(name="done_on", default="EnoughError", help="exception type that ends the run well"),
    )

    def __init__(self, settings: PolicySettings) -> None:
        """Read the options."""
        super().__init__(settings)
        self._delay_s = float(settings.options["first_delay"] or 0)

    def decide(self, failure: Failure, history: Sequence[Failure]) -> Decision:
        """Answer from the failure and the run's earlier ones alone."""
        if failure.exception_type.endswith(str(self.settings.options["done_on"])):
            return Stop(reason="enough", outcome="done", rule="done-on")
        if failure.global_rank is not None and failure.global_rank == self.settings.options["ignored_rank"]:
            return Ignore(rule="ignored-rank")
        if failure.failure_class is FailureClass.USAGE or not failure.retryable:
            return Stop(reason=f"another try would fail again: {failure.summary}", rule="not-retryable")
        if failure.exit_code in self.settings.fatal_exit_codes:
            return Stop(reason=f"exit code {failure.exit_code}", rule="fatal-exit-codes")
        restarts = sum(isinstance(past.decision, Restart) for past in history)
        if restarts >= self.settings.max_restarts:
            return Stop(reason=f"{restarts} restarts were not enough", rule="max-restarts")
        return Restart(delay_s=self._delay_s * 2**restarts, rule="max-restarts")
