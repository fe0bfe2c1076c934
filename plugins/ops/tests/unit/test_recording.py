import json
import os
import subprocess
import sys
from functools import partial
from types import SimpleNamespace

import pytest

from elastic_core import worker
from elastic_core.compat.elastic.multiprocessing import errors as compat_errors
from elastic_ops import recording
from elastic_ops.recording import ErrorHandler, record


def caught(function, *arguments):
    try:
        function(*arguments)
    except BaseException as error:  # noqa: BLE001  # whatever it is, it is what the test is about
        return error
    raise AssertionError("nothing was raised")


def boom(message="boom"):
    raise ValueError(message)


def content(path):
    return json.loads(path.read_text())["message"]


def torch_form(path, message, **information):
    extra = {"py_callstack": "theirs", "timestamp": "1700000000"} | information
    path.write_text(json.dumps({"message": {"message": message, "extraInfo": extra}}))
    os.utime(path, ns=(5, 1_700_000_000_500_000_000))


class Log(ErrorHandler):
    def __init__(self):
        self.calls = []

    def initialize(self):
        self.calls.append("initialize")

    def record_exception(self, error):
        self.calls.append(error)

    def dump_error_file(self, rootcause_error_file, error_code=0):
        self.calls.append((rootcause_error_file, error_code))


def test_the_decorator_returns_what_the_function_returns_and_looks_like_it():
    log = Log()

    def main(left, *, right):
        """Add."""
        return left + right

    wrapped = record(main, log)
    assert wrapped(1, right=2) == 3
    assert (wrapped.__name__, wrapped.__doc__) == ("main", "Add.")
    assert log.calls == ["initialize"]


def test_the_decorator_records_exceptions_and_raises_the_same_object():
    log = Log()
    error = caught(record(boom, log))
    assert log.calls == ["initialize", error]


def test_exits_pass_unrecorded_and_exit_zero_returns():
    log = Log()

    def leave(code):
        raise SystemExit(code)

    assert record(leave, log)(0) is None
    assert caught(record(leave, log), 3).code == 3
    assert caught(record(leave, log), None).code is None
    assert set(log.calls) == {"initialize"}


def test_an_exit_with_a_message_is_recorded():
    log = Log()

    def leave():
        raise SystemExit("no data")

    error = caught(record(leave, log))
    assert log.calls == ["initialize", error]


def test_a_handler_that_fails_does_not_replace_the_error(caplog):
    class Broken(Log):
        def record_exception(self, error):
            raise OSError("no disk")

    assert isinstance(caught(record(boom, Broken())), ValueError)
    assert "error handler 'Broken' failed" in caplog.text


class NewerLog(Log):
    """One that uses what torch has from 2.15 on."""

    def set_entrypoint_fn_name(self, fn_name):
        self.calls.append(fn_name)

    def record_success(self):
        self.calls.append("success")


def test_a_handler_is_given_the_functions_name_and_its_success():
    log = NewerLog()
    assert record(lambda: 3, log)() == 3
    assert log.calls == [
        "test_a_handler_is_given_the_functions_name_and_its_success.<locals>.<lambda>",
        "initialize",
        "success",
    ]
    log.calls.clear()
    error = caught(record(partial(boom), log))  # has no name
    assert log.calls == [None, "initialize", error]
    log.calls.clear()
    assert record(partial(sys.exit, 0), log)() is None
    assert log.calls == [None, "initialize"]


def test_what_a_handler_raises_at_a_success_reaches_the_caller_unrecorded():
    log = NewerLog()
    log.record_success = partial(boom, "no success")
    assert str(caught(record(lambda: 3, log))) == "no success"
    assert log.calls[1:] == ["initialize"]


def test_a_handler_that_was_written_for_an_older_torch_serves():
    calls = []
    older = SimpleNamespace(
        initialize=partial(calls.append, "initialize"), record_exception=calls.append, dump_error_file=calls.append
    )
    assert record(lambda: 3, older)() == 3
    error = caught(record(boom, older))
    assert calls == ["initialize", "initialize", error]


def test_the_handler_that_is_set_serves_functions_wrapped_before():
    log = Log()
    wrapped = record(boom)
    recording.set_error_handler(lambda: log)
    try:
        assert recording.get_error_handler() is log
        error = caught(wrapped)
    finally:
        recording.set_error_handler(None)
    assert log.calls == ["initialize", error]
    assert type(recording.get_error_handler()) is ErrorHandler


def test_the_function_is_found_whatever_was_imported_before():
    assert worker.record is record is compat_errors.record


def test_a_child_failed_error_hands_its_first_failures_file_on():
    log = Log()

    class ChildFailedError(Exception):
        def get_first_failure(self):
            return 2, SimpleNamespace(error_file="/child.json", exitcode=-9)

    def main():
        raise ChildFailedError

    caught(record(main, log))
    assert log.calls == ["initialize", ("/child.json", -9)]


def test_without_an_error_file_the_error_is_logged(monkeypatch, caplog):
    monkeypatch.delenv("TORCHELASTIC_ERROR_FILE", raising=False)
    ErrorHandler().record_exception(caught(boom))
    assert "uncaught ValueError: boom" in caplog.text
    assert "raise ValueError(message)" in caplog.text


def test_an_error_file_that_cannot_be_written_is_logged_with_the_error(monkeypatch, caplog, tmp_path):
    (tmp_path / "file").touch()
    monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", str(tmp_path / "file" / "e"))
    ErrorHandler().record_exception(caught(boom))
    assert "not written" in caplog.text
    assert "uncaught ValueError: boom" in caplog.text


def test_a_failure_without_a_file_is_told_in_the_log(caplog):
    caplog.set_level("INFO", "elastic_ops")
    log = Log()

    class ChildFailedError(Exception):
        def get_first_failure(self):
            return 3, SimpleNamespace(error_file="<N/A>", exitcode=1)

    def main():
        raise ChildFailedError

    caught(record(main, log))
    assert log.calls == ["initialize"]
    assert "rank 3 failed without an error file" in caplog.text


def test_a_plain_record_has_no_place_for_an_exit_code(monkeypatch, tmp_path, caplog):
    child, own = tmp_path / "child", tmp_path / "own"
    child.write_text('{"message": "out of luck"}')
    monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", str(own))
    ErrorHandler().dump_error_file(str(child), 7)
    assert content(own) == "out of luck"
    assert "no place for exit code 7" in caplog.text


def test_a_childs_file_is_copied_with_its_exit_code(monkeypatch, tmp_path):
    child, own = tmp_path / "child", tmp_path / "own"
    torch_form(child, "KeyError: 'x'")
    monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", str(own))
    ErrorHandler().dump_error_file(str(child), 7)
    assert (content(own)["message"], content(own)["errorCode"]) == ("KeyError: 'x'", 7)


@pytest.mark.parametrize("text", [None, "{"])
def test_a_childs_file_that_says_nothing_is_named_in_the_log(monkeypatch, caplog, tmp_path, text):
    child, own = tmp_path / "child", tmp_path / "own"
    if text is not None:
        child.write_text(text)
    monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", str(own))
    ErrorHandler().dump_error_file(str(child), 7)
    assert str(child) in caplog.text
    assert not own.exists()


def test_a_script_that_imports_the_decorator_waits_for_no_import_of_the_core():
    code = "import sys; from elastic_core.worker import record; print('elastic_core.api' in sys.modules)"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout == "False\n"


@pytest.mark.parametrize("path", ["", "e"])
def test_without_what_writes_the_file_the_error_is_logged(monkeypatch, caplog, tmp_path, path):
    monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", path and str(tmp_path / path))
    monkeypatch.setitem(sys.modules, "elastic_core.api.workers", None)
    ErrorHandler().record_exception(caught(boom))
    assert "uncaught ValueError" in caplog.text
    assert "raise ValueError(message)" in caplog.text
