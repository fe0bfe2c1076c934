"""Decides by the first matching rule: its counters, its pause, the nodes to leave out. Pure; never raises."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from elastic_core.api import Decision, Failure, Ignore, Intensity, PolicySettings, Restart, Stop
from elastic_policy_rules.book import BUDGET, RESERVED, Rule, RuleBook
from elastic_policy_rules.counting import decided, pause_s, used
from elastic_policy_rules.exclusion import Exclusions
from elastic_policy_rules.matching import can_ignore, mismatch

OTHERWISE = "otherwise"


@dataclass(frozen=True, slots=True)
class Verdict:
    """A decision, and its explanation in lines for people."""

    decision: Decision
    why: tuple[str, ...] = field(default=())


class Engine:
    """Decides by a rule book for one run. Threading: pure; any thread."""

    def __init__(self, book: RuleBook, settings: PolicySettings) -> None:
        """Keep both."""
        self._book = book
        self._settings = settings
        self._intensity = Intensity(settings)
        self._exclusions = Exclusions(book, settings)

    def judge(self, failure: Failure, history: Sequence[Failure]) -> Verdict:
        """Return the decision about a failure, with the reason."""
        why: list[str] = []
        for rule in self._book.rules:
            unlike = mismatch(rule, failure, history, self._settings.fatal_exit_codes)
            if unlike:
                why.append(f"{_title(rule)} is passed over: {unlike}")
                continue
            count = used(rule, failure, history)
            if rule.max_count is None or count < rule.max_count:
                return self._follow(rule, count, failure, history, why)
            spent = f"{_title(rule)} matches, but {_spent(rule)}"
            if rule.exhausted != "next" and not (rule.exhausted == "ignore" and not can_ignore(failure)):
                return Verdict(_end(rule, rule.exhausted, f"rule {rule.name!r}: {_spent(rule)}"), (*why, spent))
            why.append(f"{spent}: the next ones are tried")
        return self._otherwise(failure, history, why)

    def _follow(
        self, rule: Rule, count: int, failure: Failure, history: Sequence[Failure], why: Sequence[str]
    ) -> Verdict:
        matches = f"{_title(rule)} matches"
        if rule.action in ("fail", "done"):
            return Verdict(_end(rule, rule.action, rule.reason or f"rule {rule.name!r}"), (*why, matches))
        counted = matches if rule.max_count is None else f"{matches}: {count + 1} of {rule.max_count}{_within(rule)}"
        if rule.action == "ignore":
            return Verdict(Ignore(rule=rule.name), (*why, counted))
        delay_s = pause_s(rule, count, failure, history, self._settings)
        return self._restart(rule.name, delay_s, failure, history, rule, (*why, counted))

    def _otherwise(self, failure: Failure, history: Sequence[Failure], why: Sequence[str]) -> Verdict:
        if self._book.otherwise == "fail":
            return Verdict(Stop(reason="no rule matches", rule=OTHERWISE), (*why, "no rule matches, otherwise: fail"))
        # Its budget is spent by its own restarts: a rule's have the rule's.
        own = [past for past in history if past.decision is not None and past.decision.rule in RESERVED]
        restarts = sum(past.decision is not None and past.decision.rule == BUDGET for past in own)
        count = max(restarts, decided(BUDGET, history))
        decision = self._intensity.decide(failure, own, used=count)
        explained = self._intensity.explain(failure, own, used=count)
        why = (*why, "no rule matches: the built-in policy decides", *explained)
        if isinstance(decision, Restart):
            return self._restart(decision.rule, decision.delay_s, failure, history, None, why)
        return Verdict(decision, why)

    def _restart(
        self,
        name: str,
        delay_s: float,
        failure: Failure,
        history: Sequence[Failure],
        rule: Rule | None,
        why: tuple[str, ...],
    ) -> Verdict:
        exclusion = self._exclusions.after(failure, history, rule)
        told = (*why, exclusion.why) if exclusion.why else why
        decision = Restart(delay_s=delay_s, exclude_nodes=exclusion.nodes, exclude_s=exclusion.for_s, rule=name)
        return Verdict(decision, told)


def _end(rule: Rule, how: str, reason: str) -> Decision:
    if how == "ignore":
        return Ignore(rule=rule.name)
    return Stop(reason=reason, outcome="done" if how == "done" else "failed", rule=rule.name)


def _title(rule: Rule) -> str:
    return f"rule {rule.name!r} (line {rule.line})"


def _spent(rule: Rule) -> str:
    if rule.max_count == 0:
        return "'max' is 0"
    times = "1 time" if rule.max_count == 1 else f"{rule.max_count} times"
    return f"{times}{_within(rule)} {'is' if rule.max_count == 1 else 'are'} used up"


def _within(rule: Rule) -> str:
    return "" if rule.per_s is None else f" within {rule.per_s:g} s"
