"""Heartbeats and sections, as the agent reads them."""

import os
import signal
import subprocess
import sys
import types
from time import monotonic

import pytest

from elastic_core import worker
from elastic_watch import beat_layout as layout
from elastic_watch import beats
from elastic_watch.beat_file import BeatFiles, WorkerProgress


@pytest.fixture
def file(monkeypatch):
    own = (beats._page, beats._words, beats._times, beats._alive, beats._high)
    monkeypatch.setattr(beats, "_completed", layout.NONE)
    made = BeatFiles()
    (path,) = made.renew(1).values()
    monkeypatch.setenv(layout.FILE_VARIABLE, path)
    monkeypatch.setenv(layout.ROUND_VARIABLE, "0")
    beats.attach()
    yield made.get(0)
    beats._page, beats._words, beats._times, beats._alive, beats._high = own
    made.close()


def test_beat_is_read_with_its_step_and_its_owner(file):
    assert file.read().beat_s is None
    beats.heartbeat(step=7)
    first = file.read()
    assert (first.owner, first.step) == (os.getpid(), 7)
    beats.heartbeat()
    second = file.read()
    assert second.step == 7
    assert second.beat_s > first.beat_s


def test_first_heartbeat_and_first_and_last_step_have_their_times(file):
    assert file.progress() is None
    before = monotonic()
    beats.heartbeat()
    alive = file.progress()
    assert before <= alive.alive_s <= monotonic()
    assert alive == WorkerProgress(alive_s=alive.alive_s)
    for step in (5, 6, 9):
        between = monotonic()
        beats.heartbeat(step=step)
    own = file.progress()
    assert (own.alive_s, own.first_step, own.step) == (alive.alive_s, 5, 9)
    assert own.alive_s < own.first_step_s < between <= own.step_s <= monotonic()
    beats.heartbeat()
    beats.heartbeat(step="x")
    assert (file.progress(), file.read().beat_s > own.step_s) == (own, True)


def test_a_library_s_step_counts_where_the_script_reports_none(file, monkeypatch):
    worker.step_completed(3)
    worker.step_completed(4)
    assert file.read().step == 4
    assert file.progress().first_step == 3
    before = file.read().beat_s
    stops = types.SimpleNamespace(last_step=lambda: None)
    monkeypatch.setitem(sys.modules, "elastic_train.stops", stops)
    worker.step_completed(5)
    assert file.read().step == 5
    stops.last_step = lambda: 70
    worker.step_completed(6)
    assert file.read().step == 5, "should_stop reports the steps"
    assert file.read().beat_s > before


def test_the_script_s_own_steps_count_before_those_of_a_library(file):
    worker.step_completed(1)
    beats.heartbeat()
    worker.step_completed(2)
    assert file.read().step == 2, "a heartbeat without a step names none"
    beats.heartbeat(step=100)
    before = file.read().beat_s
    for step in (3, 100, 4):
        worker.step_completed(step)
        assert file.read().step == 100
    assert file.read().beat_s > before


def test_a_round_in_the_same_process_begins_with_the_library_s_steps(file, monkeypatch):
    worker.step_completed(7)
    made = BeatFiles()
    (path,) = made.renew(1).values()
    monkeypatch.setenv(layout.FILE_VARIABLE, path)
    beats.attach()
    worker.step_completed(6)
    assert (file.read().step, made.get(0).read().step) == (7, 6)
    made.close()


class Index:
    """An index that is no number, as a tensor's element may be."""

    def __init__(self, value):
        self.value = value

    def __index__(self):
        return self.value


@pytest.mark.parametrize("count", [0, 1, 5, 127, 128, 129, 700])
@pytest.mark.parametrize("stride", [1, 3, 10, 64, 100, 127])
def test_the_last_steps_have_their_times(file, count, stride):
    steps = [7 + stride * n for n in range(count)]
    for step in steps:
        beats.heartbeat(step=Index(step) if step % 2 else step)
    found = file.step_times()
    assert [step for step, _ in found] == [step for step in steps if step > (steps[-1] if steps else 0) - 128]
    times = [ns for _, ns in found]
    assert times == sorted(times)
    assert not found or found[-1][1] / 1e9 == file.progress().step_s


def test_steps_before_one_that_falls_are_left_out(file):
    for step in (500, 501, 502, 3, 4, 9):
        beats.heartbeat(step=step)
    for wrong in ("x", 1.5, 1 << 70):
        beats.heartbeat(step=wrong)
    assert [step for step, _ in file.step_times()] == [3, 4, 9]
    beats.heartbeat(step=-1)
    assert file.step_times() == ()


def test_first_step_above_another_has_its_time(file):
    file.note_above(6)
    for step in (5, 6):
        beats.heartbeat(step=step)
    assert file.progress().above_s is None
    for step in (7, 8):
        beats.heartbeat(step=step)
    own = file.progress()
    assert own.first_step_s < own.above_s < own.step_s
    file.note_above(7)  # counts from now on
    assert file.progress().above_s is None
    beats.heartbeat(step=9)
    own = file.progress()
    assert own.above_s == own.step_s
    file.note_above(layout.NONE)
    beats.heartbeat(step=10)
    assert file.progress().above_s is None


def test_import_and_sections_are_no_progress(file):
    with beats.section("compile", limit_s=60):
        pass
    assert file.progress() is None


def test_heartbeats_of_an_older_version_have_a_step_without_times(file):
    file._words[layout.STEP] = 4
    assert file.progress() == WorkerProgress(step=4)


@pytest.mark.parametrize("step", [0.5, "7", 1 << 70, object()])
def test_step_that_is_none_leaves_the_last_one_and_does_not_raise(file, step):
    beats.heartbeat(step=3)
    beats.heartbeat(step=step)
    assert file.read().step == 3


def test_sections_are_open_one_in_another_and_their_end_is_a_sign_of_life(file):
    beats.heartbeat()
    before = file.read().beat_s
    with beats.section("outer", limit_s=60), beats.section("inner", limit_s=5):
        assert [(each.name, each.limit_s) for each in file.read().sections] == [("outer", 60.0), ("inner", 5.0)]
    assert file.read().sections == ()
    assert file.read().beat_s > before


def test_section_is_not_the_first_beat(file):
    with beats.section("compile", limit_s=60):
        pass
    assert file.read().beat_s is None


def test_section_can_be_entered_again_and_within_itself(file):
    again = beats.section("x", limit_s=1)
    with again, again:
        assert len(file.read().sections) == 2
    with again:
        assert [each.serial for each in file.read().sections] == [max(s.serial for s in file.read().sections)]
    assert file.read().sections == ()


def test_more_sections_than_there_is_room_for_do_no_harm(file):
    many = [beats.section(f"s{n}", limit_s=1) for n in range(layout.SECTION_COUNT + 3)]
    for each in many:
        each.__enter__()
    assert len(file.read().sections) == layout.SECTION_COUNT
    for each in reversed(many):
        each.__exit__(None, None, None)
    assert file.read().sections == ()


def test_long_name_is_cut(file):
    with beats.section("é" * 100, limit_s=1):
        assert file.read().sections[0].name.startswith("é" * 40)


@pytest.mark.parametrize("limit_s", [0, -1, float("inf"), float("nan")])
def test_limit_of_a_section_is_a_positive_number_of_seconds(limit_s):
    with pytest.raises(ValueError, match=r"section 'x': limit_s="):
        beats.section("x", limit_s=limit_s)


def test_process_that_is_not_the_worker_does_not_beat_for_it(file, monkeypatch):
    beats._use(memoryview(bytearray(layout.PAGE_BYTES)))
    monkeypatch.setattr(os, "getpid", lambda: os.getppid())
    beats.attach()
    assert not beats.attached()


def test_process_that_is_gone_leaves_its_place_and_what_it_had_open(file, monkeypatch):
    with beats.section("x", limit_s=1):
        file._words[layout.OWNER] = (1 << 22) + 1  # more than pids go to
        beats.attach()
        assert file.read().owner == os.getpid()
        assert file.read().sections == ()


def test_forked_child_is_silent(file):
    beats._in_forked_child()
    beats.heartbeat(step=9)
    assert file.read().step is None
    assert file.progress() is None


def test_spare_interpreter_leaves_the_memory_to_the_worker(file, monkeypatch):
    beats._use(memoryview(bytearray(layout.PAGE_BYTES)))
    file._words[layout.OWNER] = 0
    monkeypatch.delenv(layout.ROUND_VARIABLE)
    beats.attach()
    assert (beats.attached(), file.read().owner) == (False, 0)


@pytest.mark.parametrize("path", ["", "/nonexistent/fd/3", "/dev/null"])
def test_without_the_agent_nothing_happens(monkeypatch, path):
    monkeypatch.setenv(layout.FILE_VARIABLE, path)
    monkeypatch.setenv(layout.ROUND_VARIABLE, "0")
    beats.attach()
    assert not beats.attached()
    beats.heartbeat(step=1)
    with beats.section("x", limit_s=1):
        beats.heartbeat()


def test_memory_can_not_be_cut_short_under_the_agent(file):
    with pytest.raises(PermissionError):
        os.truncate(os.environ[layout.FILE_VARIABLE], 0)


def test_stacks_are_only_asked_of_who_offered_them(file):
    assert not file.ask_for_stacks(os.getpid())


def test_a_process_that_no_longer_catches_the_signal_is_not_asked(file, monkeypatch):
    sent, signum = [], signal.SIGRTMAX - 1
    monkeypatch.setattr(os, "kill", lambda *to: sent.append(to))
    file._words[layout.HOOK] = os.getpid() | signum << 32
    assert not file.ask_for_stacks(os.getpid())
    assert sent == []
    before = signal.signal(signum, lambda *_: None)
    try:
        assert file.ask_for_stacks(os.getpid())
    finally:
        signal.signal(signum, before)
    assert sent == [(os.getpid(), signum)]


def test_scripts_find_the_names_in_the_core_where_the_distribution_is_there(monkeypatch):
    assert (worker.heartbeat, worker.section) == (beats.heartbeat, beats.section)
    monkeypatch.delattr(worker, "heartbeat")
    monkeypatch.setattr(sys, "path", [])
    for name in ("elastic_watch", "elastic_watch.beats"):
        monkeypatch.delitem(sys.modules, name)
    with pytest.raises(ImportError, match=r"heartbeat comes with elastic-watch\. Try: pip install -r sets/train\.txt"):
        worker.heartbeat  # noqa: B018  # that it is looked up is what is tried


# --- of all workers of a node


def test_what_a_process_that_has_ended_said_is_forgotten_but_for_the_step():
    ended = subprocess.Popen(["true"])
    ended.wait()
    files = BeatFiles()
    paths = files.renew(2)
    for rank, owner in ((0, os.getpid()), (1, ended.pid)):
        words = files.get(rank)._words
        words[layout.OWNER], words[layout.STEP] = owner, 5 + rank
    read = files.read()
    assert [(read[rank].owner, read[rank].step) for rank in (0, 1)] == [(os.getpid(), 5), (0, None)]
    assert files.furthest_step() == 6
    assert {rank: own.step for rank, own in files.progress().items()} == {0: 5, 1: 6}
    files.close()
    assert files.progress() == {}
    assert (files.read(), files.furthest_step()) == ({}, None)
    assert [os.path.exists(path) for path in paths.values()] == [False, False]


def test_files_of_the_next_round_are_new_and_have_the_same_paths():
    """A spare interpreter that was started with the variables of one round becomes a worker of the next."""
    files = BeatFiles()
    paths = files.renew(2)
    files.get(1)._words[layout.STEP] = 7
    before = files.get(1)
    assert files.renew(2) == paths
    assert (files.furthest_step(), before.read().step) == (None, 7)
    with open(paths[1], "r+b") as file:
        file.seek(layout.STEP * layout.WORD_BYTES)
        file.write((9).to_bytes(8, sys.byteorder))
    assert files.furthest_step() == 9
    fd = before.fd
    del before
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(fd)
    files.close()
