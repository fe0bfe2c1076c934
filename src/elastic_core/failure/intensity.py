"""The built-in restart policy: a budget of restarts, with a pause between quick ones."""

from collections.abc import Sequence
from typing import ClassVar, Final

from elastic_core.errors import ConfigError
from elastic_core.failure.handler import FailureHandler
from elastic_core.types import Decision, Failure, FailureClass, PolicySettings, Restart, Stop

QUICK_S: Final = 60.0
"""A failure later than this after the workers' start begins the pauses anew."""
LONGEST_BACKOFF_S: Final = 30.0


class Intensity(FailureHandler):
    """Restarts at most `--max-restarts` times in a run, or within `--restart-window`; the next failure ends it.

    The first restart comes at once; while the workers fail within 60 s of their start, the next ones wait 0.5, 1, 2 …
    30 s (`--restart-backoff` is the first of these, 0 turns them off). What a retry can't mend is not retried: an exit
    code of `--fatal-exit-codes`, a script that is missing or can't be compiled. Preemption costs no budget, ignored
    failures cost none either.

    Threading: pure; called on the supervisor's thread.

    Raises:
        ConfigError: a setting is out of range.
    """

    api_version: ClassVar[int] = 1

    def __init__(self, settings: PolicySettings) -> None:
        """Check the settings."""
        super().__init__(settings)
        if settings.max_restarts < 0:
            raise ConfigError(f"--max-restarts is {settings.max_restarts}; 0 (none) or more is needed")
        if settings.restart_window_s is not None and not settings.restart_window_s > 0:
            raise ConfigError(f"--restart-window is {settings.restart_window_s:g} s; more than 0 is needed")
        if not settings.restart_backoff_s >= 0:
            raise ConfigError(f"--restart-backoff is {settings.restart_backoff_s:g} s; 0 (none) or more is needed")

    def decide(self, failure: Failure, history: Sequence[Failure]) -> Decision:
        """Return Restart while there is budget left and another try can help, else Stop."""
        if not failure.retryable:
            return Stop(reason="another try would fail in the same way", rule="not-retryable")
        if failure.exit_code in self.settings.fatal_exit_codes:
            return Stop(reason=f"exit code {failure.exit_code} is fatal (--fatal-exit-codes)", rule="fatal-exit-codes")
        if failure.failure_class is FailureClass.PREEMPTED:
            return Restart(rule="preempted")
        paid = [past for past in history if _cost_a_restart(past)]
        if self._spent(paid, failure) >= self.settings.max_restarts:
            return Stop(reason=self._why_not(), rule="max-restarts")
        return Restart(delay_s=self._backoff_s(failure, paid), rule="max-restarts")

    def explain(self, failure: Failure, history: Sequence[Failure]) -> Sequence[str]:
        """Return how much of the budget was used before."""
        spent = self._spent([past for past in history if _cost_a_restart(past)], failure)
        window_s = self.settings.restart_window_s
        within = "" if window_s is None else f" within {window_s:g} s"
        return (f"{spent} of {self.settings.max_restarts} restarts{within} were used before (--max-restarts)",)

    def _spent(self, paid: Sequence[Failure], failure: Failure) -> int:
        window_s = self.settings.restart_window_s
        if window_s is None:
            return len(paid)
        return sum(1 for past in paid if failure.at_s - past.at_s < window_s)

    def _why_not(self) -> str:
        budget, window_s = self.settings.max_restarts, self.settings.restart_window_s
        if budget == 0:
            return "no restarts are allowed (--max-restarts 0)"
        within = "" if window_s is None else f" within {window_s:g} s"
        return f"restart budget of {budget}{within} used up"

    def _backoff_s(self, failure: Failure, paid: Sequence[Failure]) -> float:
        """Double the pause with each quick failure in a row; the first restart of a row comes at once."""
        if failure.uptime_s > QUICK_S:
            return 0.0
        row = 0
        for past in reversed(paid):
            row += 1
            if past.uptime_s > QUICK_S:
                break
        if row == 0:
            return 0.0
        base_s = self.settings.restart_backoff_s
        doublings = min(row - 1, 64)  # far beyond the cap, and no float overflows
        return min(base_s * 2.0**doublings, max(base_s, LONGEST_BACKOFF_S))


def _cost_a_restart(past: Failure) -> bool:
    return isinstance(past.decision, Restart) and past.failure_class is not FailureClass.PREEMPTED
