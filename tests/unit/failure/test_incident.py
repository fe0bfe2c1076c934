import json
import stat
from pathlib import Path

import msgspec
import pytest

from elastic_core.errors import ConfigError
from elastic_core.failure.classify import judge
from elastic_core.failure.incident import (
    MAX_CALLSTACK_CHARS,
    Incident,
    IncidentHang,
    IncidentHungRank,
    IncidentPhases,
    build_incident,
    exit_code_for,
    iso_time,
    read_incident,
    to_failure,
    write_incident,
)
from elastic_core.types import ErrorRecord, Failure, FailureClass, Ignore, Origin, Restart, Stop, WorkerExit

AT_NS = 1_700_000_000_123_456_789
MS = 1_000_000


def worker(rank, code=1, kind="ValueError", message="boom", *, at_ns=AT_NS, logs=(), callstack="", **fields):
    exit = WorkerExit(
        local_rank=rank,
        global_rank=rank,
        pid=100 + rank,
        code=code,
        at_s=1.0,
        at_ns=AT_NS + 20 * MS,
        runtime_s=9.0,
        **fields,
    )
    error = None
    if kind is not None:
        frames = (("/u/train.py", 12, "main", "raise ValueError('boom')"),)
        error = ErrorRecord(
            source="hook", type=kind, message=message, timestamp_ns=at_ns, frames=frames, callstack=callstack
        )
    return judge(exit, error, log_paths=logs)


def four_ranks():
    reset = [worker(rank, kind="ConnectionResetError", message="reset", at_ns=AT_NS + 60 * MS) for rank in (0, 1)]
    stopped = worker(3, -15, None, stop_signal=15, stop_sent_ns=AT_NS + 15 * MS)
    return [*reset, worker(2, 1, logs=("/r/2/stderr.log",)), stopped]


def build(workers, **changes):
    fields = {"run_id": "bert-7", "node_id": "n0", "host": "gpu-12", "round_index": 1, "round_token": 5}
    return build_incident(None, workers=workers, **(fields | changes))


def test_first_secondary_and_stopped_are_told_apart():
    incident = build(four_ranks(), restart_count=1, finished_count=2)
    assert incident.source == "worker"
    assert incident.first is not None
    assert incident.first.exit.global_rank == 2
    assert (incident.first.at_ns, incident.first.exit.at_ns) == (AT_NS, AT_NS + 20 * MS)
    assert [one.exit.global_rank for one in incident.secondary] == [0, 1]
    assert [one.exit.global_rank for one in incident.stopped] == [3]
    assert (incident.summary, incident.failure_class) == ("ValueError: boom", FailureClass.USER_EXCEPTION)
    assert (incident.at_ns, incident.at) == (AT_NS, "2023-11-14T22:13:20.123456789Z")
    assert (incident.restart_count, incident.finished_count, incident.exit_code) == (1, 2, 1)


@pytest.mark.parametrize(("code", "expected"), [(-15, 1), (-9, 1), (-11, 139), (3, 3)])
def test_the_signal_that_stopped_a_slow_first_cause_is_not_the_runs_exit_code(code, expected):
    slow = worker(0, code, stop_signal=15, stop_sent_ns=AT_NS + 15 * MS)
    assert slow.origin is Origin.INTRINSIC
    incident = build([slow, worker(1, 7, None)])
    assert incident.first is not None
    assert (incident.first.exit.global_rank, incident.exit_code) == (0, expected)


def test_a_round_in_which_nobody_failed_is_no_incident():
    with pytest.raises(ValueError, match="no worker failed by itself"):
        build([worker(0, -15, None, stop_signal=15, stop_sent_ns=0)])
    with pytest.raises(ValueError, match="no worker failed by itself"):
        build([])


@pytest.mark.parametrize(("code", "expected"), [(42, 42), (-9, 137), (-15, 143), (255, 255), (0, 1)])
def test_the_runs_exit_code_is_the_workers_own(code, expected):
    assert exit_code_for(code) == expected


@pytest.mark.parametrize(("round_index", "retryable"), [(0, False), (1, True)])
def test_usage_errors_are_beyond_hope_in_the_first_attempt_only(round_index, retryable):
    exit = WorkerExit(local_rank=0, global_rank=0, pid=1, code=1, at_s=1, at_ns=AT_NS, runtime_s=1)
    error = ErrorRecord(source="hook", type="SyntaxError", message="x", timestamp_ns=AT_NS, top_level_import=True)
    incident = build([judge(exit, error)], round_index=round_index)
    assert incident.retryable is retryable
    assert to_failure(incident, at_s=1, uptime_s=1).retryable is retryable


def test_the_policy_is_told_of_the_first_cause():
    failure = to_failure(build(four_ranks()), at_s=30.5, uptime_s=7.0)
    assert failure == Failure(
        failure_class=FailureClass.USER_EXCEPTION,
        summary="ValueError: boom",
        node_id="n0",
        round_index=1,
        at_s=30.5,
        uptime_s=7.0,
        exit_code=1,
        global_rank=2,
        local_rank=2,
        exception_type="ValueError",
        message="boom",
        fingerprint="user exception|ValueError|train.py:12|boom",
    )


def test_a_death_by_signal_has_no_exception_and_shells_exit_code():
    failure = to_failure(build([worker(0, -9, None)]), at_s=1, uptime_s=1)
    assert (failure.exit_code, failure.exception_type, failure.summary) == (137, "", "killed by SIGKILL (9)")
    assert (failure.signal, failure.fingerprint) == (9, "signal|||killed by SIGKILL (#)")


@pytest.mark.parametrize("code", [-15, -9])
def test_our_own_signal_is_not_what_killed_a_worker_that_had_failed(code):
    slow = worker(0, code, stop_signal=15, stop_sent_ns=AT_NS + 10 * MS)
    assert to_failure(build([slow]), at_s=1, uptime_s=1).signal is None


def test_the_policy_sees_the_end_of_stderr_and_the_size_of_the_round():
    first, second = (msgspec.structs.replace(worker(rank, at_ns=AT_NS + rank), log_tail="x" * 5000) for rank in (0, 1))
    incident = build([first, second], node_count=3)
    failure = to_failure(incident, at_s=1, uptime_s=1)
    assert (failure.log_tail, failure.node_count) == ("x" * 4096, 3)
    assert incident.secondary[0].log_tail == ""


def test_a_failure_of_the_launcher_has_no_first_worker_and_keeps_its_failure():
    failure = Failure(
        failure_class=FailureClass.RENDEZVOUS,
        summary="2 of at least 4 nodes joined within 600 s",
        node_id="n0",
        round_index=0,
        at_s=600,
        uptime_s=0,
        exit_code=4,
        retryable=False,
    )
    incident = build_incident(failure, run_id="bert-7", host="gpu-12", at_ns=AT_NS)
    assert (incident.source, incident.first, incident.exit_code) == ("launcher", None, 4)
    expected = msgspec.structs.replace(failure, fingerprint="rendezvous|||# of at least # nodes joined within # s")
    assert to_failure(incident, at_s=600, uptime_s=0) == expected


@pytest.mark.parametrize(
    ("decision", "kind"),
    [
        (Restart(delay_s=0.5, exclude_nodes=("n3",), rule="intensity"), "restart"),
        (Stop(reason="budget used", rule="intensity"), "stop"),
        (Ignore(rule="mine"), "ignore"),
    ],
)
def test_the_decision_is_recorded(decision, kind, tmp_path):
    path = tmp_path / "incident.json"
    write_incident(path, build(four_ranks(), decision=decision))
    assert read_incident(path).decision == decision
    assert json.loads(path.read_text())["decision"]["type"] == kind


def test_an_incident_of_another_schema_version_is_refused_with_one_line(tmp_path):
    path = tmp_path / "incident.json"
    path.write_text('{"schema_version": 1, "run_id": "x"}')
    line = f"{str(path)!r}: incident of schema version 1; expected 2. Try: the version of elastic-core that wrote it"
    with pytest.raises(ConfigError) as caught:
        read_incident(path)
    assert str(caught.value) == line


def test_the_file_round_trips_and_is_the_owners_alone(tmp_path):
    path = tmp_path / "incident.json"
    incident = build(four_ranks(), decision=Stop(reason="x"))
    incident = msgspec.structs.replace(incident, phases=IncidentPhases(detect_s=0.01, stop_s=2.0))
    path.write_text("old")
    write_incident(path, incident)
    assert read_incident(path) == incident
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [entry.name for entry in tmp_path.iterdir()] == ["incident.json"]


def test_the_file_has_the_documented_names(tmp_path):
    path = tmp_path / "incident.json"
    write_incident(path, build(four_ranks(), decision=Restart(rule="intensity")))
    content = json.loads(path.read_text())
    assert content["schema_version"] == 2
    assert content["round_index"] == 1
    assert content["source"] == "worker"
    assert content["failure_class"] == "user exception"
    first = content["first"]
    assert (first["exit"]["code"], first["at_ns"]) == (1, AT_NS)
    assert first["log_paths"] == ["/r/2/stderr.log"]
    assert first["error"]["frames"] == [["/u/train.py", 12, "main", "raise ValueError('boom')"]]
    assert content["stopped"][0]["exit"]["code"] == -15
    assert content["decision"]["type"] == "restart"
    assert content["phases"] == {"detect_s": None, "stop_s": None, "rendezvous_s": None, "start_s": None}


def documented_fields(heading):
    page = Path(__file__).parents[3] / "docs" / "reference" / "incident.md"
    section = page.read_text().split(f"## {heading}\n", 1)[1].split("\n## ", 1)[0]
    rows = [line.split("|")[1] for line in section.splitlines() if line.startswith("| `")]
    return {name.strip().strip("`") for row in rows for name in row.split(",")}


@pytest.mark.parametrize(
    ("heading", "key"),
    [("The file", None), ("A failed worker", "first"), ("Its exit", "exit"), ("Its error", "error")],
)
def test_the_reference_page_documents_every_field(heading, key):
    content = msgspec.to_builtins(build(four_ranks(), decision=Stop(reason="x")))
    part = {None: content, "first": content["first"]}.get(key) or content["first"][key]
    assert documented_fields(heading) == set(part)


@pytest.mark.parametrize(("heading", "record"), [("A hang", IncidentHang), ("A rank of a hang", IncidentHungRank)])
def test_the_reference_page_documents_every_field_of_a_hang(heading, record):
    assert documented_fields(heading) == set(record.__struct_fields__)


def test_a_write_that_fails_leaves_the_old_file_and_nothing_else(tmp_path):
    target = tmp_path / "incident.json"
    target.mkdir()
    with pytest.raises(OSError, match="directory"):
        write_incident(target, build(four_ranks()))
    assert [entry.name for entry in tmp_path.iterdir()] == ["incident.json"]


def test_another_version_of_the_schema_with_more_fields_can_be_read():
    content = msgspec.to_builtins(build(four_ranks())) | {"new_field": 1}
    assert msgspec.convert(content, Incident).run_id == "bert-7"


def test_long_callstacks_keep_their_end_and_many_workers_stay_small(tmp_path):
    long = "x" * 10**6 + "ValueError: boom"
    workers = [worker(rank, callstack=long, at_ns=AT_NS + rank) for rank in range(64)]
    incident = build(workers)
    assert incident.first is not None
    assert incident.first.error is not None
    assert len(incident.first.error.callstack) == MAX_CALLSTACK_CHARS
    assert incident.first.error.callstack.endswith("ValueError: boom")
    write_incident(tmp_path / "i", incident)
    assert (tmp_path / "i").stat().st_size < 400_000


def test_iso_time_has_nanoseconds():
    assert iso_time(5) == "1970-01-01T00:00:00.000000005Z"
