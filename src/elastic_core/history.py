"""The failures of a run, for its policy: all are counted, the last ones are kept. Pure.

The history is bounded, because all nodes of a run read it with every decision.
"""

from collections.abc import Sequence
from typing import Final

from msgspec.structs import replace

from elastic_core.types import Decision, Failure, FailureClass, Ignore, Restart

HISTORY_LIMIT: Final = 64
"""How many failures are kept. The counts of the last one (`Failure.spent`, `rule_counts`) include older ones."""
TEXT_CHARS: Final = 200
"""How many characters of a message or a summary are kept."""
RULES_LIMIT: Final = 64
"""For how many rules decisions are counted: those that decided last."""
NAME_CHARS: Final = 100
"""How many characters of an exception's name, and of a decision's reason, are kept."""
EXCLUDED_LIMIT: Final = 8
"""How many of the nodes that a decision excludes are kept."""


def cost_a_restart(past: Failure) -> bool:
    """Return whether a failure counted against the restart budget."""
    return isinstance(past.decision, Restart) and past.failure_class is not FailureClass.PREEMPTED


def spent(history: Sequence[Failure]) -> int:
    """Return how many restarts all failures so far have cost, including those that the history no longer has."""
    return max(history[-1].spent if history else 0, sum(map(cost_a_restart, history)))


def remembered(history: Sequence[Failure], failure: Failure) -> tuple[Failure, ...]:
    """Return a history with one more failure, shortened to its limits."""
    new = replace(
        failure,
        log_tail="",
        device_fault=None,
        summary=failure.summary[:TEXT_CHARS],
        message=failure.message[:TEXT_CHARS],
        exception_type=failure.exception_type[:NAME_CHARS],
        decision=_in_short(failure.decision),
        spent=spent(history) + cost_a_restart(failure),
        rule_counts=_counts(history, failure),
    )
    if history and history[-1].rule_counts:
        history = (*history[:-1], replace(history[-1], rule_counts=()))
    return (*history, new)[-HISTORY_LIMIT:]


def _in_short(decision: Decision | None) -> Decision | None:
    if isinstance(decision, Restart):
        nodes, times = decision.exclude_nodes[:EXCLUDED_LIMIT], decision.exclude_s[:EXCLUDED_LIMIT]
        return replace(decision, exclude_nodes=nodes, exclude_s=times, reason=decision.reason[:NAME_CHARS])
    return decision


def _counts(history: Sequence[Failure], failure: Failure) -> tuple[tuple[str, int], ...]:
    counts = dict(history[-1].rule_counts) if history else {}
    if isinstance(failure.decision, Restart | Ignore):
        rule = failure.decision.rule
        counts[rule] = counts.pop(rule, 0) + 1
    return tuple(counts.items())[-RULES_LIMIT:]
