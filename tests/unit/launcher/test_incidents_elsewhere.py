"""What a node tells and writes of a failure on another node."""

import pytest
from msgspec.structs import replace

from elastic_core.failure.console import FailureConsole
from elastic_core.failure.evidence import read_run
from elastic_core.failure.incident import read_incident
from elastic_core.failure.incidents import Incidents
from elastic_core.logger import Logger
from elastic_core.moments import FieldsPublished
from elastic_core.reports import FailureReport
from elastic_core.rundir.incident_files import IncidentFiles
from elastic_core.types import (
    Failure,
    FailureClass,
    Restart,
    Round,
    Stop,
    WorkerExit,
)

ROUND = Round(
    index=1, token=2, nonce="n", node_rank=0, node_count=2, local_world_size=2, base_rank=0, world_size=4,
    role="default", role_base_rank=0, role_world_size=4, master_addr="a", master_port=1, node_id="a/10.0.0.1",
)  # fmt: skip


def make_failure(rank, **changes):
    values = {
        "failure_class": FailureClass.USER_EXCEPTION, "summary": "ValueError: boom", "node_id": "b/10.0.0.2",
        "round_index": 1, "at_s": 1.0, "uptime_s": 1.0, "exit_code": 9, "global_rank": rank, "local_rank": 0,
    }  # fmt: skip
    return Failure(**(values | changes))


def make_exit(rank, code, stop_signal=None):
    return WorkerExit(
        local_rank=rank, global_rank=rank, pid=100 + rank, code=code, at_s=1.0, at_ns=10, runtime_s=1.0,
        stop_signal=stop_signal, stop_sent_ns=stop_signal and 5,
    )  # fmt: skip


@pytest.fixture
def lines():
    return []


class Disk:
    """Does at once what it is given."""

    def lane(self, path):
        return None

    def run(self, path, work, have, *, lane, within_s):
        have(work(), None)


@pytest.fixture
def incidents(tmp_path, lines):
    log = Logger(lambda *said: lines.append("\n".join(said)))
    made = Incidents(
        "r",
        files=IncidentFiles(tmp_path),
        disk=Disk(),
        log=log,
        console=FailureConsole(log, "r", max_restarts=3),
        node_id="a",
    )
    made.begin_round({}, 1)
    return made


def test_a_restart_is_counted_for_the_run_and_names_the_node(incidents, lines):
    incidents.followed(make_failure(2), Restart(), restarts=2)
    assert lines == ["elastic: rank 2 failed: ValueError: boom (on b/10.0.0.2); restart 2 of 3 now"]


def test_restarts_that_began_no_workers_here_are_counted_like_all(incidents, lines):
    for count in (1, 2, 3):
        incidents.followed(make_failure(2), Restart(), restarts=count)
    assert [line.rpartition("; ")[2] for line in lines] == [f"restart {count} of 3 now" for count in (1, 2, 3)]


def test_a_restart_that_overrules_ours_is_the_same_restart(incidents, lines):
    incidents.decided(make_failure(1, node_id="a"), Restart(), "")
    incidents.followed(make_failure(2), Restart(), restarts=2)
    assert [line.rpartition("; ")[2] for line in lines] == ["restart 2 of 3 now"] * 2


def test_the_end_names_the_other_nodes_failure_whatever_failed_here_after_it(incidents, lines, tmp_path):
    stop = Stop(reason="no budget", rule="max-restarts")
    exits = [make_exit(0, 1), make_exit(1, -15, stop_signal=15)]
    assert incidents.record(ROUND, exits, make_failure(2), stop) == 9
    incident = read_incident(tmp_path / "incident.json")
    assert (incident.source, incident.first, incident.elsewhere_rank) == ("worker", None, 2)
    assert (incident.host, incident.exit_code) == ("b/10.0.0.2", 9)
    assert [worker.exit.global_rank for worker in incident.secondary] == [0]
    assert [worker.exit.global_rank for worker in incident.stopped] == [1]
    assert "rank 2 on b/10.0.0.2, another node" in lines[0]


def test_a_failure_of_this_node_is_told_in_full(incidents, tmp_path):
    own = make_failure(0, node_id="a/10.0.0.1")
    assert incidents.record(ROUND, [make_exit(0, 7)], own, Stop(reason="no budget")) == 7
    incident = read_incident(tmp_path / "incident.json")
    assert (incident.first.exit.global_rank, incident.elsewhere_rank, incident.node_id) == (0, None, "a/10.0.0.1")


def test_a_report_of_this_node_alone_reaches_the_other_nodes_with_its_hook_and_fields(incidents):
    report = FailureReport(summary="GPU 3 fell off the bus", fields={"xid": 79})
    incidents.observe(FieldsPublished(hook="gate", fields={"healthy": False}))
    cause = incidents.reported(ROUND, report, {0: 100}, hook="gate", uptime_s=3.0)
    assert cause.reported_by == "gate"
    told = incidents.report(ROUND, [make_exit(0, -15, stop_signal=15)], 1, ordered_s=0.0)
    failure, evidence = incidents.merge([replace(told, failure=replace(cause, node_id=told.node_id))], 1)
    incident = read_run(evidence)
    assert (failure.reported_by, incident.reported_by, incident.source) == ("gate", "gate", "launcher")
    assert (incident.fields, incident.hooks) == ({"xid": 79}, {"gate": {"healthy": False}})
    assert (incident.node_id, incident.decided_by, incident.stopped_count) == ("a/10.0.0.1", "a/10.0.0.1", 1)


def test_a_preempted_run_is_one_line(incidents, lines, tmp_path):
    failure = make_failure(
        None, failure_class=FailureClass.PREEMPTED, summary="node b was told to stop", local_rank=None
    )
    incidents.record(ROUND, (), failure, Stop(reason="node b was told to stop"))
    assert lines == [f"elastic: run 'r' was preempted: node b was told to stop. Incident: {tmp_path / 'incident.json'}"]
    assert read_incident(tmp_path / "incident.json").failure_class is FailureClass.PREEMPTED
