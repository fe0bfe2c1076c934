"""The nodes that the next round leaves out, from the history; never below the minimum of the run. Pure."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from elastic_core.api import Failure, FailureClass, PolicySettings, Restart
from elastic_policy_rules.book import Blame, Rule, RuleBook

_GONE: Final = frozenset({FailureClass.NODE_LOST, FailureClass.PREEMPTED})
"""The failing node has left, whether or not it is left out."""
_MANY: Final = 64


@dataclass(frozen=True, slots=True)
class Exclusion:
    """The nodes to leave out and for how long, and why the failing node is or is not among them."""

    nodes: tuple[str, ...] = ()
    for_s: tuple[float, ...] = ()
    why: str = ""


class Exclusions:
    """A rule book's rules for leaving out nodes."""

    def __init__(self, book: RuleBook, settings: PolicySettings) -> None:
        """Keep them."""
        self._blame = book.blame
        self._terms = book.blame or Blame()
        self._rules: Mapping[str, Rule] = {rule.name: rule for rule in book.rules}
        self._min_nodes = settings.min_nodes

    def after(self, failure: Failure, history: Sequence[Failure], rule: Rule | None) -> Exclusion:
        """Return the nodes that a restart after this failure leaves out."""
        if failure.node_count is None:
            return Exclusion()  # how many would be left is not known
        node = failure.node_id
        out = _left_out_last(history) - {node}  # nodes that were admitted again count as present
        left_out = {name: end_s for name, end_s in self._ends(history).items() if end_s > failure.at_s and name in out}
        latest = {past.node_id: past.failure_class for past in history}
        gone = {name for name, seen in latest.items() if seen in _GONE}
        there = failure.node_count - (failure.failure_class in _GONE)
        why = self._reason(failure, history, rule)
        if why:
            rest = failure.node_count - 1
            if rest >= self._min_nodes:
                there = rest
            else:
                why = f"{node!r} stays, although {why}: {rest} of at least {self._min_nodes} nodes would be left"
                return self._without(self._kept(left_out, gone, there), failure.at_s, why)
        kept = self._kept(left_out, gone, there)
        if not why:
            still = f"still without {', '.join(map(repr, kept))}" if kept else ""
            return self._without(kept, failure.at_s, still)
        for_s = self.length_s(self._starts(history, node))
        others = self._without(kept, failure.at_s, f"without {node!r} for {for_s:g} s: {why}")
        return Exclusion((node, *others.nodes), (for_s, *others.for_s), others.why)

    def _without(self, kept: Mapping[str, float], at_s: float, why: str) -> Exclusion:
        longest_s = self.length_s(_MANY)
        return Exclusion(tuple(kept), tuple(min(end_s - at_s, longest_s) for end_s in kept.values()), why)

    def _kept(self, left_out: Mapping[str, float], gone: Collection[str], there: int) -> Mapping[str, float]:
        """Admit as many nodes again as the run needs, earliest end first; those that may be gone come last."""
        by_end = sorted(left_out, key=lambda name: (name in gone, left_out[name], name))
        return {name: left_out[name] for name in sorted(by_end[max(0, self._min_nodes - there) :])}

    def _reason(self, failure: Failure, history: Sequence[Failure], rule: Rule | None) -> str:
        """Return why the failing node should be left out; empty if it should not."""
        if not failure.node_id:
            return ""
        if rule is not None and rule.exclude:
            return f"rule {rule.name!r} says so"
        if self._blame is None or not self._blames(failure, rule):
            return ""
        count = 1
        for past in reversed(history):
            if past.node_id != failure.node_id:
                continue
            if _excluded_itself(past):
                break
            recent = failure.at_s - past.at_s < self._blame.within_s
            count += recent and self._blames(past, self._rule_of(past))
        return f"blamed {count} times within {self._blame.within_s:g} s" if count >= self._blame.times else ""

    def _blames(self, failure: Failure, rule: Rule | None) -> bool:
        if rule is not None and rule.blame is not None:
            return rule.blame
        return failure.failure_class in self._terms.classes

    def _rule_of(self, past: Failure) -> Rule | None:
        return None if past.decision is None else self._rules.get(past.decision.rule)

    def _ends(self, history: Sequence[Failure]) -> dict[str, float]:
        """Return the end of the exclusion of each node that was ever left out."""
        ends: dict[str, float] = {}
        counts: dict[str, int] = {}
        for past in history:
            if _excluded_itself(past):
                count = counts.get(past.node_id, 0)
                ends[past.node_id] = past.at_s + self.length_s(count)
                counts[past.node_id] = count + 1
        return ends

    def _starts(self, history: Sequence[Failure], node: str) -> int:
        return sum(past.node_id == node and _excluded_itself(past) for past in history)

    def length_s(self, times_before: int) -> float:
        """Return for how long a node is left out that was left out this often before."""
        terms = self._terms
        return min(
            terms.exclude_for_s * terms.factor ** min(times_before, _MANY), max(terms.cap_s, terms.exclude_for_s)
        )


def _left_out_last(history: Sequence[Failure]) -> frozenset[str]:
    """Return the nodes that the last restart left out."""
    restarts = (past.decision for past in reversed(history) if isinstance(past.decision, Restart))
    last = next(restarts, None)
    return frozenset(() if last is None else last.exclude_nodes)


def _excluded_itself(past: Failure) -> bool:
    """Return whether the node of a failure was left out because of it."""
    return isinstance(past.decision, Restart) and past.node_id != "" and past.node_id in past.decision.exclude_nodes
