"""The failures that a run has had, for its policy: counted for ever, kept within bounds. Pure.

All nodes of a run read its history with every decision, so what lies long ago is kept short: of the last few failures
everything, of the others what a budget, a window and a rule count.
"""

from collections.abc import Sequence
from typing import Final, Self

import msgspec
from msgspec.structs import replace

from elastic_core.types import Decision, Failure, FailureClass, Ignore, Restart

RECENT_LIMIT: Final = 16
"""How many failures are kept whole."""
HISTORY_LIMIT: Final = 500
"""How many are kept at all; those before are in the counts of the others (`Failure.spent`)."""
TEXT_CHARS: Final = 400
"""How much of a message or a summary is kept."""
RULES_LIMIT: Final = 64
"""Of how many rules it is counted how often they have decided: those that decided last."""
NAME_CHARS: Final = 200
"""How much of an exception's name is kept, and of the reason that a decision gave."""
WORDS_CHARS: Final = 8_192
"""How much text is kept of all old failures together, from the youngest on: each may have a fingerprint of its own."""
EXCLUDED_LIMIT: Final = 8
"""How many of the nodes that a decision leaves out are kept."""
_WORD_CHARS: Final = 80
"""The longest summary that is kept of an old failure without a fingerprint, as what it is known by."""
_DECISIONS: Final = {kind.__name__: kind for kind in (Restart, Ignore)}


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
    every = (*history, new)[-HISTORY_LIMIT:]
    if len(every) <= RECENT_LIMIT:
        return every
    aged = every[-RECENT_LIMIT - 1]
    return (*every[: -RECENT_LIMIT - 1], replace(aged, message="") if aged.message else aged, *every[-RECENT_LIMIT:])


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


class _Row(msgspec.Struct, frozen=True, array_like=True):
    """An old failure. What is text is the index of a word."""

    failure_class: int
    node: int
    fingerprint: int
    exception: int
    summary: int
    decision: int
    rule: int
    round_index: int
    at_s: float
    uptime_s: float
    exit_code: int
    spent: int
    progress: int | None
    excluded: bool


class OldFailures(msgspec.Struct, frozen=True, array_like=True):
    """The older part of a history, as it is written: forty bytes for each failure, and each word once."""

    words: tuple[str, ...] = ()
    rows: tuple[_Row, ...] = ()

    @classmethod
    def of(cls, failures: Sequence[Failure]) -> Self:
        """Put failures into rows."""
        words: dict[str, int] = {"": 0}
        room = WORDS_CHARS

        def word(text: str) -> int:
            nonlocal room
            if text not in words:
                if len(text) > room:
                    return 0
                room -= len(text)
            return words.setdefault(text, len(words))

        rows = [
            _Row(
                failure_class=word(past.failure_class.value),
                node=word(past.node_id),
                fingerprint=word(past.fingerprint),
                exception=word(past.exception_type),
                summary=word("" if past.fingerprint or len(past.summary) > _WORD_CHARS else past.summary),
                decision=word(type(past.decision).__name__),
                rule=word(past.decision.rule if past.decision is not None else ""),
                round_index=past.round_index,
                at_s=past.at_s,
                uptime_s=past.uptime_s,
                exit_code=past.exit_code,
                spent=past.spent,
                progress=past.progress,
                excluded=isinstance(past.decision, Restart) and past.node_id in past.decision.exclude_nodes,
            )
            for past in reversed(failures)
        ]
        return cls(tuple(words), tuple(reversed(rows)))

    def failures(self) -> tuple[Failure, ...]:
        """Return them as policies see them: without texts, and without what only the last ones have."""
        return tuple(map(self._failure, self.rows))

    def _failure(self, row: _Row) -> Failure:
        words, kind = self.words, _DECISIONS.get(self.words[row.decision])
        node, rule = words[row.node], words[row.rule]
        decision = None if kind is None else kind(rule=rule)
        if row.excluded and isinstance(decision, Restart):
            decision = replace(decision, exclude_nodes=(node,))
        return Failure(
            failure_class=FailureClass(words[row.failure_class]),
            summary=words[row.summary],
            node_id=node,
            round_index=row.round_index,
            at_s=row.at_s,
            uptime_s=row.uptime_s,
            exit_code=row.exit_code,
            exception_type=words[row.exception],
            fingerprint=words[row.fingerprint],
            progress=row.progress,
            decision=decision,
            spent=row.spent,
        )
