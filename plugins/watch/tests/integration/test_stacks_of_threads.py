"""Stacks of workers without torch, which must survive each request."""

import shutil

import pytest

from recorder_kit import BUSY, HOLDS_LOCK, Workers, in_hold, only_worker, stacks_of
from support import wait_for

MAIN = (
    HOLDS_LOCK
    + """
import threading, time
threading.Thread(target=time.sleep, args=(600,), daemon=True).start()
print("ready", flush=True)
hold()
"""
)


@pytest.fixture
def worker(tmp_path, monkeypatch):
    monkeypatch.setattr(shutil, "which", lambda _: None)  # py-spy
    yield from only_worker(tmp_path)


def is_whole(text):
    """Whether a main thread's stack is read from its first line to its last."""
    return text.startswith("Stack (most recent call first):\n") and text.endswith(" in <module>\n")


def test_a_waiting_worker_with_busy_threads_survives_requests_of_stacks(worker, monkeypatch):
    # The handler does not run while the main thread waits for a lock.
    monkeypatch.setattr("elastic_watch.stacks._HANDLER_S", 0.02)
    monkeypatch.setattr("elastic_watch.stacks._ANSWER_S", 30.0)
    monkeypatch.setattr("elastic_watch.stacks._LOOK_S", 0.005)
    wait = "def wait():\n    print('ready', flush=True)\n    threading.Event().wait()\n"
    node = worker(f"{BUSY}\n{wait}\nbusy(4)\nwait()\n")
    found = []
    # A main thread that was not scheduled within these short times gives no stack, or the beginning of one now and the
    # rest to the next request. Those that are whole count.
    while len(found) < 200:
        found += [each for each in stacks_of(node) if each and is_whole(each.text)]
    assert {each.frames[1][2] for each in found} == {"wait"}


def test_a_busy_worker_gives_the_stacks_of_all_threads(worker, monkeypatch):
    monkeypatch.setattr("elastic_watch.stacks._HANDLER_S", 30.0)
    begin = "def begin():\n    print('ready', flush=True)\n    work()\n"
    node = worker(f"{BUSY}\n{begin}\nbusy(2)\nbegin()\n")
    found = stacks_of(node, 20)
    assert None not in found
    assert {each.text.count("(most recent call first)") for each in found} == {3}
    assert {tuple(frame[2] for frame in each.frames[:2]) for each in found} == {("<module>", "begin")}


def test_a_main_thread_that_holds_the_lock_gives_its_stack(worker):
    node = worker(MAIN)

    def held():
        (found,) = stacks_of(node)
        return bool(found) and in_hold(found)

    wait_for(held, what="the lock to be held")


CLAIMS = """
import sys, time
from elastic_watch.recorder import worker

def prepare(*given, before=worker._set_variables):
    print("claimed", flush=True)
    sys.stdin.readline()
    before(*given)

worker._set_variables = prepare
worker.start()
time.sleep(600)
"""


def test_a_request_that_comes_before_the_thread_is_there_is_answered(tmp_path):
    node = Workers(tmp_path, CLAIMS, count=1)
    try:
        assert node.line() == "claimed"
        number = node.files.get(0).ask_recorder_for_stacks()
        node.go_on()
        wait_for(lambda: node.files.get(0).recorder_stacks(number), what="the stacks")
    finally:
        node.close()
