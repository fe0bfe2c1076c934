"""A rule's count in the history, and the next pause. Pure."""

import hashlib
from collections.abc import Sequence
from typing import Final

from elastic_core.api import Failure, Ignore, PolicySettings, Restart
from elastic_policy_rules.book import Rule

QUICK_S: Final = 60.0
"""A rule without a backoff pauses as the built-in policy does: only for failures this soon after a start."""
USUAL_CAP_S: Final = 30.0
_MANY: Final = 64
"""A limit far above any cap, below the overflow of floats."""


def used(rule: Rule, failure: Failure, history: Sequence[Failure]) -> int:
    """Return how often a rule has decided within `per` and since `reset_after`."""
    count = _row(rule, failure, history, per_s=rule.per_s, reset_s=rule.reset_after_s)
    if rule.per_s is not None or rule.reset_after_s is not None:
        return count
    return max(count, decided(rule.name, history))  # the history has the last failures only


def decided(name: str, history: Sequence[Failure]) -> int:
    """Return how often the rule of this name has decided in the whole run."""
    return dict(history[-1].rule_counts).get(name, 0) if history else 0


def _row(
    rule: Rule, failure: Failure, history: Sequence[Failure], *, per_s: float | None, reset_s: float | None
) -> int:
    if reset_s is not None and failure.uptime_s >= reset_s:
        return 0
    count = 0
    for past in reversed(history):
        if _decided_by(rule, past) and (per_s is None or failure.at_s - past.at_s < per_s):
            count += 1
        if reset_s is not None and past.uptime_s >= reset_s:
            break
    return count


def _decided_by(rule: Rule, past: Failure) -> bool:
    wanted = Ignore if rule.action == "ignore" else Restart
    return isinstance(past.decision, wanted) and past.decision.rule == rule.name


def pause_s(rule: Rule, count: int, failure: Failure, history: Sequence[Failure], settings: PolicySettings) -> float:
    """Return the pause before a restart if a rule decides for the `count + 1`st time."""
    if rule.action == "wait":
        return rule.delay_s
    if rule.backoff is None:
        row = _row(rule, failure, history, per_s=rule.per_s, reset_s=min(rule.reset_after_s or QUICK_S, QUICK_S))
        if row == 0:
            return 0.0
        base_s = settings.restart_backoff_s
        return min(base_s * 2.0 ** min(row - 1, _MANY), max(base_s, USUAL_CAP_S))
    backoff = rule.backoff
    pause = min(backoff.base_s * backoff.factor ** min(count, _MANY), backoff.cap_s)
    return round(pause * (1.0 + backoff.jitter * _draw(rule, failure, settings)), 3)


def _draw(rule: Rule, failure: Failure, settings: PolicySettings) -> float:
    """Return a number from -1 to 1 that depends only on the run and the failure."""
    seed = "|".join(
        (settings.run_id, rule.name, failure.node_id, str(failure.round_index), repr(failure.at_s), failure.summary)
    )
    digest = hashlib.sha256(seed.encode("utf-8", "replace")).digest()
    return int.from_bytes(digest[:8]) / (2**63) - 1.0
