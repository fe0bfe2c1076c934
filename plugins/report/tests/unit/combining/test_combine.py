"""A run of two nodes with one failure, as its report shows it."""

import datetime

import pytest

from elastic_core.api import Stop
from elastic_report.combining.combine import combine
from elastic_report.combining.evidence import AgentEvidence, RunEvidence, StoreEvidence
from elastic_report.ledger.states import LedgerState as S
from elastic_report.model import Report
from run_kit import EPOCH_NS, Node

NAMES = ("node-a", "node-b")


def play(node: Node, rank: int, *, fails: bool = False) -> Node:
    """Train 500 s with a save in between, fail, restart, and train to the end."""
    node.spend(S.RENDEZVOUS, 10).join(0, rank, NAMES).spend(S.STARTING, 20)
    node.spend(S.PRODUCTIVE, 300).spend(S.SAVING, 10).spend(S.PRODUCTIVE, 190)
    node.worker(520, code=1 if fails else -15, saves=(190,), stopped=not fails)
    node.fail(reports=2) if fails else node.fail("ValueError: boom", age_s=-1)
    node.over("failure", reason="rank 1 failed").spend(S.DECIDING, 1)
    node.note("decision", "restart 1 of 3").spend(S.STOPPING, 4).spend(S.RESTARTING, 5)
    node.spend(S.RENDEZVOUS, 10).join(1, rank, NAMES).spend(S.STARTING, 20).spend(S.RESTORING, 5)
    node.spend(S.REDONE, 190).spend(S.PRODUCTIVE, 200).worker(415).over("end").spend(S.STOPPING, 2)
    return node.end()


def report_of(*agents: AgentEvidence, **more: object) -> Report:
    """Return the report of these agents, read at their end."""
    ended_ns = max((agent.ended_ns for agent in agents), default=EPOCH_NS)
    facts = {"run_id": "bert-7", "now_ns": ended_ns, "source": "this machine", "agents": agents, **more}
    return combine(RunEvidence(**facts), zone=datetime.UTC)  # type: ignore[arg-type]  # of any names


@pytest.fixture
def report() -> Report:
    return report_of(play(Node("node-a"), 0).found(), play(Node("node-b"), 1, fails=True).found())


def test_the_account_has_all_node_seconds(report: Report) -> None:
    account = report.account
    assert account.present_s == pytest.approx(2 * 967)
    assert account.states[S.PRODUCTIVE] == pytest.approx(2 * 690)
    assert account.states[S.REDONE] == pytest.approx(2 * 190)
    assert account.goodput is not None
    assert account.goodput.low == account.goodput.high == pytest.approx(690 / 967)
    # All but the first rendezvous and start, saving, redone and what the failure cost.
    assert account.goodput_nvidia is not None
    assert account.goodput_nvidia.low == pytest.approx((10 + 20 + 690) / 967)
    assert account.frozen
    assert [each.state for each in account.lost[:2]] == [S.REDONE, S.STARTING]
    assert account.lost[0].text == "6 min 20 s redone after the failure at 00:08:50 UTC, last save 00:05:40 UTC"
    assert account.sentence == (
        "9 min 14 s of 32 min 14 s lost on 2 nodes together: 6 min 20 s redone after the failure at 00:08:50 UTC, "
        "last save 00:05:40 UTC; 1 min 20 s starting workers of 2 rounds; 40 s in the rendezvous of 2 rounds; "
        "54 s by other causes."
    )


def test_the_first_cause_and_its_evidence(report: Report) -> None:
    run = report.run
    assert (run.state, run.exit_code, run.restart_count, run.node_count) == ("succeeded", 0, 1, 2)
    assert run.sentence == (
        "Run 'bert-7' succeeded after 16 min 7 s, with 1 restart; the last failure: rank 1 on node-b raised "
        "ValueError: boom (train.py:11) in round 0, at 00:08:50 UTC."
    )
    assert run.evidence[0] == "user exception: ValueError: boom"
    assert "rank 1 (local rank 0) on node-b, pid 101, exit code 1, after 5 s" in run.evidence
    assert "/home/me/train.py:11, in step: raise ValueError" in run.evidence
    assert run.evidence[-1] == "decision: restart: restart 1 of 3 (rule intensity)"


def test_an_incident_is_there_once_with_what_followed(report: Report) -> None:
    (row,) = report.incidents
    assert row.sentence == (
        "round 0 failed: rank 1 on node-b raised ValueError: boom (train.py:11); restarted by intensity"
    )
    assert row.at_s == pytest.approx(530)
    assert row.detect_s == pytest.approx(1)
    # From the decision: stop 4, backoff 5, rendezvous 10, start 20, restore 5.
    assert row.recover_s == pytest.approx(44)
    assert row.lost_s == pytest.approx(2 * (45 + 190))
    assert row.last_save_s == pytest.approx(340)
    assert row.traceback.endswith("ValueError: boom")
    assert (row.decision, row.rule) == ("restart: restart 1 of 3", "intensity")


def test_rounds_and_lanes_are_merged(report: Report) -> None:
    assert [(row.index, row.begin_s, row.ended_by) for row in report.rounds] == [(0, 10, "failure"), (1, 550, "end")]
    assert report.rounds[0].reason == "rank 1 failed"
    assert [lane.node_id for lane in report.nodes] == list(NAMES)
    first = report.nodes[0]
    assert [span.state for span in first.spans[:4]] == [S.RENDEZVOUS, S.STARTING, S.PRODUCTIVE, S.SAVING]
    assert [(bar.round, bar.code, bar.stopped) for bar in first.workers] == [(0, -15, True), (1, 0, False)]
    assert (
        report.clocks
        == "The clocks of 2 nodes differ by at most 0 s at rounds that they have in common: no clock was corrected."
    )
    assert report.missing == ()


def test_a_decision_of_several_nodes_is_one_event(report: Report) -> None:
    names = [event.name for event in report.events]
    assert names.count("decision") == 1
    assert names.count("round") == 2
    assert [event.incident for event in report.events if event.name == "incident"] == [1]
    assert [event.text for event in report.events if event.name == "worker_failed"] == [
        "rank 1 ended with exit code 1 after 8 min 40 s"
    ]


def test_a_failed_run_begins_with_its_cause() -> None:
    node = Node("node-a").spend(S.RENDEZVOUS, 1).join(0, 0, ("node-a",)).spend(S.PRODUCTIVE, 60)
    node.fail(decision=Stop(reason="restart budget of 0 used up", rule="intensity")).over("failure").end("failed", 1)
    report = report_of(node.found())
    assert report.run.state == "failed"
    assert report.run.sentence == (
        "Run 'bert-7' failed after 1 min 1 s with exit code 1: rank 0 on node-a raised ValueError: boom (train.py:11) "
        "in round 0, at 00:01:01 UTC."
    )
    (row,) = report.incidents
    assert row.recover_s is None
    assert row.decision == "stop: restart budget of 0 used up"


def test_a_live_run_is_not_frozen() -> None:
    node = Node("node-a").spend(S.RENDEZVOUS, 1).join(0, 0, ("node-a",)).spend(S.STARTING, 4).alive(S.PRODUCTIVE)
    report = report_of(node.found(alive=True), now_ns=node.wall_ns(65))
    assert report.live
    assert not report.account.frozen
    assert report.run.ended_s is None
    assert report.nodes[0].end_s == pytest.approx(65)
    assert report.account.states[S.PRODUCTIVE] == pytest.approx(60)
    assert report.run.sentence == "Run 'bert-7' has run for 1 min 5 s."
    assert report.rounds[0].end_s is None


def test_a_ledger_that_the_agent_has_just_sent_ends_at_its_last_line() -> None:
    node = Node("node-a").spend(S.RENDEZVOUS, 1).join(0, 0, ("node-a",)).spend(S.PRODUCTIVE, 4)
    report = report_of(node.found(alive=True, current=True), now_ns=node.wall_ns(9000))
    assert report.nodes[0].end_s == pytest.approx(5)


def test_the_scheduler_queue_is_before_the_start() -> None:
    node = Node("node-a", started_s=100, queued_s=40).spend(S.RENDEZVOUS, 10).join(0, 0, ("node-a",))
    report = report_of(node.spend(S.PRODUCTIVE, 90).over("end").end().found())
    assert report.run.began_ns == EPOCH_NS + 40 * 10**9
    assert report.nodes[0].spans[0].state is S.QUEUED
    assert report.account.states[S.QUEUED] == pytest.approx(60)
    assert report.account.goodput is not None
    assert report.account.goodput.high == pytest.approx(0.9)
    assert report.account.goodput_nvidia is not None
    assert report.account.goodput_nvidia.high == pytest.approx(1.0)


def test_a_second_attempt_was_not_queued_while_the_first_ran() -> None:
    first = Node("node-a", started_s=0).spend(S.RENDEZVOUS, 10).join(0, 0, ("node-a",)).spend(S.PRODUCTIVE, 90)
    first.over("failure").end("failed", 1)
    second = Node("node-a", started_s=150, queued_s=-500).spend(S.RENDEZVOUS, 10).join(0, 0, ("node-a",))
    second.spend(S.PRODUCTIVE, 40).over("end").end()
    report = report_of(first.found(), second.found())
    assert report.run.attempt_count == 2
    assert [(lane.attempt, lane.begin_s, lane.end_s) for lane in report.nodes] == [(0, 0, 100), (1, 100, 200)]
    assert report.account.states[S.QUEUED] == pytest.approx(50)


def test_a_run_without_any_ledger_has_its_result() -> None:
    node = play(Node("node-a"), 0, fails=True)
    report = report_of(node.found(with_ledger=False))
    assert report.run.state == "succeeded"
    assert report.nodes == ()
    assert report.account.goodput is None
    assert report.account.sentence == "No time was recorded."
    assert report.missing == (
        (
            "no ledger was found, so that no time is shown "
            "(none is written with -p no:ledger, or if the run succeeds within half a second)"
        ),
    )
    assert len(report.incidents) == 1


def test_no_agent_at_all() -> None:
    store = StoreEvidence(where="redis at db", outcome="failed", exit_code=3, reason="health check")
    report = report_of(store=store)
    assert (report.run.state, report.run.exit_code) == ("failed", 3)
    assert report.run.sentence == "Run 'bert-7' failed after 0 s with exit code 3: health check."


def test_an_event_that_happens_twice_is_there_twice_and_once_for_all_nodes() -> None:
    nodes = [Node(name) for name in NAMES]
    for rank, node in enumerate(nodes):
        node.spend(S.RENDEZVOUS, 1 + rank / 10)
        for index in range(2):
            node.join(index, rank, NAMES).spend(S.PRODUCTIVE, 5).note("failure", "ValueError: boom", node="node-b")
            node.note("decision", "restart (max-restarts)").over("failure").spend(S.STOPPING, 1)
        node.end("failed", 1)
    names = [event.name for event in report_of(*(node.found() for node in nodes)).events]
    assert (names.count("failure"), names.count("decision")) == (2, 2)


def test_attempts_are_no_nodes() -> None:
    first = Node("node-a").spend(S.RENDEZVOUS, 1).join(0, 0, NAMES[:1]).spend(S.PRODUCTIVE, 9).end("failed", 1)
    second = Node("node-a", started_s=60).spend(S.RENDEZVOUS, 1).join(0, 0, NAMES[:1]).spend(S.PRODUCTIVE, 9).end()
    report = report_of(first.found(), second.found())
    assert report.account.sentence.startswith("2 s of 20 s lost in 2 attempts: ")
