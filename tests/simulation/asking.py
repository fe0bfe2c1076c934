"""The hook of one simulated node that asks all nodes of a round: when it asks, answers and concludes, if it does."""

import random
from typing import TYPE_CHECKING

import msgspec

from elastic_core import messages as m

if TYPE_CHECKING:
    from elastic_core.rendezvous.member.documents import RoundDocument
    from simulation.member import SimulatedMember

TOPICS = ("hook: a", "hook: b")
LATEST_S = 12.0
LONGEST_ANSWER_S = 2.0

Key = tuple[int, str]


class SimulatedAsking:
    """The questions of one round on one node. Its random numbers are its own: those of other faults stay.

    Args:
        member: The node.
        document: The round.
    """

    def __init__(self, member: "SimulatedMember", document: "RoundDocument") -> None:
        self._member = member
        self._key = (document.token, document.nonce)
        self._rng = random.Random(f"{document.nonce} {member.incarnation}")
        self._asked = self._concluded = 0
        for _ in range(member.world.scenario.questions):
            member.after(self._rng.uniform(0, LATEST_S), self._ask)

    def _lasts(self) -> bool:
        return self._member.asking is self and self._member.workers is not None

    def _ask(self) -> None:
        if self._lasts():
            within_s = self._rng.choice((0.0, 0.5, 3.0))
            self._member.intend(m.AskNodes(topic=self._rng.choice(TOPICS), within_s=within_s))

    def asked(self, event: m.NodesAsked) -> None:
        """Answer after a while, also if the round is over by then; some hooks don't answer."""
        if event.serial <= self._asked:
            self._member.world.checks.fail("a question is passed on once", f"{event} after {self._asked}")
        self._asked = event.serial
        self._member.world.checks.questions.add((self._key, event.serial))
        data = msgspec.json.encode((self._key, event.serial, event.topic, self._member.incarnation))
        if self._rng.random() >= self._member.world.scenario.silent_hooks:
            answer = m.AnswerNodes(serial=event.serial, data=data)
            self._member.after(self._rng.uniform(0, LONGEST_ANSWER_S), lambda: self._member.intend(answer))

    def concluded(self, event: m.Concluded) -> None:
        """Judge a conclusion: it comes once, and it is the one of all nodes."""
        if event.serial <= self._concluded:
            self._member.world.checks.fail("a conclusion is passed on once", f"{event} after {self._concluded}")
        self._concluded = event.serial
        self._member.world.checks.concluded(self._key, event)


def conclude(member: "SimulatedMember", event: m.AnswersGathered) -> None:
    """Judge what a leader gathers, and conclude after a while; some hooks don't."""
    found = set[tuple[object, ...]]()
    for node, data in event.answers.items():
        (token, nonce), serial, topic, incarnation = msgspec.json.decode(data)
        found.add((token, nonce))
        if (serial, topic, incarnation.partition("#")[0]) != (event.serial, event.topic, node) or len(found) > 1:
            member.world.checks.fail("answers are to their question", f"{event} has {data!r} of {node}")
    if set(event.missing) & event.answers.keys():
        member.world.checks.fail("who answers is not missing", str(event))
    data = msgspec.json.encode((member.incarnation, sorted(event.answers), sorted(event.missing)))
    member.world.checks.conclusions.add((event.serial, event.topic, data))
    rng = random.Random(f"{event} {member.incarnation}")
    if rng.random() >= member.world.scenario.silent_hooks:
        conclusion = m.ConcludeNodes(serial=event.serial, data=data)
        member.after(rng.uniform(0, LONGEST_ANSWER_S), lambda: member.intend(conclusion))
