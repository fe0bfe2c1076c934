"""A folder that is being written to, as other processes see it."""

import os

from elastic_train.checkpoint import disk
from support import wait_for


def test_a_folder_in_use_has_the_present_time_again_and_again(tmp_path, monkeypatch):
    monkeypatch.setattr(disk, "_TOUCH_S", 0.01)
    with disk.kept_fresh(tmp_path):
        for _ in range(2):
            os.utime(tmp_path, (1, 1))
            wait_for(lambda: tmp_path.stat().st_mtime > 1)
    os.utime(tmp_path, (1, 1))
    assert tmp_path.stat().st_mtime == 1


def test_a_folder_that_goes_is_no_error(tmp_path, monkeypatch):
    monkeypatch.setattr(disk, "_TOUCH_S", 0.01)
    gone = tmp_path / "gone"
    gone.mkdir()
    with disk.kept_fresh(gone):
        gone.rmdir()
