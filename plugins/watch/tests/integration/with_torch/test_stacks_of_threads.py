"""Stacks of workers with torch, which the recorder's thread writes."""

import shutil

import pytest

from recorder_kit import BUSY, HOLDS_LOCK, WITHOUT_GROUP, in_hold, only_worker, stacks_of
from support import wait_for


@pytest.fixture
def worker(tmp_path, monkeypatch):
    monkeypatch.setattr(shutil, "which", lambda _: None)  # py-spy
    yield from only_worker(tmp_path, WITHOUT_GROUP + BUSY)


def test_a_worker_with_busy_threads_survives_requests_of_stacks(worker, monkeypatch):
    monkeypatch.setattr("elastic_watch.stacks._RECORDER_S", 30.0)
    node = worker("busy(4)\nprint('ready', flush=True)\nhang()\n")
    assert node.line() == "hangs"
    size = node.files.get(0).stacks_end
    found = stacks_of(node, 200)
    assert None not in found
    assert {tuple(frame[2] for frame in each.frames) for each in found} == {("<module>", "hang")}
    assert {each.text.count("Thread 0x") for each in found} == {5}
    assert node.files.get(0).stacks_end == size  # no signal was needed


def test_a_main_thread_that_holds_the_lock_gives_its_stack_by_the_signal(worker):
    node = worker(HOLDS_LOCK + "print('ready', flush=True)\nhold()\n")

    def held():
        (found,) = stacks_of(node)
        return bool(found) and in_hold(found)

    wait_for(held, within_s=60, what="the lock to be held")
    assert node.collector.take() == {}


def test_of_many_threads_and_frames_the_main_thread_is_included(worker, monkeypatch):
    monkeypatch.setattr("elastic_watch.stacks._RECORDER_S", 30.0)
    many = "for _ in range(130):\n    threading.Thread(target=time.sleep, args=(600,), daemon=True).start()\n"
    deep = "def down(n):\n    hang() if n == 0 else down(n - 1)\nprint('ready', flush=True)\ndown(150)\n"
    node = worker(many + deep)
    assert node.line() == "hangs"
    (found,) = stacks_of(node)
    assert found.text.count("Thread 0x") == 100
    assert "\n\n...\n\nThread 0x" in found.text
    assert found.text.endswith("in down\n  ...\n")
    assert [frame[2] for frame in found.frames] == [*["down"] * 99, "hang"]
