"""The comparison of a rule with a failure, with the reason of a mismatch."""

from collections.abc import Sequence

from elastic_core.api import Failure, FailureClass
from elastic_policy_rules.book import Match, Pattern, Rule


def mismatch(rule: Rule, failure: Failure, history: Sequence[Failure], fatal_exit_codes: Sequence[int]) -> str:
    """Return why a rule does not match; empty if it matches."""
    if rule.restarts:
        hopeless = _hopeless(rule, failure, fatal_exit_codes)
        if hopeless:
            return hopeless
    if rule.action == "ignore" and not can_ignore(failure):
        return "no worker failed that others could go on without"
    return _unlike(rule.match, failure, history)


def can_ignore(failure: Failure) -> bool:
    """Return whether the run can continue with the failure ignored: a worker failed, or the failure is a straggler."""
    return failure.local_rank is not None or failure.failure_class is FailureClass.STRAGGLER


def _hopeless(rule: Rule, failure: Failure, fatal_exit_codes: Sequence[int]) -> str:
    if not failure.retryable and failure.failure_class not in rule.match.classes:
        return f"another try would fail in the same way; 'class: {failure.failure_class.value}' would try all the same"
    if failure.exit_code in fatal_exit_codes:
        return f"exit code {failure.exit_code} is fatal (--fatal-exit-codes)"
    return ""


def _unlike(match: Match, failure: Failure, history: Sequence[Failure]) -> str:
    """Return the condition that does not match, the cheapest check first."""
    by_worker = failure.global_rank is not None
    if match.classes and failure.failure_class not in match.classes:
        return f"the class is {failure.failure_class.value!r}"
    if match.exceptions and not (failure.exception_type and _any(match.exceptions, failure.exception_type)):
        return f"the exception is {failure.exception_type!r}" if failure.exception_type else "there is no exception"
    if match.exit_codes and not (by_worker and _within(match.exit_codes, failure.exit_code)):
        return f"the exit code is {failure.exit_code}" if by_worker else "no worker failed"
    if match.signals and failure.signal not in match.signals:
        return f"the signal is {failure.signal}" if failure.signal is not None else "no signal killed it"
    if match.devices and failure.device_fault not in match.devices:
        return f"the device's fault is {failure.device_fault.value!r}" if failure.device_fault else "no device failed"
    if match.ranks and not (failure.global_rank is not None and _within(match.ranks, failure.global_rank)):
        return f"the rank is {failure.global_rank}" if by_worker else "no worker failed"
    if match.nodes and not _any(match.nodes, failure.node_id):
        return f"the node is {failure.node_id!r}"
    if match.under_s is not None and not failure.uptime_s < match.under_s:
        return f"the uptime is {failure.uptime_s:g} s"
    if match.over_s is not None and not failure.uptime_s >= match.over_s:
        return f"the uptime is {failure.uptime_s:g} s"
    return _unlike_in_text(match, failure) or _too_rare(match, failure, history)


def _unlike_in_text(match: Match, failure: Failure) -> str:
    if match.messages and not (_any(match.messages, failure.message) or _any(match.messages, failure.summary)):
        return "the message has none of the patterns"
    if match.logs and not _any(match.logs, failure.log_tail):
        return "the log has none of the patterns" if failure.log_tail else "no log was kept"
    return ""


def _too_rare(match: Match, failure: Failure, history: Sequence[Failure]) -> str:
    if match.repeats is None:
        return ""
    count = repeats(failure, history)
    return f"{count} of {match.repeats} without progress" if count < match.repeats else ""


def repeats(failure: Failure, history: Sequence[Failure]) -> int:
    """Return how often the same failure occurred since the run last made progress, this time included.

    Other failures in between don't count. Unknown progress counts as none.
    """
    mark, count, progress = identity(failure), 1, failure.progress
    for past in reversed(history):
        if past.progress is not None:
            if progress is not None and past.progress < progress:
                break
            progress = past.progress
        if identity(past) == mark:
            count += 1
    return count


def identity(failure: Failure) -> object:
    """Return the value by which two failures count as the same."""
    return failure.fingerprint or (failure.failure_class, failure.exception_type, failure.summary)


def _any(patterns: Sequence[Pattern], text: str) -> bool:
    return any(pattern.found(text) for pattern in patterns)


def _within(spans: Sequence[tuple[int, int]], number: int) -> bool:
    return any(first <= number <= last for first, last in spans)
