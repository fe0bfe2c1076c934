"""What led to an exception, from the exception itself and from the text of a traceback."""

import json
import traceback
from concurrent.futures.process import _RemoteTraceback

import pytest

from elastic_core.processes.errors import writer
from elastic_core.processes.errors.causes import MAX_CAUSES, MAX_TEXT_CHARS, causes_in, causes_of, notes_of
from elastic_core.processes.errors.reader import read_error
from elastic_core.processes.errors.text import parse_stderr
from elastic_core.types import WorkerExit

ENDED = WorkerExit(local_rank=0, global_rank=0, pid=7, code=1, at_s=1.0, at_ns=2_000_000_000, runtime_s=1.0)

FROM_LIBRARY = """Traceback (most recent call last):
  File "/opt/venv/lib/python3.11/site-packages/torch/utils/data/_utils/worker.py", line 351, in _worker_loop
    data = fetcher.fetch(index)
  File "/home/ada/data.py", line 12, in __getitem__
    return open(self.paths[i])
           ^^^^^^^^^^^^^^^^^^^
FileNotFoundError: [Errno 2] No such file or directory: '/data/imgs/000123.jpg'
"""
CHAINED = """Traceback (most recent call last):
  File "/home/ada/data.py", line 5, in load
    table[key]
KeyError: 'x'

The above exception was the direct cause of the following exception:

Traceback (most recent call last):
  File "/home/ada/data.py", line 9, in __getitem__
    raise ValueError("bad shard")
ValueError: bad shard
"""
IN_LOADER = f"Caught FileNotFoundError in DataLoader worker process 3.\nOriginal {FROM_LIBRARY}"
MISSING = "[Errno 2] No such file or directory: '/data/imgs/000123.jpg'"


def raised(code):
    try:
        exec(compile(code, "/home/ada/train.py", "exec"), {})
    except BaseException as error:  # noqa: BLE001  # a group may be one of any kind
        return error
    raise AssertionError("nothing was raised")


def short(causes):
    return [cause[:3] for cause in causes]


@pytest.mark.parametrize(
    ("message", "causes"),
    [
        (
            IN_LOADER,
            [("in DataLoader worker 3", "FileNotFoundError", MISSING, "data.py:12")],
        ),
        (
            f"Caught ValueError in pin memory thread for device 0.\nOriginal {CHAINED}",
            [
                ("in pin memory thread for device 0", "ValueError", "bad shard", "data.py:9"),
                ("from", "KeyError", "'x'", "data.py:5"),
            ],
        ),
        (
            f"\n\n-- Process 1 terminated with the following error:\n{FROM_LIBRARY}",
            [("in process 1", "FileNotFoundError", MISSING, "data.py:12")],
        ),
        ("Caught ValueError in DataLoader worker process 3.\nOriginal Traceback (most recent call last):\n", []),
        ("Caught cold in Denver", []),
        ("", []),
        ("boom\n\n", []),
    ],
)
def test_a_traceback_of_another_process_in_the_message(message, causes):
    assert causes_of(RuntimeError(message)) == causes
    assert causes_in(message, "") == causes


CHAINS = {
    "from": ('try: {}["lr"]\nexcept KeyError as e: raise RuntimeError("x") from e', [("from", "KeyError", "'lr'")]),
    "context": ('try: {}["lr"]\nexcept KeyError: raise RuntimeError("x")', [("while handling", "KeyError", "'lr'")]),
    "from None": ('try: {}["lr"]\nexcept KeyError: raise RuntimeError("x") from None', []),
    "none": ('raise RuntimeError("x")', []),
    "three": (
        """
try:
  try: {}["lr"]
  except KeyError as e: raise ValueError("y") from e
except ValueError as e: raise RuntimeError("x") from e
""",
        [("from", "KeyError", "'lr'")],
    ),
}


@pytest.mark.parametrize("name", CHAINS)
def test_the_innermost_of_a_chain_also_from_its_text(name):
    code, causes = CHAINS[name]
    error = raised(code)
    assert short(causes_of(error)) == causes
    text = "".join(traceback.format_exception(error))
    assert causes_in("x", text) == [(*cause, "train.py:3" if name == "three" else "train.py:1") for cause in causes]
    record = parse_stderr(f"noise\n{text}", exit=ENDED)
    assert short(record.causes) == causes


@pytest.mark.parametrize(
    ("code", "causes"),
    [
        (
            'raise ExceptionGroup("g", [ValueError("a"), ExceptionGroup("h", [OSError(5, "b"), KeyError("c")])])',
            [("member", "ValueError", "a"), ("member", "OSError", "[Errno 5] b"), ("member", "KeyError", "'c'")],
        ),
        (
            'raise RuntimeError("x") from ExceptionGroup("g", [ValueError("a"), ValueError("b")])',
            [("member", "ValueError", "a"), ("member", "ValueError", "b")],
        ),
        (
            'e = ValueError("a"); e.__cause__ = KeyError("k")\nraise ExceptionGroup("g", [e])',
            [("member", "ValueError", "a, from KeyError: 'k'")],
        ),
        (
            f'raise ExceptionGroup("g", [RuntimeError({IN_LOADER!r})])',
            [("member", "FileNotFoundError", MISSING)],
        ),
    ],
)
def test_the_members_of_groups_and_of_groups_that_are_a_cause(code, causes):
    assert short(causes_of(raised(code))) == causes


def test_large_and_deep_ones_are_bounded():
    wide = ExceptionGroup("g", [ValueError("x" * 10**6)] * 1000)
    assert len(causes_of(wide)) == MAX_CAUSES
    assert all(len(cause[2]) <= MAX_TEXT_CHARS + 3 for cause in causes_of(wide))
    deep = ValueError("leaf")
    for _ in range(5000):
        deep = ExceptionGroup("g", [deep])
    assert short(causes_of(deep)) == [("member", "ValueError", "leaf")]
    chain = error = ValueError("root")
    for number in range(5000):
        error = RuntimeError(number)
        error.__cause__, chain = chain, error
    assert short(causes_of(error)) == [("from", "ValueError", "root")]
    first, second = ValueError("a"), ValueError("b")
    first.__cause__, second.__cause__ = second, first
    assert short(causes_of(first)) == [("from", "ValueError", "b")]
    # Deallocating a deep chain recurses; unlinked it does not.
    while chain is not None:
        chain.__cause__, chain = None, chain.__cause__


def test_what_a_pool_of_processes_passes_on():
    error = ValueError("bad shard")
    error.__cause__ = _RemoteTraceback(f'\n"""\n{CHAINED}"""')
    assert causes_of(error) == [
        ("in a process of the pool", "ValueError", "bad shard", "data.py:9"),
        ("from", "KeyError", "'x'", "data.py:5"),
    ]
    outer = RuntimeError("while training")
    outer.__cause__ = error
    assert causes_of(outer) == [("from", "KeyError", "'x'", "data.py:5")]


class Bad(Exception):
    def __str__(self):
        raise OSError("broken")


def test_causes_and_notes_that_are_no_text_are_none():
    error = ValueError("a")
    error.__cause__, error.__notes__ = Bad(), ["one", 2, "three \udc80"]
    assert [cause[2] for cause in causes_of(error)] == ["<no text: __str__ raised OSError>"]
    assert notes_of(error) == ["one", "three \\udc80"]
    error.__notes__ = 5
    assert notes_of(error) == []


def test_notes_of_causes_and_members_are_there():
    inner, outer = ValueError("a"), ValueError("b")
    inner.add_note("inner")
    outer.add_note("outer")
    outer.__cause__ = inner
    assert notes_of(outer) == ["outer", "inner"]
    assert notes_of(ExceptionGroup("g", [inner])) == ["inner"]


def test_they_are_written_and_read_back(tmp_path):
    path = tmp_path / "e"
    error = raised(CHAINS["from"][0])
    error.add_note("a note")
    writer.write_exception(str(path), error)
    record = read_error(path, None, None, exit=ENDED)
    assert (short(record.causes), record.notes) == ([("from", "KeyError", "'lr'")], ("a note",))
    document = json.loads(path.read_text())
    document["message"]["extraInfo"] |= {"causes": [["x"]], "notes": 7}
    path.write_text(json.dumps(document))
    record = read_error(path, None, None, exit=ENDED)
    assert (short(record.causes), record.notes) == ([("from", "KeyError", "'lr'")], ())  # from its callstack
