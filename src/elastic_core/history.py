"""The failures that a run has had, for its policy: all are counted, the last ones are kept. Pure.

All nodes of a run read its history with every decision, so it is bounded.
"""

from collections.abc import Sequence
from typing import Final

from msgspec.structs import replace

from elastic_core.types import Decision, Failure, FailureClass, Ignore, Restart

HISTORY_LIMIT: Final = 64
"""How many failures are kept; those before are in the counts of the last one (`Failure.spent`, `rule_counts`)."""
TEXT_CHARS: Final = 200
"""How much of a message or a summary is kept."""
RULES_LIMIT: Final = 64
"""Of how many rules it is counted how often they have decided: those that decided last."""
NAME_CHARS: Final = 100
"""How much of an exception's name is kept, and of the reason that a decision gave."""
EXCLUDED_LIMIT: Final = 8
"""How many of the nodes that a decision leaves out are kept."""


def cost_a_restart(past: Failure) -> bool:
    """Return whether a failure has cost a restart of the budget."""
    return isinstance(past.decision, Restart) and past.failure_class is not FailureClass.PREEMPTED


def spent(history: Sequence[Failure]) -> int:
    """Return how many restarts all failures up to now have cost, however long ago."""
    return max(history[-1].spent if history else 0, sum(map(cost_a_restart, history)))


def remembered(history: Sequence[Failure], failure: Failure) -> tuple[Failure, ...]:
    """Return a history with one more failure, and what is too much of it left out."""
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
