"""Lanes of agents that were killed, or whose ledgers are missing."""

import datetime

import pytest
from msgspec.structs import replace

from elastic_report.combining.combine import combine
from elastic_report.combining.evidence import AgentEvidence, RunEvidence
from elastic_report.ledger.document import Hung, Sum
from elastic_report.ledger.states import LedgerState as S
from elastic_report.model import NodeLane, Report
from run_kit import Node

NAMES = ("a", "b", "c")


def report_of(*agents: AgentEvidence, now_ns: int | None = None, run_id: str = "bert-7") -> Report:
    now_ns = now_ns or max(agent.ended_ns for agent in agents)
    evidence = RunEvidence(run_id=run_id, now_ns=now_ns, source="this machine", agents=agents)
    return combine(evidence, zone=datetime.UTC)


def lane(report: Report, name: str) -> NodeLane:
    (found,) = [each for each in report.nodes if each.node_id == name]
    return found


def parts(found: NodeLane) -> list[tuple[str, float]]:
    return [(span.state.value, round(span.end_s - span.begin_s, 6)) for span in found.spans]


def survivor(name: str, rank: int) -> Node:
    """Train 200 s, notice the loss of c 30 s after its death, and go on without c."""
    node = Node(name).spend(S.RENDEZVOUS, 10).join(0, rank, NAMES).spend(S.STARTING, 5).spend(S.PRODUCTIVE, 115)
    node.note("lost", "c is lost", node="c").over("membership", lost=("c",)).spend(S.STOPPING, 2)
    node.spend(S.RENDEZVOUS, 3).join(1, rank, NAMES[:2]).spend(S.STARTING, 5).spend(S.PRODUCTIVE, 60)
    return node.over("end").end()


def killed() -> Node:
    """An agent that is killed at 100 s."""
    node = Node("c").spend(S.RENDEZVOUS, 10).join(0, 2, NAMES).spend(S.STARTING, 5)
    node.at_s = 100
    return node.alive(S.PRODUCTIVE)


def test_a_killed_agent_is_hung_until_it_is_declared_lost() -> None:
    report = report_of(survivor("a", 0).found(), survivor("b", 1).found(), killed().found())
    found = lane(report, "c")
    assert parts(found) == [("rendezvous", 10), ("starting", 5), ("productive", 85), ("hung", 30)]
    assert (found.outcome, found.inferred, found.end_s) == ("lost", False, 130)
    assert report.run.state == "succeeded"
    assert report.rounds[0].lost == ("c",)


def test_times_that_are_no_round_numbers() -> None:
    for number in range(50):
        nodes = [survivor("a", 0), survivor("b", 1), Node("c", uptime_s=54_572.421396775 + number * 0.7312345671)]
        nodes[2].spend(S.RENDEZVOUS, 10.0123456).join(0, 2, NAMES).spend(S.STARTING, 5)
        agents = [node.found() for node in nodes]
        # A record is written a moment after the ledger has begun.
        agents = [replace(agent, started_ns=agent.started_ns + 12_345_678 + number) for agent in agents]
        assert parts(lane(report_of(*agents), "c"))[-1][0] == "hung"


def test_an_agent_that_nobody_declared_lost_ends_at_its_last_sign_of_life() -> None:
    node = Node("a").spend(S.RENDEZVOUS, 10).join(0, 0, ("a",)).spend(S.STARTING, 5)
    node.at_s = 100
    report = report_of(node.alive(S.PRODUCTIVE).found(), now_ns=node.wall_ns(5000))
    assert parts(lane(report, "a")) == [("rendezvous", 10), ("starting", 5), ("productive", 85)]
    assert report.run.state == "unknown"
    assert report.run.sentence == (
        "Run 'bert-7': no end was recorded. The last sign of life was after 1 min 40 s, at 00:01:40 UTC."
    )


def test_the_next_agent_of_the_node_ends_the_time_of_a_killed_one() -> None:
    again = Node("c", started_s=120).spend(S.RENDEZVOUS, 15).join(1, 2, NAMES).spend(S.PRODUCTIVE, 60).over("end").end()
    report = report_of(survivor("a", 0).found(), survivor("b", 1).found(), killed().found(), again.found())
    first, second = [each for each in report.nodes if each.node_id == "c"]
    assert (first.end_s, second.begin_s) == (120, 120)
    assert second.attempt == 0


def test_a_node_without_a_ledger_has_the_states_of_the_lowest_rank() -> None:
    report = report_of(survivor("a", 0).found(), survivor("b", 1).found())
    found = lane(report, "c")
    assert found.inferred
    assert found.outcome == "lost"
    assert (found.begin_s, found.end_s) == (10, 130)
    assert parts(found) == [("starting", 5), ("productive", 115)]
    (line,) = report.missing
    assert line == (
        "c: no ledger was found, and the time was inferred from other nodes. Try: elastic report with the run "
        "directories of all nodes"
    )


def test_the_lowest_rank_that_lives_counts() -> None:
    # Rank 0 dies at 60 s: from then on, rank 1 is the reference for rank 2.
    a = Node("a").spend(S.RENDEZVOUS, 10).join(0, 0, NAMES).spend(S.PRODUCTIVE, 50)
    b = Node("b").spend(S.RENDEZVOUS, 10).join(0, 1, NAMES).spend(S.PRODUCTIVE, 40).spend(S.SAVING, 40)
    b.over("membership", lost=("a",)).spend(S.STOPPING, 4).end("failed", 1)
    report = report_of(a.found(), b.found())
    assert parts(lane(report, "c")) == [("productive", 50), ("saving", 30), ("stopping", 4)]


def test_a_node_that_left_by_itself_has_time_until_it_left() -> None:
    a = Node("a").spend(S.RENDEZVOUS, 10).join(0, 0, ("a", "b")).spend(S.PRODUCTIVE, 50)
    a.over("membership", left=("b",)).spend(S.RENDEZVOUS, 5).join(1, 0, ("a",)).spend(S.PRODUCTIVE, 20).over(
        "end"
    ).end()
    report = report_of(a.found())
    found = lane(report, "b")
    assert (found.begin_s, found.end_s, found.outcome) == (10, 60, "")
    assert (report.rounds[0].left, report.rounds[0].lost) == (("b",), ())


def test_a_node_that_comes_back_without_a_ledger_has_two_lanes() -> None:
    a = Node("a").join(0, 0, ("a", "b")).spend(S.PRODUCTIVE, 50).over("membership", lost=("b",))
    a.spend(S.RENDEZVOUS, 5).join(1, 0, ("a",)).spend(S.PRODUCTIVE, 20).over("membership")
    a.spend(S.RENDEZVOUS, 5).join(2, 0, ("a", "b")).spend(S.PRODUCTIVE, 20).over("end").end()
    report = report_of(a.found())
    assert [(each.begin_s, each.end_s) for each in report.nodes if each.node_id == "b"] == [(0, 50), (80, 100)]
    assert report.rounds[2].joined == ("b",)


def test_an_agent_with_a_record_and_no_ledger_has_its_own_begin_and_end() -> None:
    b = Node("b", started_s=4)
    b.at_s = 100
    b.end("failed", 1)
    a = (
        Node("a")
        .spend(S.RENDEZVOUS, 10)
        .join(0, 0, ("a", "b"))
        .spend(S.PRODUCTIVE, 90)
        .over("failure")
        .end("failed", 1)
    )
    found = lane(report_of(a.found(), b.found(with_ledger=False)), "b")
    assert (found.begin_s, found.end_s, found.inferred, found.outcome) == (4, 100, True, "failed")
    assert parts(found) == [("rendezvous", 6), ("productive", 90)]


def test_nodes_whose_names_are_not_known_are_counted_as_missing() -> None:
    c = Node("c").spend(S.RENDEZVOUS, 10).join(0, 2, NAMES).spend(S.PRODUCTIVE, 10).over("end").end()
    report = report_of(c.found())
    assert [each.node_id for each in report.nodes] == ["c"]
    assert report.missing == ("the names of some nodes in 1 round are not known: their time is missing",)


def test_a_sum_in_place_of_old_rounds_keeps_the_seconds() -> None:
    node = Node("a")
    states = {S.PRODUCTIVE: 700.0, S.SAVING: 100.0, S.RENDEZVOUS: 200.0}
    node.lines.append(Sum(begin_s=1000, end_s=2000, states=states, bound_s=50, rounds=40, start_s=20))
    node.at_s = 1000
    node.join(40, 0, ("a",)).spend(S.PRODUCTIVE, 100).over("end").end()
    report = report_of(node.found())
    assert {state: round(seconds) for state, seconds in report.account.states.items()} == {
        S.RENDEZVOUS: 200,
        S.SAVING: 100,
        S.PRODUCTIVE: 800,
    }
    assert report.account.redone_bound_s == 50
    assert report.account.goodput is not None
    assert report.account.goodput.low == pytest.approx(750 / 1100)
    assert report.account.goodput.high == pytest.approx(800 / 1100)
    assert report.missing == (
        "a: the ledger has a sum in place of old rounds (up to 40), which are missing in the list of rounds",
    )


def test_a_correction_makes_productive_time_hung() -> None:
    node = Node("a").join(0, 0, ("a",)).spend(S.PRODUCTIVE, 100).spend(S.DECIDING, 5).end("failed", 1)
    node.lines.append(Hung(begin_s=1040, end_s=1100))
    assert parts(lane(report_of(node.found()), "a")) == [("productive", 40), ("hung", 60), ("deciding", 5)]


def test_a_lost_line_counts_for_the_state_before_it() -> None:
    node = Node("a").spend(S.RENDEZVOUS, 10).spend(S.STARTING, 10)
    node.at_s += 30
    node.spend(S.PRODUCTIVE, 50).end()
    assert parts(lane(report_of(node.found()), "a")) == [("rendezvous", 10), ("starting", 40), ("productive", 50)]


def test_agents_of_one_host_have_the_names_of_their_rounds() -> None:
    names = ("vm#7cb0", "vm#9a45", "vm#1111")
    one, two = (Node("vm", started_s=rank) for rank in range(2))
    one.spend(S.RENDEZVOUS, 1).join(0, 0, ("vm",)).spend(S.PRODUCTIVE, 9).over("membership").spend(S.STOPPING, 1)
    two.spend(S.RENDEZVOUS, 10)
    for rank, node in enumerate((one, two)):
        node.join(1, rank, names).spend(S.PRODUCTIVE, 20).over("membership", lost=names[2:]).spend(S.STOPPING, 1).end()
    report = report_of(one.found(), two.found())
    assert [(each.node_id, each.inferred) for each in report.nodes] == [
        ("vm#7cb0", False),
        ("vm#9a45", False),
        ("vm#1111", True),
    ]
    assert [row.joined for row in report.rounds] == [(), names[1:]]
    assert [row.left for row in report.rounds] == [(), ()]
    assert "on 3 nodes together" in report.account.sentence
