import json
import os
from pathlib import Path

import pytest

from elastic_core.processes.errors.frames import is_launcher_frame
from elastic_core.processes.errors.reader import MAX_FILE_BYTES, MAX_TYPE_CHARS, read_error
from elastic_core.types import WorkerExit

ENDED_NS = 1_700_000_010_000_000_000
STARTED_NS = ENDED_NS - 5_000_000_000
FAILED_NS = ENDED_NS - 20_000_000


def ended(code=1, **fields):
    return WorkerExit(
        local_rank=2, global_rank=2, pid=77, code=code, at_s=10.0, at_ns=ENDED_NS, runtime_s=5.0, **fields
    )


def write(path: Path, content, *, mtime_ns=FAILED_NS) -> Path:
    path.write_bytes(content if isinstance(content, bytes) else json.dumps(content).encode())
    os.utime(path, ns=(mtime_ns, mtime_ns))
    return path


def ours(**changes):
    information = {
        "py_callstack": "Traceback (most recent call last):\n...\nValueError: boom\n",
        "timestamp": str(FAILED_NS // 10**9),
        "timestamp_ns": FAILED_NS + 123,
        "source": "hook",
        "type": "ValueError",
        "frames": [["/u/train.py", 9, "<module>", "main()"], ["/u/train.py", 4, "main", "raise ValueError('boom')"]],
        "top_level_import": False,
    }
    return {"message": {"message": "ValueError: boom", "extraInfo": information | changes}}


TORCH_CALLSTACK = """Traceback (most recent call last):
  File "/v/lib/python3.11/site-packages/torch/distributed/elastic/multiprocessing/errors/__init__.py", line 36, in w
    return f(*args, **kwargs)
           ^^^^^^^^^^^^^^^^^^
  File "/u/train.py", line 4, in main
    raise ValueError("boom")
ValueError: boom
"""


def test_our_own_file_is_read_with_its_nanoseconds_type_and_frames(tmp_path):
    record = read_error(write(tmp_path / "e", ours()), None, None, exit=ended())
    assert record is not None
    assert (record.source, record.type, record.message) == ("hook", "ValueError", "boom")
    assert record.timestamp_ns == FAILED_NS + 123
    assert record.frames[-1] == ("/u/train.py", 4, "main", "raise ValueError('boom')")
    assert not record.top_level_import


def test_torchs_file_takes_its_time_from_the_file_and_its_frames_from_the_callstack(tmp_path):
    content = {
        "message": {
            "message": "ValueError: boom",
            "extraInfo": {"py_callstack": TORCH_CALLSTACK, "timestamp": str(FAILED_NS // 10**9)},
        }
    }
    record = read_error(write(tmp_path / "e", content), None, None, exit=ended())
    assert record is not None
    assert (record.source, record.type, record.message) == ("record", "ValueError", "boom")
    assert record.timestamp_ns == FAILED_NS
    assert record.frames == (("/u/train.py", 4, "main", 'raise ValueError("boom")'),)


def test_a_plain_string_message_is_accepted(tmp_path):
    path = write(tmp_path / "e", {"message": "it broke", "timestamp": "1700000009"})
    record = read_error(path, None, None, exit=ended())
    assert record is not None
    assert (record.type, record.message, record.timestamp_ns) == ("", "it broke", FAILED_NS)


@pytest.mark.parametrize(
    ("text", "kind", "message"),
    [
        ("ValueError: a: b", "ValueError", "a: b"),
        ("ValueError: ", "ValueError", ""),
        ("something odd happened: twice", "", "something odd happened: twice"),
        ("torch.OutOfMemoryError: CUDA", "torch.OutOfMemoryError", "CUDA"),
    ],
)
def test_type_and_text_are_told_apart(tmp_path, text, kind, message):
    path = write(tmp_path / "e", {"message": {"message": text, "extraInfo": {}}})
    record = read_error(path, None, None, exit=ended())
    assert record is not None
    assert (record.type, record.message) == (kind, message)


def test_the_qualified_type_beside_torchs_message_wins(tmp_path):
    content = ours(type="torch.OutOfMemoryError")
    content["message"]["message"] = "OutOfMemoryError: CUDA out of memory."
    record = read_error(write(tmp_path / "e", content), None, None, exit=ended())
    assert record is not None
    assert (record.type, record.message) == ("torch.OutOfMemoryError", "CUDA out of memory.")


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        json.dumps(ours()).encode()[:-40],
        b"\x00\xff\xfe" * 100,
        b"[1, 2]",
        b"null",
        b'{"message": 5}',
        b'{"message": {"message": 5, "extraInfo": {}}}',
        b'{"message": ' * 5000,
    ],
    ids=["empty", "brace", "truncated", "binary", "list", "null", "number", "number in message", "deep"],
)
def test_garbage_says_nothing_and_the_next_source_is_asked(tmp_path, content):
    path = write(tmp_path / "e", content)
    assert read_error(path, None, None, exit=ended()) is None
    record = read_error(path, None, TORCH_CALLSTACK.encode(), exit=ended())
    assert record is not None
    assert (record.source, record.type) == ("stderr", "ValueError")


@pytest.mark.parametrize("extra", [5, None, [], {"frames": "x", "timestamp_ns": "y", "py_callstack": 7, "type": []}])
def test_strange_parts_do_not_spoil_the_message(tmp_path, extra):
    path = write(tmp_path / "e", {"message": {"message": "ValueError: boom", "extraInfo": extra}})
    record = read_error(path, None, None, exit=ended())
    assert record is not None
    assert (record.type, record.message, record.frames) == ("ValueError", "boom", ())


def test_a_huge_file_is_not_read_to_its_end(tmp_path):
    huge = b'{"message": "' + b"x" * (2 * MAX_FILE_BYTES) + b'"}'
    assert read_error(write(tmp_path / "e", huge), None, None, exit=ended()) is None


def test_lone_surrogates_are_no_obstacle(tmp_path):
    path = write(tmp_path / "e", b'{"message": {"message": "ValueError: \\udc80", "extraInfo": {}}}')
    record = read_error(path, None, None, exit=ended())
    assert record is not None
    assert record.type == "ValueError"


def test_missing_files_a_directory_and_a_pipe_say_nothing(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for path in (None, tmp_path / "nowhere", tmp_path, pipe):
        assert read_error(path, path, None, exit=ended()) is None


@pytest.mark.parametrize(
    ("given_ns", "believed_ns"),
    [(0, STARTED_NS), (STARTED_NS + 1, STARTED_NS + 1), (ENDED_NS + 10**12, ENDED_NS), (-(10**30), STARTED_NS)],
)
def test_times_outside_the_workers_life_are_moved_into_it(tmp_path, given_ns, believed_ns):
    record = read_error(write(tmp_path / "e", ours(timestamp_ns=given_ns)), None, None, exit=ended())
    assert record is not None
    assert record.timestamp_ns == believed_ns


def test_never_ran_needs_the_interpreters_exit_code(tmp_path):
    path = write(tmp_path / "e", ours(never_ran=True, top_level_import=True))
    assert read_error(path, None, None, exit=ended(3)) is None
    record = read_error(path, None, None, exit=ended(2))
    assert record is not None
    assert record.top_level_import


FAULT = """Fatal Python error: Segmentation fault

Thread 0x00007f1 (most recent call first):
  File "/usr/lib/python3.11/threading.py", line 324 in wait

Current thread 0x00007f2 (most recent call first):
  File "/usr/lib/python3.11/ctypes/__init__.py", line 519 in string_at
  File "/u/train.py", line 8 in step
  File "/u/train.py", line 12 in <module>
  File "<frozen runpy>", line 88 in _run_code

Extension modules: numpy.core._multiarray_umath (total: 1)
"""


def test_a_fault_dump_gives_the_current_threads_frames_outermost_first(tmp_path):
    record = read_error(tmp_path / "none", write(tmp_path / "f", FAULT.encode()), None, exit=ended(-11))
    assert record is not None
    assert (record.source, record.type, record.message) == ("faulthandler", "Fatal Python error", "Segmentation fault")
    assert record.timestamp_ns == FAILED_NS
    assert [frame[:3] for frame in record.frames] == [
        ("/u/train.py", 12, "<module>"),
        ("/u/train.py", 8, "step"),
        ("/usr/lib/python3.11/ctypes/__init__.py", 519, "string_at"),
    ]


def test_of_several_dumps_the_last_counts(tmp_path):
    second = FAULT.replace("Segmentation fault", "Bus error").replace("line 8", "line 9")
    record = read_error(None, write(tmp_path / "f", (FAULT + second).encode()), None, exit=ended(-7))
    assert record is not None
    assert record.message == "Bus error"
    assert record.frames[1][1] == 9


def test_an_exception_comes_before_a_fault_at_the_interpreters_end(tmp_path):
    fault = write(tmp_path / "f", FAULT.encode())
    record = read_error(write(tmp_path / "e", ours()), fault, None, exit=ended(-11))
    assert record is not None
    assert record.source == "hook"


def test_an_abort_takes_its_reason_from_the_cpp_runtime(tmp_path):
    stderr = (
        b"[rank1]: terminate called after throwing an instance of 'c10::DistBackendError'\n"
        b"  what():  [PG ID 0 Rank 1] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=5)\n"
    )
    fault = write(tmp_path / "f", FAULT.replace("Segmentation fault", "Aborted").encode())
    for fault_file in (fault, None):
        record = read_error(None, fault_file, stderr, exit=ended(-6))
        assert record is not None
        assert record.type == "c10::DistBackendError"
        assert "Watchdog caught" in record.message
    assert read_error(None, fault, stderr, exit=ended(-6)).frames


def test_a_fault_dump_on_stderr_is_found_too():
    record = read_error(None, None, b"step 7\n" + FAULT.encode(), exit=ended(-11))
    assert record is not None
    assert record.source == "faulthandler"
    assert record.timestamp_ns == ENDED_NS


def test_the_last_traceback_on_stderr_counts_and_torchs_rank_prefix_is_taken_off():
    text = "".join(f"[rank2]: {line}\n" for line in TORCH_CALLSTACK.splitlines())
    record = read_error(None, None, b"Traceback (most recent call last):\n  junk\n" + text.encode(), exit=ended())
    assert record is not None
    assert (record.source, record.type, record.message) == ("stderr", "ValueError", "boom")
    assert record.frames == (("/u/train.py", 4, "main", 'raise ValueError("boom")'),)


def test_a_traceback_before_a_signal_is_not_taken_for_its_cause():
    record = read_error(None, None, TORCH_CALLSTACK.encode(), exit=ended(-9))
    assert record is not None
    assert record.type == ""
    assert record.message.endswith("ValueError: boom")


@pytest.mark.parametrize(
    ("stderr", "kind"),
    [
        ("python: can't open file '/u/nosuch.py': [Errno 2] No such file or directory\n", "FileNotFoundError"),
        ("/usr/bin/python: No module named nosuch\n", "ModuleNotFoundError"),
        (
            "/usr/bin/python: Error while finding module specification for 'a.b' (ModuleNotFoundError: No module)\n",
            "ModuleNotFoundError",
        ),
        ('  File "/u/train.py", line 3\n    def (:\n        ^\nSyntaxError: invalid syntax\n', "SyntaxError"),
        (
            (
                'Traceback (most recent call last):\n  File "/u/train.py", line 1, in <module>\n    import nosuch\n'
                "ModuleNotFoundError: No module named 'nosuch'\n"
            ),
            "ModuleNotFoundError",
        ),
    ],
)
def test_what_can_never_work_is_recognised_on_stderr(stderr, kind):
    record = read_error(None, None, stderr.encode(), exit=ended())
    assert record is not None
    assert record.type == kind
    assert record.top_level_import


def test_without_any_form_the_last_lines_are_kept():
    record = read_error(None, None, b"".join(b"line %d\n\n" % number for number in range(9)) + b"\xff", exit=ended(7))
    assert record is not None
    assert (record.source, record.type) == ("stderr", "")
    assert record.message == "line 5\nline 6\nline 7\nline 8\n\N{REPLACEMENT CHARACTER}"


@pytest.mark.parametrize("tail", [None, b"", b"\n \n"])
def test_nothing_at_all_is_none(tail):
    assert read_error(None, None, tail, exit=ended()) is None


@pytest.mark.parametrize(
    ("file", "launcher"),
    [
        ("<frozen runpy>", True),
        ("<frozen importlib._bootstrap>", True),
        ("/usr/lib/python3.11/runpy.py", True),
        ("/v/site-packages/torch/distributed/elastic/multiprocessing/errors/__init__.py", True),
        ("/src/elastic_core/processes/errors/writer.py", True),
        ("/src/elastic_ops/recording.py", True),
        ("/src/elastic_torchrun/store/watch.py", True),
        ("/u/train.py", False),
        ("/v/site-packages/torch/nn/modules/module.py", False),
        ("<string>", False),
    ],
)
def test_launcher_frames(file, launcher):
    assert is_launcher_frame(file) is launcher


@pytest.mark.parametrize("text", ["ValueError: boom", "T" * 200_000 + ": boom"])
def test_the_name_of_an_exception_has_a_bound(tmp_path, text):
    document = ours(type="m." + "T" * 200_000)
    document["message"]["message"] = text
    record = read_error(write(tmp_path / "e", document), None, None, exit=ended())
    assert record is not None
    assert len(record.type) <= MAX_TYPE_CHARS
    record = read_error(None, None, b"Traceback (most recent call last):\n" + text.encode(), exit=ended())
    assert record is None or len(record.type) <= MAX_TYPE_CHARS
