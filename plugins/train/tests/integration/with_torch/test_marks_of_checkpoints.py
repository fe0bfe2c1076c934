"""The marks that `Checkpointer` makes: the time during which training waits for a save or a load."""

import os
import signal
import subprocess
import sys
import threading

import pytest

from elastic_train import Checkpointer, CheckpointError, saving, stops
from elastic_train import stop_page as layout
from elastic_train.checkpoint import files
from elastic_train.worker_pages import WorkerPages
from support import wait_for


@pytest.fixture
def pages(tmp_path, monkeypatch):
    """Return the pages of one worker, which is this process."""
    pages = WorkerPages(1, tmp_path, all_count=False)
    for name, value in pages.places()[0].items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(stops, "_sought", False)
    yield pages
    stops._in_forked_child()
    pages.close()


def kinds(pages):
    return [(kind, end is not None) for kind, _, end in pages.progress()[0].marks]


def test_saves_and_loads_are_marked_once_each(pages, tmp_path):
    checkpoints = Checkpointer(tmp_path / "saved")
    assert checkpoints.load() is None
    with saving():
        checkpoints.save({"a": 1}, step=1)
    checkpoints.save({"a": 2}, step=2)
    assert checkpoints.latest() == 2
    assert Checkpointer(tmp_path / "saved").load().step == 2
    assert kinds(pages) == [("restore", True), ("save", True), ("save", True), ("restore", True)]
    assert not pages.looked_at()


def test_failed_saves_and_loads_end_their_marks(pages, tmp_path):
    checkpoints = Checkpointer(tmp_path / "saved")
    with pytest.raises(ValueError, match="expected a whole number"):
        checkpoints.save({"a": 1}, step=-1)
    (tmp_path / "saved").write_text("in the way")
    for call in (lambda: checkpoints.save({"a": 1}, step=1), checkpoints.load):
        with pytest.raises(CheckpointError):
            call()
    assert kinds(pages) == [("save", True), ("save", True), ("restore", True)]


def test_a_save_in_the_background_counts_while_training_waits_for_it(pages, tmp_path, monkeypatch):
    goes_on, write = threading.Event(), files.write_values

    def slow(*arguments):
        goes_on.wait()
        write(*arguments)

    monkeypatch.setattr(files, "write_values", slow)
    checkpoints = Checkpointer(tmp_path / "saved")
    checkpoints.save({"a": 1}, step=1, wait=False)
    assert kinds(pages) == [("save", True)]  # it is copied, and being written
    waiting = threading.Thread(target=checkpoints.wait)
    waiting.start()
    wait_for(lambda: kinds(pages) == [("save", True), ("save", False)], what="the mark of wait()")
    goes_on.set()
    waiting.join()
    checkpoints.wait()  # nothing is left to wait for
    assert kinds(pages) == [("save", True), ("save", True)]


CUT = """
import os, signal, sys
from elastic_train import Checkpointer
checkpoints = Checkpointer(sys.argv[1])
checkpoints.save({"a": 1}, step=1)
os.fsync = lambda fd: os.kill(os.getpid(), signal.SIGKILL)
checkpoints.save({"a": 2}, step=2)
"""


def test_a_worker_that_is_killed_in_a_save_leaves_its_mark_open(pages, tmp_path):
    done = subprocess.run([sys.executable, "-c", CUT, tmp_path / "saved"], check=False, env=os.environ)
    assert done.returncode == -signal.SIGKILL
    assert kinds(pages) == [("save", True), ("save", False)]
    with saving():  # of a process that takes its place
        pass
    assert kinds(pages) == [("save", True)] * 3
    assert pages.progress()[0].alive_s < pages.progress()[0].marks[0][1]
    assert pages._pages[0].words[layout.WRITER] == os.getpid()
