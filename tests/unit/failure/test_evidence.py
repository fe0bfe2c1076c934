"""One incident of what all nodes have seen: the first cause among them, and who was stopped because of it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from elastic_core.encoding import encode_json
from elastic_core.failure.classify import LOST_PEER_S, judge, rank_causes, wait_s
from elastic_core.failure.evidence import (
    RUN_BYTES,
    first_cause,
    node_evidence,
    read_run,
    run_incident,
)
from elastic_core.failure.incident import build_incident, to_failure
from elastic_core.failure.report import MAX_LINES, render_attempt, render_incident
from elastic_core.messages import PublishDecision
from elastic_core.rendezvous.member.documents import EVIDENCE_BYTES, RUN_EVIDENCE_BYTES, document_of
from elastic_core.reports import Absence, NodeReport
from elastic_core.types import ErrorRecord, Failure, FailureClass, Origin, Restart, Stop, WorkerExit

RESET = "ConnectionResetError"


def worker(rank, kind="ValueError", *, at_ns=1_000, stopped=False, long=1):
    error = None
    if not stopped:
        frames = tuple((f"/code/train{'x' * long}.py", line, "main", "step()" * long) for line in range(30))
        error = ErrorRecord(
            source="hook", type=kind, message="boom" * long, timestamp_ns=at_ns, frames=frames, callstack="x" * 30_000
        )
    exit = WorkerExit(
        local_rank=rank % 4, global_rank=rank, pid=100 + rank, code=-15 if stopped else 1, at_s=1.0, at_ns=2_000,
        runtime_s=1.0, stop_signal=15 if stopped else None, stop_sent_ns=1_500 if stopped else None,
    )  # fmt: skip
    return judge(exit, error, log_paths=("/logs/" + "y" * long,))


def report(node, *workers, age_s=0.0, finished=0, final=True):
    failed = [one for one in workers if one.origin is not Origin.STOPPED]
    incident = None
    if failed:
        incident = build_incident(None, run_id="r", node_id=node, host=f"host-{node}", round_index=0, workers=workers)
    return NodeReport(
        node_id=node,
        failure=to_failure(incident, at_s=0.0, uptime_s=0.0) if incident else None,
        age_s=age_s,
        collateral=bool(incident) and rank_causes(failed)[0].origin is Origin.COLLATERAL,
        failed_count=len(failed),
        stopped_count=len(workers) - len(failed),
        finished_count=finished,
        evidence=node_evidence(f"host-{node}", workers, incident),
        final=final,
    )


def merged(*reports):
    return run_incident(reports, run_id="r", at_ns=5, restarts=2)


# --- the first cause


@pytest.mark.parametrize(
    ("reset_age_s", "first"), [(0.50, "b"), (0.99, "b"), (1.01, "a")], ids=["together", "soon after", "long before"]
)
def test_what_only_lost_a_peer_goes_behind_what_failed_by_itself_within_half_a_second(reset_age_s, first):
    reports = [report("a", worker(0, RESET), age_s=reset_age_s), report("b", worker(4), age_s=0.5)]
    assert first_cause(reports).node_id == first
    assert first_cause(reversed(reports)).node_id == first


@pytest.mark.parametrize(("later_s", "first"), [(0.9, "b"), (1.1, "a")])
def test_what_only_lost_a_peer_goes_behind_one_that_was_slow_to_end(later_s, first):
    slow = replace(report("b", worker(4), age_s=2.0 - later_s), timed=False)
    reports = [report("a", worker(0, RESET), age_s=2.0), slow, report("c", worker(8, RESET), age_s=1.9)]
    assert first_cause(reports).node_id == first
    assert first_cause(reversed(reports)).node_id == first


def test_the_older_failure_is_first_and_of_equals_the_lower_rank():
    assert first_cause([report("a", worker(0), age_s=0.1), report("b", worker(4), age_s=0.2)]).node_id == "b"
    assert first_cause([report("b", worker(4), age_s=0.1), report("a", worker(0), age_s=0.1)]).node_id == "a"
    assert first_cause([report("a", worker(0, stopped=True))]) is None


@given(st.lists(st.tuples(st.floats(0, 1), st.floats(0, 0.4)), max_size=5))
def test_no_lost_peer_goes_before_its_cause_however_late_the_word_of_the_stop_is(peers):
    """The cause's node orders the stop after a tenth of a second; the others hear of it up to 0.4 s later."""
    others = [
        report(f"n{rank}", worker(rank, RESET), age_s=0.1 + heard_s - lost_s)
        for rank, (lost_s, heard_s) in enumerate(peers, start=1)
    ]
    assert first_cause([*others, report("cause", worker(0), age_s=0.1)]).node_id == "cause"


@given(
    st.dictionaries(
        st.sampled_from("abcdef"), st.tuples(st.floats(0, 1), st.booleans(), st.floats(-50, 50)), min_size=1
    )
)
def test_the_order_is_that_of_one_clock_whatever_the_clocks(nodes):
    """Each node's clock is off by seconds; all hear of the stop at the same moment."""
    stop_s, reports, workers = 2.0, [], []
    for rank, (name, (at_s, collateral, _)) in enumerate(sorted(nodes.items())):
        kind = RESET if collateral else "ValueError"
        at_ns = round(at_s * 1e9)
        reports.append(report(name, worker(rank, kind), age_s=stop_s - at_ns / 1e9))
        workers.append(worker(rank, kind, at_ns=at_ns))
    blamed = first_cause(reports).failure.global_rank
    times = [one.at_ns + 500_000_000 * (one.origin is Origin.COLLATERAL) for one in workers]
    assert times[blamed] - min(times) < 1_000
    if len({one.origin for one in workers}) == 1:  # of two kinds a node, which has one clock, waits less
        first = rank_causes(workers)[0]
        assert blamed == first.exit.global_rank or times[blamed] - times[first.exit.global_rank] < 1_000


@given(st.lists(st.tuples(st.integers(0, 3_000_000), st.booleans()), min_size=1, max_size=6))
def test_of_a_kind_the_older_failure_is_first_whichever_node_tells_first(failures):
    reports = [
        report(f"n{rank}", worker(rank, RESET if collateral else "ValueError"), age_s=age_us / 1e6)
        for rank, (age_us, collateral) in enumerate(failures)
    ]
    first = first_cause(reports)
    assert first_cause(reversed(reports)) == first
    assert first.age_s == max(one.age_s for one in reports if one.collateral == first.collateral)


def test_a_node_waits_as_long_for_the_cause_as_it_yields_to_it():
    assert wait_s([worker(0, RESET)], peers=True) == LOST_PEER_S


# --- the incident


def test_workers_that_left_the_round_are_not_among_the_stopped():
    a = replace(report("a", worker(0), worker(1, stopped=True)), kept_count=2)
    failure, incident = merged(a, replace(report("b"), kept_count=4))
    assert (incident.stopped_count, incident.kept_count) == (1, 6)
    assert (failure.alive_count, failure.kept_count) == (7, 6)
    text = render_incident(replace(incident, decision=Restart()))
    assert "1 other stopped because of it, 6 others kept running, on 2 nodes: a, b" in text


def test_all_that_nodes_know_is_in_one_incident():
    b = report("b", worker(4), worker(5, stopped=True), age_s=0.5)
    a = report("a", worker(0, RESET), worker(1, stopped=True), worker(2, stopped=True), age_s=0.3)
    failure, incident = merged(a, b, report("c", finished=4))
    assert (failure.global_rank, failure.node_id) == (4, "b")
    assert (incident.first.exit.global_rank, incident.node_id, incident.host) == (4, "b", "host-b")
    assert [one.exit.global_rank for one in incident.secondary] == [0]
    assert (incident.failed_count, incident.stopped_count, incident.finished_count) == (1, 3, 4)
    assert incident.stopped_ranks == ((1, 2), (5, 5))
    assert (incident.report_count, [node.node_id for node in incident.nodes]) == (3, ["a", "b", "c"])
    assert incident.phases.detect_s == 0.5
    assert read_run(encode_json(incident).decode()) == incident
    text = render_incident(replace(incident, decision=Stop(reason="no budget")))
    assert "3 others stopped because of it, 1 other failed after it, on 3 nodes: a, b, c" in text
    assert "secondary failures: rank 0: ConnectionResetError: boom" in text
    assert "stopped by the launcher: ranks 1, 2, 5" in text
    assert "4 workers had finished before" in text
    assert "kept running" not in text
    assert "Logs on b:" in text
    line = render_attempt(replace(incident, decision=Restart()), restart=1, max_restarts=3)
    assert "rank 4 failed: ValueError: boom (trainx.py:29 on b); 1 other failed after it; restart 1 of 3 now" in line


def test_a_thousand_nodes_and_long_texts_fit():
    reports = [report(f"n{i:04}", worker(4 * i, stopped=True)) for i in range(1000)]
    reports[7] = report("n0007", *(worker(28 + i, long=300) for i in range(4)), age_s=1.0)
    reports[9] = report("n0009", *(worker(36 + i, RESET, long=300) for i in range(4)), age_s=1.0)
    assert max(len(one.evidence.encode()) for one in reports) <= EVIDENCE_BYTES
    _, incident = merged(*reports)
    assert len(encode_json(incident)) <= RUN_BYTES <= RUN_EVIDENCE_BYTES
    assert (incident.report_count, incident.failed_count, incident.stopped_count) == (1000, 7, 998)
    assert incident.first.error.callstack
    assert len(render_incident(incident).splitlines()) <= MAX_LINES


def published(decision, failure, evidence):
    """Return the evidence that goes to all nodes with a decision."""
    decided = PublishDecision(decision=decision, failure=failure, evidence=evidence)
    return document_of(decided, by="a", token=1, nonce="x").evidence


@pytest.mark.parametrize("text", ["x", "語", "\x1b"], ids=["plain", "long in UTF-8", "long in JSON"])
def test_whatever_is_long_the_incident_fits_for_hooks_hear_of_no_decision_without_it(text):
    long = Failure(
        failure_class=FailureClass.HEALTH_CHECK, summary=text * 40_000, node_id="b", round_index=0, at_s=0.0,
        uptime_s=0.0,
    )  # fmt: skip
    _, incident = merged(report("a", worker(0, RESET)), replace(report("b"), failure=long))
    assert len(encode_json(incident)) <= RUN_BYTES
    assert incident.summary.startswith(text * 100)
    assert published(Restart(), long, encode_json(incident).decode())


@pytest.mark.parametrize("decision", [Restart(), Stop(reason="no budget")])
def test_evidence_that_does_not_fit_all_the_same_leaves_a_decision_for_the_whole_run(decision):
    told = published(decision, report("a", worker(0)).failure, "x" * (RUN_EVIDENCE_BYTES + 1))
    assert told  # by which each node knows that its hooks have not had it
    assert read_run(told) is None


def test_a_failure_without_a_worker_is_the_launchers():
    refused = Failure(
        failure_class=FailureClass.HEALTH_CHECK, summary="hot", node_id="b", round_index=0, at_s=0.0, uptime_s=0.0
    )
    told = replace(report("b"), failure=refused)
    failure, incident = merged(report("a", worker(0, stopped=True)), told)
    assert failure == replace(refused, alive_count=1, kept_count=0)
    assert (incident.source, incident.first, incident.host, incident.restart_count) == ("launcher", None, "host-b", 2)
    assert "1 other stopped because of it" in render_incident(incident)


@pytest.mark.parametrize("text", ["", "{", '{"host":1}', "[]"])
def test_evidence_that_cannot_be_read_leaves_what_the_report_itself_says(text):
    failure, incident = merged(replace(report("b", worker(4)), evidence=text))
    assert (failure.global_rank, incident.summary) == (4, "ValueError: boom")
    assert read_run(text) is None


def test_no_reason_at_all_is_said_to_be_none():
    failure, incident = merged(report("a", worker(0, stopped=True)))
    assert failure.summary == incident.summary == "the run was stopped, and no node has said why"


def test_nodes_that_were_left_out_are_listed_and_have_seen_nothing():
    gate = Absence(by="hook 'gate' (acme 1.0)", reason="ECC" * 100, for_s=2.0)
    policy = Absence(by="policy 'rules'", reason="exit code 7", refused=False)
    out = [NodeReport(node_id="b", absence=gate), NodeReport(node_id="c", absence=policy)]
    failure, incident = merged(report("a", worker(0)), *out)
    assert failure.node_id == "a"
    assert (incident.report_count, [node.node_id for node in incident.nodes]) == (1, ["a"])
    assert [(one.node_id, one.by, one.refused, one.until_ns) for one in incident.absent] == [
        ("b", "hook 'gate' (acme 1.0)", True, 5 + 2_000_000_000),
        ("c", "policy 'rules'", False, 0),
    ]
    assert len(incident.absent[0].reason) < 300
    many = [NodeReport(node_id=f"n{i:04}", absence=gate) for i in range(1000)]
    _, incident = merged(report("a", *(worker(i, long=300) for i in range(8))), *many)
    assert len(encode_json(incident)) <= RUN_BYTES


def test_what_hooks_say_travels_unless_it_is_too_long_to():
    def said(size, published=0):
        found = build_incident(
            None, run_id="r", node_id="a", host="host-a", round_index=0, workers=[worker(0, long=50)]
        )
        hooks = {"act": {"text": "p" * published}}
        found = replace(found, reported_by="act", fields={"gpu": 3, "text": "x" * size}, hooks=hooks)
        told = NodeReport(
            node_id="a", failure=to_failure(found, at_s=0.0, uptime_s=0.0), evidence=node_evidence("h", (), found)
        )
        assert len(told.evidence) <= EVIDENCE_BYTES
        return merged(told)

    failure, incident = said(1_000)
    assert (failure.reported_by, incident.reported_by, incident.fields["gpu"]) == ("act", "act", 3)
    _, incident = said(1_000, published=100_000)
    assert (incident.fields["gpu"], incident.hooks) == (3, {})
    _, incident = said(100_000)
    assert (incident.reported_by, incident.fields, incident.first.summary) == ("act", {}, worker(0, long=50).summary)
