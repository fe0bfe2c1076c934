"""The built-in restart policy: a budget of restarts, with a pause between quick ones."""

from collections.abc import Sequence
from typing import ClassVar, Final

from elastic_core.errors import ConfigError
from elastic_core.failure.handler import FailureHandler
from elastic_core.history import HISTORY_LIMIT, cost_a_restart, spent
from elastic_core.types import Decision, Failure, FailureClass, Ignore, PolicySettings, Restart, Stop

QUICK_S: Final = 60.0
"""A failure later than this after the workers' start resets the pauses, in seconds."""
LONGEST_BACKOFF_S: Final = 30.0


class Intensity(FailureHandler):
    """Restarts at most `--max-restarts` times in a run, or within `--restart-window`; the next failure ends the run.

    The first restart is immediate. While workers fail within 60 s of their start, the next restarts wait 0.5, 1, 2 … 30
    s (`--restart-backoff` sets the first pause, 0 disables them). Failures that a restart can't repair end the run:
    exit codes in `--fatal-exit-codes`, a missing script, or one that can't be compiled. A straggler is ignored.
    Preemptions and ignored failures cost no budget.

    If the same exception repeats at the same place and the run made no progress in between, the restart line reports
    that. The `--same-failure-limit`-th such failure in a row ends the run. Progress is a higher step of `heartbeat` or
    `should_stop`; if workers call neither, it is more than 60 s of uptime.

    Threading: pure; called on the supervisor's thread.

    Raises:
        ConfigError: a setting is out of range.
    """

    api_version: ClassVar[int] = 1

    def __init__(self, settings: PolicySettings) -> None:
        """Check the settings."""
        super().__init__(settings)
        if settings.max_restarts < 0:
            raise ConfigError(f"--max-restarts is {settings.max_restarts}; expected 0 (none) or more")
        if settings.restart_window_s is not None and not settings.restart_window_s > 0:
            raise ConfigError(f"--restart-window is {settings.restart_window_s:g} s; expected more than 0")
        limit = settings.same_failure_limit
        if limit is not None and limit < 2:
            raise ConfigError(f"--same-failure-limit is {limit}; expected 2 or more")
        if limit is not None and limit > HISTORY_LIMIT:
            raise ConfigError(f"--same-failure-limit is {limit}; expected {HISTORY_LIMIT} or less")
        if settings.restart_window_s is not None and settings.max_restarts > HISTORY_LIMIT:
            raise ConfigError(
                f"--max-restarts is {settings.max_restarts}; expected {HISTORY_LIMIT} or less with --restart-window",
                hint=f"--max-restarts {HISTORY_LIMIT}, or no --restart-window",
            )
        if not settings.restart_backoff_s >= 0:
            raise ConfigError(f"--restart-backoff is {settings.restart_backoff_s:g} s; expected 0 (none) or more")

    def decide(self, failure: Failure, history: Sequence[Failure], *, used: int | None = None) -> Decision:
        """Return Restart if budget is left and a restart can help, else Stop.

        `used` is the part of the budget that is used; `None` means the cost of all failures.
        """
        if failure.failure_class is FailureClass.STRAGGLER:
            return Ignore(rule="straggler")
        if not failure.retryable:
            return Stop(reason="another try would fail in the same way", rule="not-retryable")
        if failure.exit_code in self.settings.fatal_exit_codes:
            return Stop(reason=f"exit code {failure.exit_code} is fatal (--fatal-exit-codes)", rule="fatal-exit-codes")
        if failure.failure_class is FailureClass.PREEMPTED:
            return Restart(rule="preempted")
        row = _same_in_a_row(failure, history)
        limit = self.settings.same_failure_limit
        if limit is not None and row >= limit:
            return Stop(reason=f"{_in_words(row)} (--same-failure-limit {limit})", rule="same-failure-limit")
        paid = [past for past in history if cost_a_restart(past)]
        if self._spent(history, paid, failure, used) >= self.settings.max_restarts:
            return Stop(reason=self._why_not(), rule="max-restarts")
        reason = _in_words(row) if row > 1 else _after_a_change(failure, history)
        return Restart(delay_s=self._backoff_s(failure, paid), rule="max-restarts", reason=reason)

    def explain(self, failure: Failure, history: Sequence[Failure], *, used: int | None = None) -> Sequence[str]:
        """Return a line about the budget used before; `used` as for `decide`."""
        used = self._spent(history, [past for past in history if cost_a_restart(past)], failure, used)
        window_s = self.settings.restart_window_s
        within = "" if window_s is None else f" within {window_s:g} s"
        return (f"{used} of {self.settings.max_restarts} restarts{within} were used before (--max-restarts)",)

    def _spent(self, history: Sequence[Failure], paid: Sequence[Failure], failure: Failure, used: int | None) -> int:
        window_s = self.settings.restart_window_s
        if window_s is None:
            return spent(history) if used is None else used
        return sum(1 for past in paid if failure.at_s - past.at_s < window_s)

    def _why_not(self) -> str:
        budget, window_s = self.settings.max_restarts, self.settings.restart_window_s
        if budget == 0:
            return "no restarts are allowed (--max-restarts 0)"
        within = "" if window_s is None else f" within {window_s:g} s"
        return f"restart budget of {budget}{within} used up"

    def _backoff_s(self, failure: Failure, paid: Sequence[Failure]) -> float:
        """Return the pause, which doubles with each quick failure in a row; the first restart of a row has none."""
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
        doublings = min(row - 1, 64)  # far above the limit, without float overflow
        return min(base_s * 2.0**doublings, max(base_s, LONGEST_BACKOFF_S))


# --- what a restart can't mend


def _same_in_a_row(failure: Failure, history: Sequence[Failure]) -> int:
    """Return how many failures in a row, including this one, are the same exception without progress in between."""
    row, newer = 1, failure
    for past in reversed(history):
        known = newer.exception_type and newer.fingerprint
        same = (newer.exception_type, newer.fingerprint) == (past.exception_type, past.fingerprint)
        if not known or not same or _got_further(newer, past):
            break
        row, newer = row + 1, past
    return row


def _got_further(failure: Failure, past: Failure) -> bool:
    if failure.progress is None or past.progress is None:
        return failure.uptime_s > QUICK_S
    return failure.progress > past.progress


def _in_words(row: int) -> str:
    return f"the same failure {row} times in a row, and no step between"


def _after_a_change(failure: Failure, history: Sequence[Failure]) -> str:
    """Return a remark on an exception soon after a membership change: the script may not fit the new size."""
    before = (history[-1].membership_changes or 0) if history else 0
    changed = failure.membership_changes is not None and failure.membership_changes > before
    at_once = failure.exception_type and failure.uptime_s <= QUICK_S
    return "at once after nodes had come or gone" if changed and at_once else ""
