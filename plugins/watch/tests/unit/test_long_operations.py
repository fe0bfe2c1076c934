"""Saves, compilers and debuggers, which are no hang within their limits."""

import json

import pytest

from elastic_watch.beat_file import OpenSection, WorkerBeats
from elastic_watch.hangs.long_operations import (
    COMPILE_S,
    DEBUG_S,
    SAVE_S,
    ScriptProgress,
    long_operation,
    longest_marks,
    progress_of,
    with_progress,
)

OWN = (OpenSection(serial=1, name="mine", since_s=50.0, limit_s=60.0),)


def merged(beats=None, longest_s=None, **progress):
    own = {} if beats is None else {0: beats}
    return with_progress(own, {0: ScriptProgress(**progress)}, longest_s or {})[0]


def test_a_step_of_should_stop_is_a_sign_of_life():
    seen = merged(step=7, step_s=90.0)
    assert (seen.beat_s, seen.step, seen.sections) == (90.0, 7, ())


def test_the_later_of_heartbeat_and_should_stop_counts():
    assert merged(WorkerBeats(owner=5, beat_s=95.0), step=7, step_s=90.0).beat_s == 95.0
    assert merged(WorkerBeats(owner=5, beat_s=85.0), step=7, step_s=90.0).beat_s == 90.0


def test_steps_of_heartbeats_are_used_on_all_ranks_or_on_none():
    beats = {0: WorkerBeats(beat_s=9.0, step=400), 1: WorkerBeats()}
    progress = {0: ScriptProgress(step=4, step_s=9.0), 1: ScriptProgress(step=4, step_s=9.0)}
    assert {rank: each.step for rank, each in with_progress(beats, progress, {}).items()} == {0: 400, 1: None}
    without = {rank: WorkerBeats() for rank in beats}
    assert {rank: each.step for rank, each in with_progress(without, progress, {}).items()} == {0: 4, 1: 4}


def test_a_worker_without_either_is_as_before():
    beats = {0: WorkerBeats(beat_s=9.0, step=4)}
    assert with_progress(beats, {}, {}) == beats


@pytest.mark.parametrize(
    ("longest_s", "limit_s"), [({}, SAVE_S), ({"save": 10.0, "restore": 9000.0}, SAVE_S), ({"save": 1200.0}, 3600.0)]
)
def test_an_open_save_is_a_section_of_half_an_hour_or_three_times_the_longest(longest_s, limit_s):
    (opened,) = merged(longest_s=longest_s, step=7, step_s=90.0, marks=(("save", 92.0, None),)).sections
    assert (opened.name, opened.since_s, opened.limit_s) == ("save", 92.0, limit_s)
    assert opened.serial < 0


def test_begin_and_end_of_a_save_are_signs_of_life_but_not_the_first():
    assert merged(step=7, step_s=90.0, marks=(("save", 92.0, None),)).beat_s == 92.0
    assert merged(step=7, step_s=90.0, marks=(("save", 92.0, 99.0),)).beat_s == 99.0
    assert merged(marks=(("save", 92.0, 99.0),)).beat_s is None


def test_a_section_of_the_script_overrides_its_save():
    beats = WorkerBeats(beat_s=90.0, sections=OWN)
    assert merged(beats, marks=(("save", 92.0, None),)).sections == OWN


def test_a_restore_before_the_first_sign_of_life_is_limited_by_the_startup_timeout_alone():
    assert merged(marks=(("restore", 1.0, None),)).sections == ()
    assert merged(step=1, step_s=1.0, marks=(("restore", 2.0, None),)).sections[0].name == "restore"


def test_the_longest_save_of_the_run_is_kept_over_rounds():
    first = ScriptProgress(marks=(("save", 1.0, 21.0), ("restore", 30.0, 31.0), ("save", 40.0, None)))
    longest_s = longest_marks({}, [first])
    assert longest_s == {"save": 20.0, "restore": 1.0}
    assert longest_marks(longest_s, [ScriptProgress(marks=(("save", 1.0, 2.0),))]) == longest_s


def test_the_response_is_read_leniently_but_not_wrongly():
    full = {"workers": {"1": {"alive_s": 1.0, "step": 4, "step_s": 2.0, "marks": [["save", 1.0, None]], "new": 1}}}
    assert progress_of(json.dumps(full)) == {1: ScriptProgress(step=4, step_s=2.0, marks=(("save", 1.0, None),))}
    assert progress_of("[]") == progress_of('{"workers": {"0": {"step": "x"}}}') == progress_of("x") == {}


DYNAMO = ("/env/torch/_dynamo/convert_frame.py", 1, "__call__", "")
INDUCTOR = ("/env/torch/_inductor/scheduler.py", 1, "codegen", "")
CALL = ("/env/torch/_dynamo/eval_frame.py", 1, "compile_wrapper", "")
COMPILED = ("/env/torch/_inductor/output_code.py", 1, "__call__", "")
COLLECTIVE = ("/env/torch/distributed/distributed_c10d.py", 1, "all_reduce", "")
USER = ("/home/me/train.py", 12, "step", "")


@pytest.mark.parametrize(
    ("frames", "expected"),
    [
        ((USER, CALL, DYNAMO, INDUCTOR), ("torch.compile", COMPILE_S)),
        ((USER, CALL, DYNAMO), ("torch.compile", COMPILE_S)),
        ((INDUCTOR, ("/usr/lib/python3.12/subprocess.py", 1, "wait", "")), ("torch.compile", COMPILE_S)),
        ((USER, CALL, COMPILED), None),
        ((USER, CALL, COMPILED, COLLECTIVE), None),
        ((USER, CALL, DYNAMO, COLLECTIVE), None),
        ((USER, COLLECTIVE), None),
        ((USER,), None),
        ((), None),
        ((USER, ("/usr/lib/python3.12/pdb.py", 1, "interaction", "")), ("a debugger", DEBUG_S)),
        ((USER, ("/env/debugpy/_vendored/pydevd/pydevd.py", 1, "do_wait_suspend", ""), USER), ("a debugger", DEBUG_S)),
        ((("/env/debugpy/server/cli.py", 1, "main", ""), USER), None),
        ((("/usr/lib/python3.12/pdb.py", 1, "run", ""), USER), None),
    ],
    ids=[
        "inductor", "dynamo", "its tail alone", "call", "collective in a call", "compiler's collective", "collective",
        "own code", "nothing", "pdb", "pydevd", "under debugpy", "under pdb",
    ],
)  # fmt: skip
def test_what_a_stack_shows(frames, expected):
    found = long_operation(frames)
    assert (found if found is None else (found.name, found.limit_s)) == expected
