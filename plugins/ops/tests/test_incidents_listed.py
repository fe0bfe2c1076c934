"""Incidents of a store: what is known of each, and all of the last one where the nodes left it."""

import pytest
from msgspec.structs import replace

from elastic_core.api import FailedWorker, Failure, FailureClass, Origin, Restart, Stop, WorkerExit, encode_json
from elastic_core.cli.main import main
from elastic_core.failure.incident import build_incident, write_incident
from elastic_core.failure.report import render_incident
from elastic_ops.incidents.listed import incidents_of_directories, incidents_of_store
from elastic_ops.run_directories import FoundRun
from elastic_ops.stored_run import StoredFailure
from terminal_kit import CODE, RED

RESTART = Restart(delay_s=2.0, rule="max-restarts")
STOP = Stop(reason="budget used up", outcome="failed", rule="max-restarts")
HISTORY = (
    StoredFailure(
        failure_class="signal", summary="killed by SIGKILL (9)", node_id="b", round_index=0, at_s=2.0, global_rank=3,
        decision=RESTART,
    ),
    StoredFailure(failure_class="hang", summary="no step", node_id="a", round_index=1, at_s=9.25, decision=STOP),
)  # fmt: skip


def full(**changes):
    failure = Failure(
        failure_class=FailureClass.HANG, summary="no step", node_id="a", round_index=1, at_s=9.0, uptime_s=1.0
    )
    incident = build_incident(failure, run_id="x", host="gpu-1", at_ns=10**18)
    exit = WorkerExit(local_rank=0, global_rank=0, pid=7, code=1, at_s=1.0, at_ns=10**18, runtime_s=1.0)
    first = FailedWorker(
        exit=exit, origin=Origin.INTRINSIC, failure_class=FailureClass.HANG, summary="no step", at_ns=10**18
    )
    return replace(incident, first=first, **changes)


def test_each_failure_is_an_incident_with_its_decision_and_the_restarts_before_it():
    first, second = (one.incident for one in incidents_of_store("x", HISTORY))
    assert (first.failure_class, first.elsewhere_rank, first.source) == (FailureClass.SIGNAL, 3, "worker")
    assert (first.decision, first.restart_count) == (RESTART, 0)
    assert (second.source, second.decision.reason, second.restart_count) == ("launcher", "budget used up", 1)
    assert "rank 3 on b" in render_incident(first)
    assert "9.2 s into the run" in render_incident(second)


def test_the_last_one_is_whole_where_the_nodes_left_it():
    first, second = (one.incident for one in incidents_of_store("x", HISTORY, encode_json(full()).decode()))
    assert first.first is None
    assert (second.first.exit.pid, second.at_ns) == (7, 10**18)
    assert second.decision.reason == "budget used up"


@pytest.mark.parametrize("evidence", ["", "{}", "nonsense", encode_json(full(round_index=0)).decode()])
def test_other_evidence_is_left_alone(evidence):
    assert incidents_of_store("x", HISTORY, evidence)[-1].incident.first is None


def test_a_class_of_a_later_version_does_no_harm():
    (one,) = incidents_of_store("x", (StoredFailure(failure_class="cosmic ray", summary="bit 3"),))
    assert one.incident.summary == "bit 3"


def test_nothing_failed():
    assert incidents_of_store("x", (), encode_json(full()).decode()) == []


def test_an_incident_in_full_has_colours_on_request(monkeypatch, capsys, tmp_path):
    (tmp_path / "incident.json").write_bytes(encode_json(full()))
    assert main(["incidents", "--last", str(tmp_path)]) == 0
    plain = capsys.readouterr().out
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert main(["incidents", "--last", str(tmp_path)]) == 0
    coloured = capsys.readouterr().out
    assert CODE.sub("", coloured) == plain
    assert coloured.startswith(f"{RED}── ")
    assert main(["incidents", "--last", "--json", str(tmp_path)]) == 0
    assert "\x1b" not in capsys.readouterr().out


def test_agents_on_one_machine_list_a_lost_node_once_and_a_later_run_of_that_id_again(tmp_path):
    failure = Failure(
        failure_class=FailureClass.NODE_LOST, summary="b was lost", node_id="b", round_index=1, at_s=9.0, uptime_s=1.0
    )
    incident = build_incident(failure, run_id="x", host="b", round_token=2, decision=Restart(rule="membership change"))
    runs = []
    for name, after_s in (("c", 1), ("a", 0), ("later", 7200), ("later-too", 7201)):
        (tmp_path / name).mkdir()
        runs.append(FoundRun(path=str(tmp_path / name)))
        write_incident(tmp_path / name / "incident-lost-0.json", replace(incident, at_ns=10**18 + after_s * 10**9))
    listed = incidents_of_directories(runs)
    assert [one.path for one in listed] == [str(tmp_path / name / "incident-lost-0.json") for name in ("a", "later")]
