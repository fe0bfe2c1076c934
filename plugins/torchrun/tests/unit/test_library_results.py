"""What a caller of the library is told of a run that failed."""

import os

import pytest

from elastic_core.errors import ConfigError
from elastic_core.launcher.outcome import RunOutcome
from elastic_core.types import Failure, FailureClass, WorkerExit
from elastic_torchrun.hosting.hosted import barrier_from
from elastic_torchrun.launcher.library_run import failures_of


def outcome(*exits):
    made = RunOutcome()
    made.exits = {exit.global_rank: exit for exit in exits}
    return made


def ended(rank, code, *, stop_signal=None, at_ns=5):
    return WorkerExit(
        local_rank=rank - 4, global_rank=rank, pid=100 + rank, code=code, at_s=0.0, at_ns=at_ns, runtime_s=1.0,
        stop_signal=stop_signal,
    )  # fmt: skip


def cause(rank, **changes):
    values = {
        "failure_class": FailureClass.EXIT,
        "summary": "exit code 7",
        "node_id": "n",
        "round_index": 0,
        "at_s": 0.0,
        "uptime_s": 0.0,
        "exit_code": 7,
        "global_rank": rank,
        "local_rank": rank and rank - 4,
    }
    return Failure(**(values | changes))


def test_workers_that_failed_by_themselves_are_told_and_the_verdict_is_first():
    failures = failures_of(outcome(ended(4, 3, at_ns=1), ended(5, 7, at_ns=2), ended(6, -15, stop_signal=15)), cause(5))
    assert set(failures) == {4, 5}
    assert (failures[5].local_rank, failures[5].pid, failures[5].exitcode) == (1, 105, 7)
    assert failures[5].message == "exit code 7"
    assert min(failures, key=lambda rank: failures[rank].timestamp_ns) == 5


def test_another_nodes_failure_is_everybodys():
    failures = failures_of(outcome(ended(4, -15, stop_signal=15)), cause(0, local_rank=0, signal=9, exit_code=137))
    assert set(failures) == {0}
    assert (failures[0].exitcode, failures[0].error_file) == (-9, "<N/A>")


def test_a_hung_worker_that_had_to_be_killed_has_failed():
    failures = failures_of(outcome(ended(4, -9, stop_signal=15)), cause(4, summary="no heartbeat", exit_code=1))
    assert failures[4].message == "no heartbeat"


def test_without_a_worker_to_blame_there_is_no_failure_of_one():
    assert failures_of(outcome(), cause(None)) == {}


def test_a_record_is_kept_as_it_is(tmp_path):
    file = tmp_path / "error.json"
    file.write_text('{"message": {"message": "ValueError: x", "extraInfo": {"timestamp": "5"}}}')
    made = outcome(ended(4, 7))
    made.error_files = {4: os.fspath(file)}
    assert failures_of(made, cause(4))[4].message["message"] == "ValueError: x"


@pytest.mark.parametrize(("text", "seconds"), [(None, 300.0), ("", 300.0), ("12.5", 12.5), ("0", 0.0)])
def test_the_barrier_of_torchs_handlers_comes_from_the_environment(text, seconds):
    assert barrier_from({} if text is None else {"TORCH_ELASTIC_EXIT_BARRIER_TIMEOUT": text}) == seconds


@pytest.mark.parametrize("text", ["soon", "-1", "inf", "nan"])
def test_a_barrier_that_cannot_be_is_refused(text):
    with pytest.raises(ConfigError, match=r"TORCH_ELASTIC_EXIT_BARRIER_TIMEOUT: .*expected seconds"):
        barrier_from({"TORCH_ELASTIC_EXIT_BARRIER_TIMEOUT": text})
