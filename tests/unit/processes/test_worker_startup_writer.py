import json
import os

import pytest

from elastic_core.processes.errors import writer
from elastic_core.worker import startup


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


def test_a_recorders_file_about_the_same_exception_keeps_its_content_and_gains_ours(tmp_path):
    path = tmp_path / "e"
    torch_form(path, "ValueError: boom", mine=1)
    writer.write_exception(str(path), caught(boom))
    extra = content(path)["extraInfo"]
    assert (extra["py_callstack"], extra["timestamp"], extra["mine"]) == ("theirs", "1700000000", 1)
    assert extra["timestamp_ns"] == 1_700_000_000_500_000_000
    assert (extra["type"], extra["source"]) == ("ValueError", "record")
    assert extra["frames"][-1][2] == "boom"


def test_the_recorded_cause_of_a_wrapped_exception_stays_the_root(tmp_path):
    path = tmp_path / "e"
    torch_form(path, "ValueError: boom")

    def wrap():
        try:
            boom()
        except ValueError as error:
            raise RuntimeError("while training") from error

    writer.write_exception(str(path), caught(wrap))
    assert content(path)["message"] == "ValueError: boom"
    assert content(path)["extraInfo"]["type"] == "ValueError"


def test_a_record_of_an_earlier_exception_that_was_survived_is_replaced(tmp_path):
    path = tmp_path / "e"
    torch_form(path, "KeyError: 'survived'")
    writer.write_exception(str(path), caught(boom))
    assert content(path)["message"] == "ValueError: boom"


@pytest.mark.parametrize("message", ["custom text", {"message": "custom text"}, {"message": 5, "extraInfo": {}}])
def test_a_custom_recorders_file_is_left_alone(tmp_path, message):
    path = tmp_path / "e"
    path.write_text(json.dumps({"message": message}))
    writer.write_exception(str(path), caught(boom))
    assert content(path) == message


def test_a_plain_string_about_the_same_exception_gains_ours(tmp_path):
    path = tmp_path / "e"
    path.write_text(json.dumps({"message": "ValueError: boom", "timestamp": "1"}))
    writer.write_exception(str(path), caught(boom))
    document = json.loads(path.read_text())
    assert (document["message"], document["timestamp"], document["type"]) == ("ValueError: boom", "1", "ValueError")


def test_a_child_failed_error_leaves_the_copied_root_cause_alone(tmp_path):
    path = tmp_path / "e"
    torch_form(path, "KeyError: 'x'", errorCode=3)
    before = path.read_bytes()

    class ChildFailedError(Exception):
        def get_first_failure(self):
            return 0, None

    writer.write_exception(str(path), ChildFailedError("train.py FAILED"))
    assert path.read_bytes() == before


@pytest.mark.parametrize("garbage", [b"", b"{", b"\xff\x00", b"[]", b"{}"])
def test_garbage_in_the_file_is_replaced(tmp_path, garbage):
    path = tmp_path / "e"
    path.write_bytes(garbage)
    writer.write_exception(str(path), caught(boom))
    assert content(path)["message"] == "ValueError: boom"


def test_texts_that_json_cannot_carry_are_escaped(tmp_path):
    path = tmp_path / "e"
    writer.write_exception(str(path), caught(boom, "bad \udc80 name"))
    assert content(path)["message"] == r"ValueError: bad \udc80 name"


def test_types_are_named_as_tracebacks_name_them(tmp_path):
    class Inner(Exception):
        pass

    path = tmp_path / "e"
    writer.write_exception(str(path), Inner("x"))
    assert content(path)["message"] == "Inner: x"
    assert content(path)["extraInfo"]["type"].endswith(
        "writer.test_types_are_named_as_tracebacks_name_them.<locals>.Inner"
    )


def test_a_long_recorded_text_is_cut_on_completion(tmp_path):
    path = tmp_path / "e"
    torch_form(path, "ValueError: " + "x" * 3_000_000, py_callstack="y" * 3_000_000)
    writer.write_exception(str(path), caught(boom, "x" * 3_000_000))
    assert path.stat().st_size < 1 << 20
    assert content(path)["extraInfo"]["type"] == "ValueError"


@pytest.mark.parametrize(
    ("argv", "name"),
    [
        (["python", "-m", "pkg.mod", "--x"], "pkg.mod"),
        (["python", "-u", "-Xm", "-Bm", "pkg"], "-Bm"),
        (["python", "-um", "pkg"], "pkg"),
        (["python", "-mpkg"], "pkg"),
        (["python"], ""),
    ],
)
def test_the_module_is_found_on_the_interpreters_command_line(tmp_path, argv, name):
    path = tmp_path / "e"
    writer.write_never_ran(str(path), "-m", argv, at_ns=1)
    assert f"module {name!r} can't be run" in content(path)["message"]


# --- the hook, without an interpreter of its own


@pytest.fixture
def armed(tmp_path):
    hook = startup._Armed(str(tmp_path / "e"))
    hook.previous = lambda *parts: None
    return hook


def test_the_hook_writes_once(armed, tmp_path):
    first = caught(boom, "first")
    armed.excepthook(type(first), first, first.__traceback__)
    armed.write(caught(boom, "second"))
    assert content(tmp_path / "e")["message"] == "ValueError: first"


def test_another_process_never_writes(armed, tmp_path):
    armed.pid += 1
    armed.write(caught(boom))
    assert not (tmp_path / "e").exists()


def test_whatever_goes_wrong_in_writing_is_noted_not_raised(armed, tmp_path, monkeypatch):
    def fail(path, error, *, at_ns):
        raise MemoryError("no room")

    monkeypatch.setattr(writer, "write_exception", fail)
    armed.write(caught(boom))
    assert (tmp_path / "e.note").read_text() == "worker hook: MemoryError: no room\n"
