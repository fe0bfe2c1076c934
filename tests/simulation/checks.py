"""What must hold at every moment of a simulated run, and what is counted of it."""

from collections import Counter, deque
from collections.abc import Callable, Mapping

from elastic_core.moments import Concluded
from elastic_core.rendezvous.member.documents import ControlDocument, Ending, RoundDocument, Verdict, decode
from elastic_core.rendezvous.member.state import question_about
from elastic_core.rendezvous.store import CONTROL_KEY
from elastic_core.types import Decided, Record, Restart
from simulation.scenario import STORE_AWAY, Scenario

TRACE_LENGTH = 80
COLLATERAL_S = 0.5


class Violation(AssertionError):
    """An invariant did not hold; `invariant` names it."""

    def __init__(self, invariant: str, what: str) -> None:
        super().__init__(f"{invariant}: {what}")
        self.invariant = invariant


class Report(Record, frozen=True, kw_only=True):
    """What happened in a run that went well.

    `rounds`: how many had workers; `decided`: how many ended by a decision on evidence, `saved`: in how many ranks
    saved before a planned stop, `twofold`: how many began while another trained, since partitions outlasted the grace.
    `asked`: how many questions reached a node, `concluded`: how many of their conclusions did.
    `operations`: requests to the store by node,
    and `forming` those of them until the first round stood. `outcomes`: how many members ended how.
    """

    seed: int
    rounds: int
    restarts: int
    changes: int
    operations: Mapping[str, int]
    forming: Mapping[str, int]
    outcomes: Mapping[str, int]
    seconds: float
    steps: int
    decided: int = 0
    saved: int = 0
    asked: int = 0
    concluded: int = 0
    twofold: int = 0


class Checks:
    """Is told of every worker that starts or ends, every verdict that is heard and every document that is written.

    `forgotten`: the store has lost writes; what only the dead knew then may come again.
    """

    def __init__(self, scenario: Scenario, *, trace_length: int | None = TRACE_LENGTH) -> None:
        self.scenario = scenario
        self.live: dict[str, RoundDocument] = {}
        self.rounds: dict[tuple[int, str], RoundDocument] = {}
        self.ranks: dict[tuple[int, str], dict[str, int]] = {}
        self.done: dict[tuple[int, str], set[str]] = {}
        self.last: tuple[int, str] | None = None
        self.forgotten = False
        self.alive: Callable[[str], bool] = lambda _: True
        self.verdict: Verdict | None = None
        self.decisions: dict[tuple[int, str], Ending | Verdict] = {}
        self.causes: dict[tuple[int, str], dict[str, tuple[float, bool]]] = {}
        self.agreements: dict[tuple[tuple[int, str], str], int] = {}
        self.saves: dict[tuple[int, str], tuple[str, int]] = {}
        self.questions: set[tuple[tuple[int, str], int]] = set()
        self.conclusions: set[tuple[int, str, bytes]] = set()
        self.concluded_as: dict[tuple[tuple[int, str], int], Concluded] = {}
        self.decided = 0
        self.twofold: set[tuple[int, str]] = set()
        self.trace: deque[tuple[float, str, str]] = deque(maxlen=trace_length)
        self.outcomes: Counter[str] = Counter()

    def said(self, now_s: float, who: str, what: str) -> None:
        """Remember for the trace."""
        self.trace.append((now_s, who, what))

    def fail(self, invariant: str, what: str) -> None:
        """Say that an invariant does not hold.

        Raises:
            Violation: always.
        """
        raise Violation(invariant, what)

    def started(self, incarnation: str, document: RoundDocument, rank: int) -> None:
        """Judge that workers of a round start on a node."""
        key = (document.token, document.nonce)
        for other, theirs in self.live.items():
            if (theirs.epoch, theirs.token, theirs.nonce) == (document.epoch, *key):
                continue
            if self.scenario.beyond_grace:
                self.twofold.add(key)
            elif theirs.epoch != document.epoch:
                what = f"{incarnation} starts workers of {document.epoch}, {other} has some of {theirs.epoch}"
                raise Violation("one run trains", what)
            else:
                what = f"{incarnation} starts workers of {key}, {other} has some of {(theirs.token, theirs.nonce)}"
                raise Violation("one round trains", what)
        if key not in self.rounds:
            self._new_round(key, document)
        if self.rounds[key] != document:
            raise Violation("the roster is one", f"{incarnation} has another document of {key} than the others")
        if document.roster[rank].incarnation != incarnation:
            raise Violation("ranks are a bijection", f"{incarnation} has rank {rank} of {key}")
        ranks = self.ranks.setdefault(key, {})
        if incarnation in ranks or rank in ranks.values():
            raise Violation("ranks are a bijection", f"rank {rank} of {key} is taken twice, by {incarnation} as well")
        ranks[incarnation] = rank
        self.live[incarnation] = document

    def _new_round(self, key: tuple[int, str], document: RoundDocument) -> None:
        roster, scenario = document.roster, self.scenario
        live = [entry.node for entry in roster if self.alive(entry.incarnation)]  # a dead one may be back
        if len({entry.incarnation for entry in roster}) < len(roster) or len(set(live)) < len(live):
            raise Violation("ranks are a bijection", f"the roster of {key} names a node twice")
        if not scenario.min_nodes <= len(roster) <= scenario.max_nodes:
            raise Violation("the size is as asked", f"{len(roster)} nodes in {key}")
        if self.last is not None and self._known(self.last):
            last = self.rounds[self.last]
            if document.token <= last.token:
                raise Violation("tokens rise", f"{key} runs after {(last.token, last.nonce)}")
            fewer = document.restarts < last.restarts or document.changes < last.changes
            if fewer and document.epoch == last.epoch:
                raise Violation("counters rise", f"{document.restarts}, {document.changes} after {last}")
        if scenario.steady and self.rounds:
            raise Violation("an outage ends no round", f"{key} follows {max(self.rounds)}")
        self.rounds[key] = document
        self.last = key

    def _known(self, key: tuple[int, str]) -> bool:
        """Return whether the store or somebody alive can know of a round."""
        return not self.forgotten or any(self.alive(incarnation) for incarnation in self.ranks[key])

    def agreed(self, key: tuple[int, str], topic: str, value: int) -> None:
        """Judge what a node was told that all have agreed about."""
        known = self.agreements.setdefault((key, topic), value)
        if known != value:
            raise Violation("what is agreed is one", f"{topic} of {key} is {known} for one node, {value} for another")

    def concluded(self, key: tuple[int, str], event: Concluded) -> None:
        """Judge the conclusion of a question that a node gets."""
        if (event.serial, event.topic, event.data) not in self.conclusions:
            raise Violation("a conclusion is a leader's", f"{event} of {key}")
        known = self.concluded_as.setdefault((key, event.serial), event)
        if known != event and not self.forgotten:
            raise Violation("a conclusion is one", f"{known} for one node of {key}, {event} for another")

    def saved(self, key: tuple[int, str], incarnation: str, step: int) -> None:
        """Judge that a rank saves before a step that it does not begin."""
        first = self.saves.setdefault(key, (incarnation, step))
        if first[1] != step:
            what = f"a rank of {incarnation} saves before step {step} of {key}, one of {first[0]} before {first[1]}"
            raise Violation("all save at the same step", what)

    def ended(self, incarnation: str) -> None:
        """Take note that no worker of a node lives."""
        self.live.pop(incarnation, None)

    def finished(self, incarnation: str, document: RoundDocument) -> None:
        """Take note that all workers of a node have ended well."""
        self.done.setdefault((document.token, document.nonce), set()).add(incarnation)
        self.ended(incarnation)

    def failed(self, incarnation: str, document: RoundDocument, now_s: float, *, collateral: bool) -> None:
        """Take note that workers of a node have failed, and when they truly did."""
        self.causes.setdefault((document.token, document.nonce), {}).setdefault(incarnation, (now_s, collateral))

    def _decided(self, word: Ending | Verdict) -> None:
        """Judge a decision about a round that stands from now on."""
        key = (word.token, word.nonce)
        if word.evidence and word.decision.rule != question_about(*key):
            raise Violation(
                "an answer is to its question", f"{word.decision.rule!r} was asked, and {key} decided about"
            )
        stands = self.decisions.setdefault(key, word)
        if stands != word and not self.forgotten:
            raise Violation("one decision a round", f"{word} in the place of {stands}")
        if stands is word and word.evidence:
            self.decided += 1
            if self.scenario.exact:
                self._blamed(key, word.evidence)

    def _blamed(self, key: tuple[int, str], name: str) -> None:
        causes = {who: at_s + COLLATERAL_S * collateral for who, (at_s, collateral) in self.causes[key].items()}
        first_s = min(causes.values())
        # The order to stop takes four messages: so much may two nodes differ about when they heard of it.
        if name not in causes or causes[name] - first_s > 5 * self.scenario.latency_s:
            raise Violation("the first cause is blamed", f"{name} for {key}, of {self.causes[key]}")

    def told(self, incarnation: str, document: RoundDocument, change: Decided) -> None:
        """Judge what a node was told of the decision about its round."""
        stands = self.decisions.get((document.token, document.nonce))
        if not isinstance(change.decision, Restart) or self.forgotten:
            return
        told = (change.evidence, change.decision)
        if not isinstance(stands, Ending) or (stands.evidence, stands.decision) != told:
            raise Violation("one decision a round", f"{incarnation} was told {change}, and {stands} stands")

    def heard(self, incarnation: str, verdict: tuple[str, str]) -> None:
        """Judge a verdict that a node was told."""
        stands = self.verdict
        if stands is None or (stands.decision.outcome, stands.decision.reason) != verdict:
            raise Violation("a verdict stays", f"{incarnation} was told {verdict}, and {stands} stands")

    def written(self, key: str, old: bytes | None, new: bytes) -> None:
        """Judge a document that replaces another."""
        if key != CONTROL_KEY:
            return
        after = decode(new, ControlDocument)
        before = decode(old, ControlDocument) if old is not None else None
        if before is not None and before.epoch != after.epoch:
            self._replaced(before)
        if before is not None and before.epoch == after.epoch and before.verdict not in (None, after.verdict):
            raise Violation("a verdict stays", f"{before.verdict} was replaced by {after.verdict}")
        if after.ending is not None:
            self._decided(after.ending)
        if after.verdict is not None and after.verdict.nonce and not after.verdict.from_outside:  # about no failure
            self._decided(after.verdict)
        if after.verdict is not None and self.verdict != after.verdict:
            self._verdict(after, after.verdict)

    def _replaced(self, before: ControlDocument) -> None:
        """Judge that another run is begun in the place of one."""
        if before.verdict is not None and before.verdict.from_outside:
            self.forgotten = True  # somebody who was away then may bring the stopped run back
        training = sorted(name for name, round_ in self.live.items() if round_.epoch == before.epoch)
        if before.verdict is None and training and self.scenario.faults <= STORE_AWAY:
            raise Violation("a run that goes on stays", f"{training} have workers of {before.epoch}")

    def _verdict(self, control: ControlDocument, verdict: Verdict) -> None:
        self.verdict = verdict
        key = self.last
        if verdict.decision.outcome != "done" or key is None:
            return
        lacking = self.rounds[key].incarnations - self.done.get(key, set())
        if lacking:
            raise Violation("done means all", f"{sorted(lacking)} have not finished {key}")
