import json
import os
import pickle
import signal
from types import SimpleNamespace

import pytest

from elastic_core.errors import ElasticError
from elastic_ops.recording import ErrorHandler, set_error_handler
from elastic_torchrun.processes.child_failed import ChildFailedError
from elastic_torchrun.processes.process_failure import ProcessFailure

NS = 10**9


def write(path, message, **beside):
    path.write_text(json.dumps({"message": message} | beside))
    return str(path)


def torchs(text="ValueError: boom", **information):
    return {
        "message": text,
        "extraInfo": {"py_callstack": "Traceback\n  deep\n", "timestamp": "1700000000"} | information,
    }


def test_a_record_gives_message_and_time(tmp_path):
    path = write(tmp_path / "e", torchs())
    failure = ProcessFailure(local_rank=1, pid=5, exitcode=1, error_file=path)
    assert failure.error_file == path
    assert failure.message == failure.error_file_data["message"] == torchs()
    assert (failure.timestamp, failure.timestamp_ns) == (1_700_000_000, 1_700_000_000 * NS)
    assert failure.timestamp_isoformat()[4:5] + failure.timestamp_isoformat()[10:11] == "-_"


def test_the_time_is_as_fine_as_the_file_tells(tmp_path):
    ours = write(tmp_path / "ours", torchs(timestamp_ns=1_700_000_000 * NS + 7))
    assert ProcessFailure(0, 5, 1, ours).timestamp_ns == 1_700_000_000 * NS + 7
    theirs = write(tmp_path / "theirs", torchs())
    os.utime(theirs, ns=(5, 1_700_000_000 * NS + 9))
    assert ProcessFailure(0, 5, 1, theirs).timestamp_ns == 1_700_000_000 * NS + 9


def test_the_plain_form_is_understood_with_and_without_its_time(tmp_path):
    path = write(tmp_path / "e", "out of luck", timestamp=1_600_000_000)
    failure = ProcessFailure(0, 5, 1, path)
    assert (failure.message, failure.timestamp) == ("out of luck", 1_600_000_000)
    path = write(tmp_path / "f", "out of luck")
    os.utime(path, ns=(5, 3 * NS))
    assert ProcessFailure(0, 5, 1, path).timestamp == 3


@pytest.mark.parametrize("content", ["", '{"mess', "[1, 2]", '{"message": 3}', '{"other": 1}', "\0\udcff"])
def test_a_file_that_cannot_be_understood_costs_detail_only(tmp_path, content):
    path = tmp_path / "e"
    path.write_text(content, errors="surrogateescape")
    failure = ProcessFailure(0, 5, -9, str(path), ended_ns=4 * NS)
    assert failure.message == "Signal 9 (SIGKILL) received by PID 5"
    assert (failure.error_file, failure.timestamp) == (str(path), 4)


def test_without_a_file_it_says_how_it_ended():
    failure = ProcessFailure(0, 5, 3, "")
    assert failure.error_file == "<N/A>"
    assert failure.error_file_data == {
        "message": "<NONE>",
        "errorTraits": {"category": "system_terminated_error", "retryability": "False"},
    }
    assert "@record" in failure.message
    killed = ProcessFailure(1, 6, -signal.SIGSEGV, "/nowhere")
    assert killed.message == "Signal 11 (SIGSEGV) received by PID 6"
    assert killed.error_file_data == {"message": "<NONE>"}  # nothing of the other's
    assert (killed.signal_name(), failure.signal_name()) == ("SIGSEGV", "<N/A>")
    assert ProcessFailure(0, 5, -4000, "").signal_name() == "<N/A>"


def failed():
    late = ProcessFailure(0, 10, 1, "", ended_ns=2 * NS + 5)
    first = ProcessFailure(1, 11, -9, "", ended_ns=2 * NS + 1)
    return ChildFailedError("train.py", {4: late, 5: first})


def test_the_first_failure_is_told_apart_within_a_second():
    error = failed()
    assert error.get_first_failure() == (5, error.failures[5])
    assert error.exit_code == 137
    assert isinstance(error, ElasticError)


def test_the_report_ends_with_the_first_failure(tmp_path):
    lines = str(failed()).splitlines()
    assert (lines[0], lines[2]) == ("", "train.py FAILED")
    assert lines[4:6] == ["Failures:", "[0]:"]
    root = lines[lines.index("Root Cause (first observed failure):") :]
    assert root[1] == "[1]:"
    assert root[4:] == [
        "  rank      : 5 (local_rank: 1)",
        "  exitcode  : -9 (pid: 11) (SIGKILL)",
        "  error_file: <N/A>",
        "  traceback : Signal 9 (SIGKILL) received by PID 11",
        lines[1],
    ]
    only = ChildFailedError("t", {0: ProcessFailure(0, 1, 1, write(tmp_path / "e", torchs()))})
    assert "<NO_OTHER_FAILURES>" in str(only)
    assert "  traceback : Traceback\n    deep\n" in str(only)
    assert only.format_msg("*", "~").splitlines()[1].startswith("***")


def test_the_process_own_handler_may_say_more_of_what_a_signal_ended(caplog):
    class Knows(ErrorHandler):
        def maybe_enrich_signal_failure_message(self, message, error_file):
            return f"{message}; the device of {error_file} has gone"

    class Fails(ErrorHandler):
        def maybe_enrich_signal_failure_message(self, message, error_file):
            raise KeyError(error_file)

    plain = str(failed())
    try:
        set_error_handler(Knows)
        text = str(failed())
        set_error_handler(Fails)
        assert str(failed()) == plain
        set_error_handler(SimpleNamespace)  # written before torch 2.15
        assert str(failed()) == plain
    finally:
        set_error_handler(None)
    assert "received by PID 11; the device of <N/A> has gone" in text
    assert text.count("has gone") == 1  # rank 4 was not ended by a signal
    assert "KeyError" in caplog.text


def test_there_is_no_error_without_failures():
    with pytest.raises(ValueError, match="at least one failure"):
        ChildFailedError("train.py", {})


def test_both_pickle():
    error = failed()
    again = pickle.loads(pickle.dumps(error))
    assert (again.name, again.failures, str(again), again.exit_code) == ("train.py", error.failures, str(error), 137)
