"""Which node's hooks learn that it has asked the policy about the whole run: exactly one's."""

import pytest

from elastic_core.agent.feed import Feed
from elastic_core.agent.machine.states import without_workers
from elastic_core.agent.run_decision import FailureContext, RunDecision
from elastic_core.reports import Absence, NodeReport
from elastic_core.system.clock import SYSTEM_CLOCK
from elastic_core.types import Failure, FailureClass, Restart, Stop
from elastic_plugin_kit import sample_round

FAILURE = Failure(
    failure_class=FailureClass.DEVICE, summary="ECC", node_id="b", round_index=1, at_s=1.0, uptime_s=1.0, global_rank=4
)
BOTH = (NodeReport(node_id="a"), NodeReport(node_id="b", failure=FAILURE))


class Node:
    """One agent's part in decisions, with everything else played."""

    def __init__(self, node_id):
        self.node_id, self.seen, self.posted = node_id, [], []
        feed = Feed()
        feed.subscribe(self.seen.append)
        self.decision = RunDecision(
            incidents=self, rendezvous=self, policy=self, feed=feed, clock=SYSTEM_CLOCK,
            context=FailureContext(node_id, SYSTEM_CLOCK),
        )  # fmt: skip

    name = "rules"

    def decide(self, failure, history, answer):
        answer(Restart(), "it raised KeyError")

    def merge(self, reports, restarts):
        return FAILURE, f"as {self.node_id} has merged it"

    def print_fallback(self, reason):
        pass

    def post(self, message):
        self.posted.append(message)

    @property
    def told(self):
        return [(moment.decided_here, moment.fallback_reason) for moment in self.seen]


def test_of_all_nodes_the_one_that_has_asked_the_policy_is_told_so():
    a, b = Node("a"), Node("b")
    a.decision.decide(BOTH, (), "question 1")
    evidence = a.posted[0].evidence
    for node in (a, b):
        node.decision.publish_decision(FAILURE, Restart(), evidence=evidence)
    assert (a.told, b.told) == ([(True, "it raised KeyError")], [(False, "")])


def test_of_two_nodes_that_have_asked_it_is_the_one_whose_decision_counts():
    a, b = Node("a"), Node("b")
    for node in (a, b):
        node.decision.decide(BOTH, (), "question 1")
    for node in (a, b):
        node.decision.publish_decision(FAILURE, Restart(), evidence=b.posted[0].evidence)
    assert (a.told, b.told) == ([(False, "")], [(True, "it raised KeyError")])


@pytest.mark.parametrize("absence", [(), (NodeReport(node_id="c", absence=Absence(by="hook", reason="hot")),)])
def test_a_node_that_decides_for_a_round_of_others_is_told_once_for_each_question(absence):
    spare = Node("c")
    for question in ("question 1", "question 1", "question 2"):
        spare.decision.decide((*BOTH, *absence), (), question)
    assert spare.told == [(True, "it raised KeyError")] * 2


def test_a_node_that_decides_alone_has_decided_here():
    alone = Node("a")
    alone.decision.publish_decision(FAILURE, Stop(reason="no budget"))
    assert alone.told == [(True, "")]


@pytest.mark.parametrize(("last", "index"), [(None, -1), (sample_round(index=3), 3)])
def test_a_failure_to_form_a_round_is_one_of_the_last_round(last, index):
    failure = without_workers("1 of 2", FailureClass.RENDEZVOUS)
    found = FailureContext("a", SYSTEM_CLOCK).of_machine(failure, last)
    assert (found.node_id, found.round_index) == ("a", index)
