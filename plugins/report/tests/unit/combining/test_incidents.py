"""Each incident once, in its attempt, with what it cost."""

import datetime

import pytest
from msgspec.structs import replace

from elastic_core.api import FailureClass, Ignore, Restart, Stop
from elastic_core.api.commands import FoundIncident
from elastic_core.failure.incident import IncidentHang
from elastic_report.combining.combine import combine
from elastic_report.combining.evidence import AgentEvidence, RunEvidence, StoreEvidence
from elastic_report.combining.incidents import cause_of, decision_text, sentence_of
from elastic_report.ledger.states import LedgerState as S
from elastic_report.model import Report
from run_kit import Node, incident

NAMES = ("a", "b")


def report_of(*agents: AgentEvidence, store: StoreEvidence | None = None) -> Report:
    now_ns = max(agent.ended_ns or agent.started_ns for agent in agents)
    return combine(
        RunEvidence(run_id="bert-7", now_ns=now_ns, source="this machine", agents=agents, store=store),
        zone=datetime.UTC,
    )


def failing(name: str, rank: int, *, ahead_s: float = 0.0, names: tuple[str, ...] = NAMES) -> Node:
    return Node(name, ahead_s=ahead_s).spend(S.RENDEZVOUS, 10).join(0, rank, names).spend(S.PRODUCTIVE, 90)


def test_the_file_with_most_details_counts() -> None:
    a, b = failing("a", 0), failing("b", 1)
    a.fail("ConnectionError: peer reset", reports=0)
    b.fail("ValueError: boom", reports=2)
    for node in (a, b):
        node.over("failure").spend(S.DECIDING, 1).end("failed", 1)
    (row,) = report_of(a.found(), b.found()).incidents
    assert row.incident.summary == "ValueError: boom"


def test_one_node_may_have_several_incidents_of_a_round() -> None:
    node = failing("a", 0).fail("ValueError: one", decision=Ignore(rule="keep"))
    node.spend(S.PRODUCTIVE, 20).fail("ValueError: two").over("failure").spend(S.DECIDING, 1).end("failed", 1)
    rows = report_of(node.found()).incidents
    assert [(row.number, row.incident.summary, row.at_s) for row in rows] == [
        (1, "ValueError: one", 100),
        (2, "ValueError: two", 120),
    ]
    assert rows[0].sentence.endswith("; ignored by keep, and the other workers continued")


def test_a_node_with_a_wrong_clock_has_its_incident_at_the_right_time() -> None:
    a, b = failing("a", 0), failing("b", 1, ahead_s=3600)
    b.fail(reports=2)
    for node in (a, b):
        node.over("failure").spend(S.DECIDING, 1).end("failed", 1)
    report = report_of(a.found(), b.found())
    assert report.incidents[0].at_s == pytest.approx(100)
    assert report.nodes[1].clock_offset_s == pytest.approx(3600)


def test_a_clock_that_jumped_in_between_moves_no_incident_out_of_its_round() -> None:
    node = failing("a", 0).fail(age_s=-7200).over("failure").spend(S.DECIDING, 1).end("failed", 1)
    assert report_of(node.found()).incidents[0].at_s == pytest.approx(100)


def test_incidents_of_other_runs_in_a_chosen_directory_are_left_out() -> None:
    node = failing("a", 0).spend(S.PRODUCTIVE, 1).over("end").end()
    old = incident("a", 5, 6, node.wall_ns(-9000))
    other = incident("a", 0, 1, node.wall_ns(50), run_id="other")
    node.incidents += [FoundIncident(incident=each, path="x") for each in (old, other)]
    assert report_of(node.found()).incidents == ()


def test_a_hang_costs_time_from_the_last_progress_on() -> None:
    node = failing("a", 0, names=("a",)).spend(S.HUNG, 60)
    node.fail("hang: no step for 60 s", decision=Restart(rule="hang")).over("failure").spend(S.DECIDING, 2)
    node.note("decision", "restart").spend(S.RENDEZVOUS, 3).join(1, 0, NAMES[:1]).spend(S.STARTING, 5)
    node.spend(S.PRODUCTIVE, 30).over("end").end()
    (row,) = report_of(node.found()).incidents
    assert row.at_s == pytest.approx(160)
    assert row.lost_s == pytest.approx(60 + 2 + 3 + 5)
    assert row.detect_s == pytest.approx(2)
    assert row.recover_s == pytest.approx(8)


def test_a_hang_is_detected_when_it_is_decided_and_not_at_the_last_progress() -> None:
    node = failing("a", 0, names=("a",)).spend(S.HUNG, 60).fail("hang: no step for 60 s", age_s=60)
    found = replace(node.incidents[0].incident, hang=IncidentHang(ranks=(), step=7))
    node.incidents[0] = replace(node.incidents[0], incident=found)
    node.note("decision", "stop").over("failure").spend(S.STOPPING, 2).end("failed", 1)
    report = report_of(node.found())
    assert report.incidents[0].at_s == pytest.approx(100)
    (hung,) = [lost.text for lost in report.account.lost if lost.state is S.HUNG]
    assert hung == "1 min hung until the detection at 00:02:40 UTC"


def test_redone_time_belongs_to_the_failure_before_it() -> None:
    node = failing("a", 0, names=("a",))
    for index in (1, 2):
        node.fail(f"ValueError: {index}").over("failure").spend(S.STOPPING, 1)
        node.join(index, 0, NAMES[:1]).spend(S.REDONE, 10.0 * index).spend(S.PRODUCTIVE, 50)
    report = report_of(node.over("end").end().found())
    assert [row.lost_s for row in report.incidents] == [pytest.approx(11), pytest.approx(21)]
    assert report.account.lost[0].text == (
        "30 s redone after 2 failures: 20 s of it after the one at 00:02:41 UTC, no save is known"
    )


def test_steps_that_were_being_redone_when_a_failure_came_do_not_belong_to_it() -> None:
    node = failing("a", 0, names=("a",)).fail("ValueError: 1").over("failure").spend(S.STOPPING, 1)
    node.join(1, 0, NAMES[:1]).spend(S.REDONE, 9).fail("ValueError: 2").spend(S.REDONE, 1)
    node.over("failure").spend(S.STOPPING, 2).end("failed", 1)
    report = report_of(node.found())
    assert [row.lost_s for row in report.incidents] == [pytest.approx(11), pytest.approx(2)]
    (redone,) = [lost.text for lost in report.account.lost if lost.state is S.REDONE]
    assert redone == "10 s redone after the failure at 00:01:40 UTC, no save is known"


def test_redone_time_after_membership_changes_belongs_to_no_failure() -> None:
    node = failing("a", 0, names=("a",)).over("membership").spend(S.STOPPING, 1)
    node.join(1, 0, NAMES[:1]).spend(S.REDONE, 20).spend(S.PRODUCTIVE, 5)
    node.fail().over("failure").spend(S.STOPPING, 1).join(2, 0, NAMES[:1]).spend(S.REDONE, 4).over("end").end()
    lost = report_of(node.found()).account.lost
    assert lost[0].text == "24 s redone: 4 s of it after the failure at 00:02:06 UTC, no save is known"


def test_a_lost_node_is_named_once() -> None:
    lost = replace(
        incident("b", 3, 4, 0, text="n2 was lost (rank 1)", decision=Restart(rule="membership change")),
        first=None,
        failure_class=FailureClass.NODE_LOST,
    )
    assert sentence_of(lost) == "round 3 failed: n2 was lost (rank 1); restarted by membership change"


def test_failures_that_only_the_store_knows_are_there_too() -> None:
    node = failing("a", 0).over("failure").spend(S.DECIDING, 1).end("failed", 1)
    known = incident("b", 0, 0, 0, rank=1, decision=Stop(reason="no restart is left", rule="max-restarts"))
    store = StoreEvidence(where="redis", outcome="failed", exit_code=1, failures=(known,))
    (row,) = report_of(node.found(), store=store).incidents
    assert row.at_s == pytest.approx(100)
    assert (
        row.sentence
        == "round 0 failed: rank 1 on b raised ValueError: boom (train.py:11); the run was ended by max-restarts"
    )


def test_a_failure_of_no_worker_names_its_source() -> None:
    whole = incident("a", 2, 3, 0, text="ECC error on GPU 3")
    of_hook = replace(whole, first=None, reported_by="gpu-health")
    assert cause_of(of_hook) == "hook gpu-health on a: ECC error on GPU 3"
    elsewhere = replace(whole, first=None, elsewhere_rank=7, host="gpu-9")
    assert cause_of(elsewhere) == "rank 7 on gpu-9 failed: ECC error on GPU 3"
    early = replace(of_hook, round_index=-1)
    assert sentence_of(early) == "the run failed before a round: hook gpu-health on a: ECC error on GPU 3"


@pytest.mark.parametrize(
    ("decision", "text"),
    [
        (Restart(delay_s=2, exclude_nodes=("b",), reason="restart 1 of 3"), "restart in 2 s without b: restart 1 of 3"),
        (Stop(reason="budget used up"), "stop: budget used up"),
        (Ignore(rule="keep"), "ignore"),
    ],
)
def test_decisions_are_sentences(decision: Restart | Stop | Ignore, text: str) -> None:
    assert decision_text(decision) == text
