"""Stacks of workers that stand still: how many times of a run are kept."""

import os
from contextlib import nullcontext

from elastic_watch.hangs import stack_files as hang_files
from elastic_watch.hangs.stack_files import write_stacks


def test_the_first_time_and_the_last_ones_are_kept(tmp_path, monkeypatch):
    monkeypatch.setattr(hang_files, "KEPT_FOLDERS", 3)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "file").touch()
    for number in range(6):
        folder = tmp_path / "hang" / f"round_{number}_1"
        write_stacks(folder, {0: ("rank 0", f"stack {number}")})
        os.utime(folder, ns=(number, number))
        if not number:
            (tmp_path / "hang" / "round_link").symlink_to(elsewhere)
    assert sorted(os.listdir(tmp_path / "hang")) == ["round_0_1", "round_4_1", "round_5_1", "round_link"]
    assert (elsewhere / "file").exists()
    assert "stack 0" in (tmp_path / "hang" / "round_0_1" / "rank_0.txt").read_text()


def test_a_folder_that_goes_meanwhile_costs_no_stacks(tmp_path, monkeypatch):
    monkeypatch.setattr(hang_files, "KEPT_FOLDERS", 2)
    for number in range(3):
        folder = tmp_path / "hang" / f"round_{number}_1"
        write_stacks(folder, {0: ("rank 0", "stack")})
        os.utime(folder, ns=(number, number))
    scandir = os.scandir

    def swept(path):
        entries = list(scandir(path))
        (folder / "rank_0.txt").unlink()
        folder.rmdir()
        return nullcontext(entries)

    with monkeypatch.context() as patch:
        patch.setattr(os, "scandir", swept)
        assert write_stacks(tmp_path / "hang" / "round_3_1", {0: ("rank 0", "stack")}) == {0: "rank_0.txt"}
    assert sorted(os.listdir(tmp_path / "hang")) == ["round_0_1", "round_3_1"]
